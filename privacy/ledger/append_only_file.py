"""A file that several processes append to, each line on the disk before anything follows from it.

The lock is the kernel's (``flock``), which frees a dead process's. File systems that have none between machines, such
as NFS of old, give no protection against a second machine.
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
"""Seconds of waiting for a lock after which a warning says so."""


@contextmanager
def locked(path: Path, *, create: bool = False, read_only: bool = False) -> Iterator[int]:
    """The file's descriptor, held alone, or with other readers alone; waits for whoever holds it.

    ``OSError`` if it cannot be opened or is no regular file. Its folder is never made: where a disk is not mounted,
    that would be an empty budget in place of a spent one.
    """
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
    """Others hold it for the time of a write; one that was stopped in it holds it until it goes on: that is told."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        with _told_if_long("%s is held by another process, which may be stopped: waiting for it", path):
            fcntl.flock(file, kind)


@contextmanager
def _told_if_long(warning: str, path: Path) -> Iterator[None]:
    timer = threading.Timer(PATIENCE, _log.warning, (warning, path))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def read_all(file: int) -> bytes:
    """The whole file, from its beginning."""
    os.lseek(file, 0, os.SEEK_SET)
    return b"".join(iter(lambda: os.read(file, _CHUNK), b""))


def append(file: int, content: bytes) -> None:
    """Write at the end, in one write, and wait for the disk. ``OSError`` if either fails or the write is short.

    Then the file has any part of it, and how much of that is on the disk nobody knows.
    """
    written = os.write(file, content)
    if written != len(content):
        raise OSError(errno.ENOSPC, f"only {written} of {len(content)} bytes were written")
    os.fsync(file)


def sync(file: int) -> None:
    """Wait until all of it is on the disk."""
    os.fsync(file)


def make_private(file: int) -> None:
    """Leave it to its owner, as it was made."""
    if stat.S_IMODE(os.fstat(file).st_mode) != 0o600:
        os.fchmod(file, 0o600)


def size(file: int) -> int:
    """Its length in bytes."""
    return os.fstat(file).st_size


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk: without that a power cut may lose a new file, whatever it holds."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cut(file: int, length: int) -> None:
    """Drop what lies behind ``length``, and wait for the disk."""
    os.ftruncate(file, length)
    os.fsync(file)
