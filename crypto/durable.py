"""Files that outlast a power cut: replaced as a whole, or extended by whole lines.

A file is written beside its target, synced, and renamed over it; then its folder is synced, so that the name is on the
disk too. A crash leaves the old file or the new one; once a function here has returned, its file is on the disk.

Limit: this holds as far as the file system and the disk keep what ``fsync`` promises. A disk with a volatile cache
that it does not flush can still lose the file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

_OWN = 0o600


def write(path: Path, content: bytes, *, mode: int = _OWN, overwrite: bool = True) -> None:
    """Write a file in one durable step, with exactly the permissions ``mode``; its folder must be there.

    ``FileExistsError`` if the name is taken and ``overwrite`` is false: of two writers at once one gets it. ``OSError``
    if the disk refuses, or if the name is a device or a folder. Nothing is left behind then.
    """
    if path.exists() and not path.is_file():  # a device would be gone, for all who use it
        raise OSError(errno.EINVAL, "is no regular file; give another place", str(path))
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            if overwrite:
                _keep_owner(file.fileno(), path)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)  # unlike a rename, a link fails when the name is taken
    finally:
        Path(temporary).unlink(missing_ok=True)
    sync_folder(path.parent)


def _keep_owner(handle: int, path: Path) -> None:
    """Give a file that root writes the owner of the one that it replaces: a service could not read it otherwise."""
    if os.geteuid() == 0 and path.exists():
        replaced = path.stat()
        with suppress(OSError):  # a container's root may not know the owner
            os.fchown(handle, replaced.st_uid, replaced.st_gid)


def append_line(path: Path, line: bytes) -> None:
    """Add a line, given without its end, to a file that only this process writes; the file is made if need be.

    A power cut during an earlier call may have left a part of its line: that part is cut off first.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWN)
    with os.fdopen(handle, "r+b") as file:
        whole = file.read()
        end = whole.rfind(b"\n") + 1
        if end < len(whole):
            file.truncate(end)
        file.seek(end)
        file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())
    if not whole:
        sync_folder(path.parent)


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Make a folder and those above it; the name of each new one is on the disk when this returns.

    ``mode``, less the umask, is for ``folder`` alone. A folder that is there is left as it is.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(mode=mode, parents=True, exist_ok=True)
    for made in reversed(missing):
        sync_folder(made.parent)


def hold(path: Path) -> BinaryIO:
    """Lock a file, made if need be, for as long as the returned file is open; the kernel frees a dead process's lock.

    ``BlockingIOError`` if it is held.
    """
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWN), "r+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise
    return file


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk: without that a power cut may lose a new file, whatever it holds."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
