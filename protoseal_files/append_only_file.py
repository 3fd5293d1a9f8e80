"""File that several processes append to, with each line on the disk before the writer goes ahead.

A kernel lock (``flock``) serialises the processes; the kernel releases the lock of a process that dies.

Limit: file systems without locks between machines, such as old NFS, give no protection against a second machine.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_log = logging.getLogger("protoseal.site")
_CHUNK = 1 << 20
PATIENCE = 5.0
"""Seconds of waiting for a lock after which a warning is logged."""


@contextmanager
def lock_file(path: Path, *, create: bool = False, read_only: bool = False) -> Iterator[int]:
    """Yield the descriptor of the locked file; wait for other holders. Readers share the lock, a writer has it alone.

    Raises ``OSError`` if the file cannot be opened or is not a regular file. The folder is never created: on a disk
    that is not mounted, a new folder would hold an empty budget in place of a spent one.
    """
    # A pipe in the file's place would block the opening for good without O_NONBLOCK.
    flags = os.O_RDONLY if read_only else os.O_RDWR | os.O_APPEND | (os.O_CREAT if create else 0)
    file = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        _lock(file, fcntl.LOCK_SH if read_only else fcntl.LOCK_EX, path)
        yield file
    finally:
        os.close(file)


def _lock(file: int, kind: int, path: Path) -> None:
    """Lock the file. A process stopped during a write keeps the lock until it resumes, so a long wait is logged."""
    try:
        # flock and not POSIX locks: those a process loses when any of its threads closes the file.
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        with _warn_if_long(
            "waiting for the lock of %s, which another process holds; that process may be stopped", path
        ):
            fcntl.flock(file, kind)


@contextmanager
def _warn_if_long(warning: str, path: Path) -> Iterator[None]:
    timer = threading.Timer(PATIENCE, _log.warning, (warning, path))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def read_all(file: int) -> bytes:
    """Return the whole content of the file."""
    os.lseek(file, 0, os.SEEK_SET)
    return b"".join(iter(lambda: os.read(file, _CHUNK), b""))


def append(file: int, content: bytes) -> None:
    """Append ``content`` in one write, and wait for the disk.

    Raises ``OSError`` if the write or the sync fails, or the write is short. The file may then have any part of
    ``content``, and an unknown share of that part is on the disk.
    """
    # One write at the end of the file: a crash leaves a beginning of the line, and never parts of two lines.
    written = os.write(file, content)
    if written != len(content):
        raise OSError(errno.ENOSPC, f"only {written} of {len(content)} bytes were written")
    os.fsync(file)


def sync(file: int) -> None:
    """Wait until the whole file is on the disk."""
    os.fsync(file)


def make_private(file: int) -> None:
    """Restrict the file to its owner (mode 0600), as when it was created."""
    if stat.S_IMODE(os.fstat(file).st_mode) != 0o600:
        os.fchmod(file, 0o600)


def size(file: int) -> int:
    """Return the length of the file in bytes."""
    return os.fstat(file).st_size


def cut(file: int, length: int) -> None:
    """Truncate the file to ``length`` bytes, and wait for the disk."""
    # Synced, since a cut that a power cut undoes would bring back a line that was reported as not written.
    os.ftruncate(file, length)
    os.fsync(file)
