"""Record of the newest anchor of each site's privacy ledger, over all runs, in one file, and the key of a ledger in it.

The coordinator keeps a record of all sites, and each site one of its peers. A noted anchor is on the disk when
:meth:`AnchorRecord.note` returns, and the number kept of a ledger never goes down. Several processes may have the
file open. The limit: a record does not notice that *its own* file was removed, or replaced by an older copy. For that
reason more than one party keeps a record.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from agreement.errors import UserError
from crypto.keys import encode
from protoseal_files.sqlite import DatabaseOwner, closed_on_error, transaction
from protoseal_wire.messages import LedgerAnchor

Owner = tuple[str, bytes]
"""A site's name and an anchor's key."""

_VERSION = 1
_SCHEMA = """CREATE TABLE anchors (
    site TEXT NOT NULL, key BLOB NOT NULL, seq INTEGER NOT NULL, head BLOB NOT NULL, PRIMARY KEY (site, key)
) STRICT"""
_PATIENCE = 30.0


class AnchorRecordError(UserError):
    """Record of anchors that cannot be read or written."""


class AnchorRecord(DatabaseOwner):
    """Newest anchors by site and key. Calls come from one thread at a time."""

    def __init__(self, database: sqlite3.Connection, path: Path) -> None:
        """Use :meth:`open`."""
        self._db = database
        self._path = path

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> Self:
        """Open or create the file, readable by its owner alone, in an existing folder.

        With ``read_only`` the file must exist, and neither changes nor takes new anchors. Raises
        :class:`AnchorRecordError` if it cannot be opened or is no such record.
        """
        with _named(path):
            if not read_only:
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            database = sqlite3.connect(
                f"{path.resolve().as_uri()}?mode={'ro' if read_only else 'rw'}",
                uri=True,
                isolation_level=None,
                timeout=_PATIENCE,
                check_same_thread=False,
            )
            with closed_on_error(database):
                _check_version(database) if read_only else _prepare(database)
        return cls(database, path)

    def newest(self, site: str, key: bytes) -> LedgerAnchor | None:
        """Return the anchor of a site's ledger, or None."""
        with _named(self._path):
            return self._held(site, key)

    def all(self) -> dict[Owner, LedgerAnchor]:
        """Return all anchors."""
        with _named(self._path):
            rows = self._db.execute("SELECT site, key, seq, head FROM anchors").fetchall()
        return {(site, key): LedgerAnchor(key, seq, head) for site, key, seq, head in rows}

    def forget(self, site: str, key: bytes) -> None:
        """Delete the anchor of one ledger; durable when this returns."""
        with _named(self._path), transaction(self._db):
            self._db.execute("DELETE FROM anchors WHERE (site, key) = (?, ?)", (site, key))

    def note(self, seen: Mapping[str, LedgerAnchor]) -> dict[str, LedgerAnchor]:
        """Keep each site's anchor if it is newer than the kept one; durable when this returns.

        Returns the kept anchors of sites that showed another entry under the same number: no ledger has two.
        """
        with _named(self._path), transaction(self._db):
            before = {site: self._held(site, anchor.key) for site, anchor in seen.items()}
            for site, anchor in seen.items():
                earlier = before[site]
                if earlier is None or anchor.seq > earlier.seq:
                    row = (site, anchor.key, anchor.seq, anchor.head)
                    self._db.execute("INSERT OR REPLACE INTO anchors VALUES (?, ?, ?, ?)", row)
        return {
            site: earlier
            for site, earlier in before.items()
            if earlier is not None and earlier.seq == seen[site].seq and earlier.head != seen[site].head
        }

    def _held(self, site: str, key: bytes) -> LedgerAnchor | None:
        query = "SELECT key, seq, head FROM anchors WHERE (site, key) = (?, ?)"
        row = self._db.execute(query, (site, key)).fetchone()
        return None if row is None else LedgerAnchor(*row)


def _prepare(database: sqlite3.Connection) -> None:
    # Without a write-ahead log, a copy of this one file is complete. EXTRA syncs the folder too, so that a commit
    # survives a power cut just after it.
    database.execute("PRAGMA synchronous=EXTRA")
    with transaction(database):
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version == 0 and database.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
            database.execute(_SCHEMA)
            database.execute(f"PRAGMA user_version={_VERSION}")
        else:
            _check_version(database)


def _check_version(database: sqlite3.Connection) -> None:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version != _VERSION:
        raise sqlite3.DatabaseError(
            f"the file has version {version}, but this release reads version {_VERSION}"
        )


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise AnchorRecordError(
            f"the record of ledgers' anchors {path} cannot be used: {error}; repair the disk, or "
            "restore the latest copy"
        ) from error


_LABEL = "ledger-anchor"


def anchor_key(federation: str, site: str, dataset: str) -> bytes:
    """Return 32 bytes that are equal in every run, so that the anchors of a lost or restarted ledger are still found.

    For the same reason the key has no random part, which could be lost together with the ledger. Limit: the key only
    hides the data set's name, and only from whoever cannot guess it. A data set has the same key in all of a
    federation's runs, so runs with the same data set can be linked.
    """
    return hashlib.sha256(encode(_LABEL, federation.encode(), site.encode(), dataset.encode())).digest()
