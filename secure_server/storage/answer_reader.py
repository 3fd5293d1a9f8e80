"""The sites' answers in a store's file, for a thread beside the store's own."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from agreement.storage.sqlite import DatabaseOwner
from protoseal_wire.messages import PhaseKey


class Reader(DatabaseOwner):
    """A second connection, which can only read; it sees what the store has committed. To be used by one thread."""

    def __init__(self, path: Path) -> None:
        """Use :meth:`secure_server.storage.store.Store.reader`, and only while that store is open."""
        self._db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)

    def answer(self, key: PhaseKey, site: str) -> bytes:
        """The answer of ``site`` to ``key``; ``RuntimeError`` if there is none any more."""
        row = self._db.execute(
            "SELECT content FROM uploads WHERE (round, attempt, phase, site) = (?, ?, ?, ?)",
            (key.round, key.attempt, int(key.phase), site),
        ).fetchone()
        if row is None or row[0] is None:
            raise RuntimeError(f"the store has no answer of {site} to {key.phase.name} of round {key.round}")
        content: bytes = row[0]
        return content
