"""Files and state folders that survive a power cut: replaced atomically or extended by lines, locked, and no links.

A file is written beside its target, synced, and renamed over the target; then the folder is synced, so that the name
is on the disk too. A crash leaves the old file or the new one; once a function here has returned, its file is on the
disk.

Limit: the file system and the disk must keep what ``fsync`` promises. A disk with a volatile cache that it does not
flush can still lose the file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO

_OWN = 0o600
_LATER = ContextVar[set[Path] | None]("files and folders to be synced together", default=None)


def write(path: Path, content: bytes, *, mode: int = _OWN, overwrite: bool = True) -> None:
    """Write a file in one durable step, with exactly the permissions ``mode``; its folder must exist.

    Raises ``FileExistsError`` if the name is taken and ``overwrite`` is false, so that only one of two concurrent
    writers succeeds, and ``OSError`` if the disk refuses, or if the name is a device or a folder. A failed call leaves
    no file behind.
    """
    # Replacing a device file would remove the device for every program.
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "is not a regular file; give another path", str(path))
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            if overwrite and os.geteuid() == 0 and path.exists():
                # A file that root writes keeps the owner of the file it replaces, so that a service can still read it.
                replaced = path.stat()
                with suppress(OSError):  # the owner may be unknown to a container's root
                    os.fchown(file.fileno(), replaced.st_uid, replaced.st_gid)
            file.write(content)
            file.flush()
            # Before the rename: a name that a power cut left on the disk must never point at an empty file.
            if _LATER.get() is None:
                os.fsync(file.fileno())
        if overwrite:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)  # unlike a rename, a link fails when the name is taken
    finally:
        Path(temporary).unlink(missing_ok=True)
    if (later := _LATER.get()) is not None:
        later.add(path)
    sync_folder(path.parent)


@contextmanager
def sync_together() -> Iterator[None]:
    """Sync the files and folders that are written in the ``with`` block at its end, which is quicker for many.

    Until then a power cut can leave any of the files empty, so that whoever needs them must be able to write them
    again. Raises ``OSError`` if the disk refuses one of them. A block that an exception ends leaves them unsynced.
    """
    later = set[Path]()
    before = _LATER.set(later)
    try:
        yield
    finally:
        _LATER.reset(before)
    # No os.sync: it reports no error, and waits for other programs' files and file systems. Side by side, since a file
    # system then writes its own journal once for several files.
    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(_sync, later))  # raises the first error


def append_line(path: Path, line: bytes) -> None:
    """Append a line, given without its newline, to a file that only this process writes; create the file if missing.

    A partial line that a power cut left during an earlier call is cut off first.
    """
    with os.fdopen(open_state_file(path), "r+b") as file:
        whole = file.read()
        # A line without its newline was never acknowledged; a new line after it would be lost with it.
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
    """Make a folder and its missing parents; the names of all new folders are on the disk on return.

    ``mode``, less the umask, applies to ``folder`` alone. An existing folder is left unchanged.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(mode=mode, parents=True, exist_ok=True)
    for made in reversed(missing):
        sync_folder(made.parent)


def make_state_folder(folder: Path) -> None:
    """Make a folder that only its owner can enter.

    Raises ``OSError`` for an existing folder that others may write to: they could put files of their own in place of
    the state. The path may be a link. Limit: the folder's owner and the folders above it are not checked.
    """
    make_folder(folder, 0o700)
    if folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(errno.EPERM, "others may write to this folder: run chmod go-w on it", str(folder))


def open_state_file(path: Path) -> int:
    """Open a file of a state folder, made if need be, for reading and writing, and return its descriptor.

    Raises ``OSError`` for a symbolic link, which would let another file be written, and for a device or a pipe. Limit:
    a hard link is another name of the same file and is not noticed; only the file's owner can make one where the kernel
    protects hard links, as Linux does by default.
    """
    refuse_link(path)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, _OWN)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is not a regular file; move it away", str(path))
    return descriptor


def refuse_link(path: Path) -> None:
    """Raise ``OSError`` if the file is a symbolic link."""
    if path.is_symlink():
        raise OSError(
            errno.ELOOP,
            "is a symbolic link: put the file itself in its place, or name another folder",
            str(path),
        )


def lock_file(path: Path) -> BinaryIO:
    """Lock a file, made if need be, for as long as the returned file is open; the kernel frees a dead process's lock.

    ``BlockingIOError`` if it is held.
    """
    file = os.fdopen(open_state_file(path), "r+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise
    return file


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to the disk; without this a power cut may lose a new file that is itself synced."""
    if (later := _LATER.get()) is not None:
        later.add(folder)
    else:
        _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
