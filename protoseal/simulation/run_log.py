"""Log of a simulated run: the rounds of each site and of the coordinator, and the bytes sent in each direction.

The file is written during the run, so that a killed and resumed run loses no entry. Each entry has a unique key and
replaces an earlier entry of that key, so an entry that is written twice after a kill counts once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import TypeAdapter

from protoseal_files.sqlite import DatabaseOwner
from protoseal_wire.messages import PhaseKey
from secure_client.output.site_log import SiteRound
from secure_server.round_log import CoordinatorRound

_SCHEMA = """
CREATE TABLE IF NOT EXISTS site_rounds (
    site TEXT NOT NULL, round INTEGER NOT NULL, json TEXT NOT NULL, PRIMARY KEY (site, round)
) STRICT;
CREATE TABLE IF NOT EXISTS rounds (round INTEGER PRIMARY KEY, json BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS payloads (
    site TEXT NOT NULL, up INTEGER NOT NULL, round INTEGER NOT NULL, attempt INTEGER NOT NULL, phase INTEGER NOT NULL,
    size INTEGER NOT NULL, PRIMARY KEY (site, up, round, attempt, phase)
) STRICT;
"""
_COORDINATOR_ROUND = TypeAdapter(CoordinatorRound)


class RunLog(DatabaseOwner):
    """One run's log. Entries survive the end of the process, and a power cut after :meth:`sync`."""

    def __init__(self, path: Path) -> None:
        """Open or create the file."""
        self._db = sqlite3.connect(path, isolation_level=None)
        # Otherwise WAL needs memory that processes share, which a network's file system lacks.
        self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
        self._db.execute("PRAGMA journal_mode=WAL")
        # A killed process loses nothing; a power cut loses what was written since the last call of `sync`.
        self._db.execute("PRAGMA synchronous=NORMAL")
        for statement in _SCHEMA.split(";\n"):
            self._db.execute(statement)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Store all entries of the ``with`` block, or none after an error."""
        with self._db:
            self._db.execute("BEGIN")
            yield

    def sync(self) -> None:
        """Return when all entries so far are on the disk."""
        self._db.execute("PRAGMA wal_checkpoint(FULL)")

    def discard_after(self, round_number: int) -> None:
        """Discard the entries of later rounds, which will be run again."""
        with self.transaction():
            for table in ("site_rounds", "rounds", "payloads"):
                self._db.execute(f"DELETE FROM {table} WHERE round > ?", (round_number,))  # noqa: S608 (names above)

    def put_site_round(self, site: str, figures: SiteRound) -> None:
        """Store a round as a site saw it."""
        row = (site, figures.round, figures.model_dump_json())
        self._db.execute("INSERT OR REPLACE INTO site_rounds VALUES (?, ?, ?)", row)

    def put_round(self, completed: CoordinatorRound) -> None:
        """Store a round as the coordinator saw it."""
        row = (completed.round, _COORDINATOR_ROUND.dump_json(completed))
        self._db.execute("INSERT OR REPLACE INTO rounds VALUES (?, ?)", row)

    def put_payload(self, site: str, key: PhaseKey, size: int, *, up: bool) -> None:
        """Store the bytes of a request (``up`` false) or an answer."""
        row = (site, int(up), key.round, key.attempt, int(key.phase), size)
        # A phase that is repeated after a kill replaces its entry, so that its bytes count once.
        self._db.execute("INSERT OR REPLACE INTO payloads VALUES (?, ?, ?, ?, ?, ?)", row)

    def site_rounds(self, site: str) -> tuple[SiteRound, ...]:
        """Return a site's rounds, oldest first."""
        rows = self._db.execute("SELECT json FROM site_rounds WHERE site = ? ORDER BY round", (site,))
        return tuple(SiteRound.model_validate_json(text) for (text,) in rows)

    def reporting_sites(self, round_number: int) -> set[str]:
        """Return the sites that reported a round."""
        rows = self._db.execute("SELECT site FROM site_rounds WHERE round = ?", (round_number,))
        return {site for (site,) in rows}

    def rounds(self) -> list[CoordinatorRound]:
        """Return the coordinator's rounds, oldest first."""
        rows = self._db.execute("SELECT json FROM rounds ORDER BY round")
        return [_COORDINATOR_ROUND.validate_json(text) for (text,) in rows]

    def payload_bytes(self, site: str, *, up: bool) -> int:
        """Return the bytes of all answers, or of all requests."""
        query = "SELECT coalesce(sum(size), 0) FROM payloads WHERE site = ? AND up = ?"
        (total,) = self._db.execute(query, (site, int(up))).fetchone()
        return int(total)
