"""Reader of the sites' answers in a store's file, for a thread beside the store's own."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from protoseal_files.sqlite import DatabaseOwner
from protoseal_wire.messages import PhaseKey


class Reader(DatabaseOwner):
    """Second connection to the file, read-only; it sees what the store has committed. One thread may use it."""

    def __init__(self, path: Path) -> None:
        """Open the connection; use :meth:`secure_server.storage.store.Store.reader`, while that store is open."""
        self._db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)

    def answer(self, key: PhaseKey, site: str) -> bytes:
        """Return the answer of ``site`` to ``key``; raise ``RuntimeError`` if it was pruned."""
        row = self._db.execute(
            "SELECT content FROM uploads WHERE (round, attempt, phase, site) = (?, ?, ?, ?)",
            (key.round, key.attempt, int(key.phase), site),
        ).fetchone()
        if row is None or row[0] is None:
            raise RuntimeError(f"the store has no answer of {site} to {key.phase.name} of round {key.round}")
        content: bytes = row[0]
        return content
