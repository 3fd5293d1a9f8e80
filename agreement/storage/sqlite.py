"""What files of SQLite have in common: they are made for their owner alone, changed as a whole, and closed."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from crypto.durable_files import sync_folder


class DatabaseOwner:
    """Something with one connection, which :meth:`close` or the end of its ``with`` releases."""

    _db: sqlite3.Connection

    def close(self) -> None:
        """Release the file; once more is harmless."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """All that is stored inside, or, if an exception ends it, nothing. Of a connection that begins none by itself."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:  # SQLite itself rolls back after some errors, such as a full disk
            database.execute("ROLLBACK")
        raise


@contextmanager
def closed_on_error(database: sqlite3.Connection | DatabaseOwner) -> Iterator[None]:
    """For what a connection still needs before somebody owns it."""
    try:
        yield
    except BaseException:
        database.close()
        raise


def make_private(path: Path) -> None:
    """Make the file unless it is there, readable by its owner alone; its name is on the disk when this returns.

    SQLite gives its own files beside it (-wal, -shm) the same mode.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    path.chmod(0o600)
    sync_folder(path.parent)
