"""SQLite files: private to their owner, changed in transactions, and closed."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from protoseal_files.durable_files import open_state_file, refuse_link, sync_folder


class DatabaseOwner:
    """Owner of one connection, which :meth:`close` or the end of its ``with`` releases."""

    _db: sqlite3.Connection

    def close(self) -> None:
        """Release the file. Idempotent."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_PAGE_BYTES = 32 * 1024
_LOG_BYTES = 4 * 1024 * 1024


def prepare_for_large_values(database: sqlite3.Connection) -> None:
    """Configure a connection for values of megabytes, such as models; call this before any other statement.

    Pages of 32 KiB apply to a new file; an existing file keeps its page size. Durability does not change. Limit: all
    pages that a transaction changes are in memory until it ends.
    """
    database.execute(f"PRAGMA page_size={_PAGE_BYTES}")
    (page_bytes,) = database.execute("PRAGMA page_size").fetchone()
    # The log is emptied at the size that it has by default, with pages of 4 KiB.
    database.execute(f"PRAGMA wal_autocheckpoint={_LOG_BYTES // page_bytes}").fetchall()
    # A transaction that is larger than the page cache would write pages before they have their last content: the zeros
    # of a deleted value, and then the value that takes its place.
    database.execute("PRAGMA cache_spill=OFF")


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Store everything inside in one transaction, or nothing if an exception ends it."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:  # after some errors, such as a full disk, SQLite has rolled back already
            database.execute("ROLLBACK")
        raise


@contextmanager
def closed_on_error(database: sqlite3.Connection | DatabaseOwner) -> Iterator[None]:
    """Close the connection if an error occurs before it has an owner."""
    try:
        yield
    except BaseException:
        database.close()
        raise


def make_private(path: Path) -> None:
    """Create the file if it is missing, readable by its owner alone; its name is on the disk when this returns.

    SQLite gives its own files beside it (-wal, -shm) the same mode. Raises ``OSError`` if one of the files is a
    symbolic link, which SQLite would follow.
    """
    for suffix in ("-wal", "-shm", "-journal"):
        refuse_link(path.with_name(path.name + suffix))
    descriptor = open_state_file(path)
    try:
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
    sync_folder(path.parent)
