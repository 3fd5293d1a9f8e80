"""Journal of a site: its record of a run's answers, secrets and results, kept across restarts.

The journal stores one answer for each phase of each attempt. An answer is durable before it is sent, so the same
request gets the same bytes after a crash. Another request for the same phase is always refused: two answers over the
same inputs could be subtracted.

Secrets are stored encrypted (:class:`crypto.keys.StorageKey`). Those of one attempt are erased with it, or when the
site leaves or the run stops, and all of them when the run is over: their bytes are overwritten in the file and its
log. The limits:

- A process that is killed or loses its way to the coordinator leaves the secrets of its last attempt, so that it can
  resume, until the journal is next opened and the attempt is over. One killed while it erases leaves them in the log
  until then. Those of a site that never comes back stay.
- A copy of this file that is put back after newer answers were sent is not noticed here. A row that was deleted or
  changed by hand is not noticed either, unless the row is a secret or holds others' signatures. Whoever writes to this
  file can make the site answer a phase twice.
- What a file system, a disk that writes elsewhere (SSD), a snapshot or a backup kept of the older bytes is out of
  reach. These bytes open only with the site's storage key, a file beside the journal that the passphrase opens.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crypto.keys import StorageKey, encode
from protoseal_files.durable_files import make_state_folder
from protoseal_files.sqlite import (
    DatabaseOwner,
    closed_on_error,
    make_private,
    prepare_for_large_values,
    transaction,
)
from protoseal_wire.codec import content_hash
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.errors import ConflictingRequest, FilesOfOtherRun, StateError, Violation

_SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE identity (schema INTEGER NOT NULL, run TEXT NOT NULL, agreement_hash BLOB NOT NULL, site TEXT NOT NULL);
CREATE TABLE answers (
    round INTEGER NOT NULL, attempt INTEGER NOT NULL, phase INTEGER NOT NULL,
    request_hash BLOB NOT NULL, request BLOB NOT NULL, answer BLOB NOT NULL,
    PRIMARY KEY (round, attempt, phase)
) STRICT;
CREATE TABLE secrets (name TEXT PRIMARY KEY, sealed BLOB NOT NULL) STRICT;
CREATE TABLE documents (name TEXT PRIMARY KEY, round INTEGER NOT NULL, content BLOB NOT NULL) STRICT;
"""
_LEFT = "left attempt"
# The primary key prevents a second answer, in addition to the check of earlier requests.
_RECORD_ONCE = "INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?)"


class Journal(DatabaseOwner):
    """The journal of one site in one run; one process at a time."""

    def __init__(
        self,
        path: Path,
        *,
        run: str,
        agreement_hash: bytes,
        site: str,
        storage: StorageKey,
        durable: bool = True,
    ) -> None:
        """Open or create the file.

        Raises :class:`FilesOfOtherRun` if the file belongs to another run, agreement or site, :class:`StateError` if it
        is in use or damaged, ``OSError`` if it is a symbolic link or others may write to its folder. ``durable`` =
        false, for simulations only, does not wait for the disk: a killed process loses nothing, but a power cut may
        lose the last answers or the whole file, after which a site could answer twice.
        """
        make_state_folder(path.parent)
        make_private(path)
        self._storage = storage
        self._run = run
        self._owner = (run.encode(), agreement_hash, site.encode())
        self._synchronous = "FULL" if durable else "OFF"
        self._forgot = False
        # Statements are not cached: each would hold its last bound values, which are as large as a model.
        self._db = sqlite3.connect(
            path, isolation_level=None, timeout=1.0, check_same_thread=False, cached_statements=0
        )
        with closed_on_error(self._db):
            self._prepare(path, (_SCHEMA_VERSION, run, agreement_hash, site))

    def _prepare(self, path: Path, identity: tuple[int, str, bytes, str]) -> None:
        try:
            prepare_for_large_values(self._db)
            # The lock is exclusive: a second process with the same identity could give a second answer.
            self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode=WAL")
            # FULL syncs the log at each commit, so an answer is on the disk before it is sent. Under NORMAL a power cut
            # could take back a sent answer, and the site would answer the same values under other masks.
            self._db.execute(f"PRAGMA synchronous={self._synchronous}")
            self._db.execute("PRAGMA secure_delete=ON")  # deleted content is overwritten with zeros
            self._db.execute("BEGIN EXCLUSIVE")
            if not self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
                for statement in _SCHEMA.split(";\n"):
                    self._db.execute(statement)
                self._db.execute("INSERT INTO identity VALUES (?, ?, ?, ?)", identity)
            stored = self._db.execute("SELECT schema, run, agreement_hash, site FROM identity").fetchone()
            if stored != identity and stored[0] == _SCHEMA_VERSION and self.unused:
                self._start_over(identity)
                stored = identity
            self._db.execute("COMMIT")
            # A killed process may have erased a secret that its log still has.
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.OperationalError as error:
            raise StateError(f"{path}: {error}; is another process of this site running?") from error
        except sqlite3.DatabaseError as error:
            raise StateError(f"{path} is not a journal: {error}") from error
        if stored != identity:
            raise FilesOfOtherRun(
                f"{path} belongs to another run, agreement or site; give this run its own state_dir, or use the "
                "agreement that the run was started with"
            )

    @property
    def unused(self) -> bool:
        """Return True if no phase was answered yet."""
        return self._db.execute("SELECT 1 FROM answers").fetchone() is None

    def _start_over(self, identity: tuple[int, str, bytes, str]) -> None:
        """Clear a journal without answers, so that a corrected configuration can start in the same place."""
        for table in ("secrets", "documents", "identity"):
            self._db.execute(f"DELETE FROM {table}")  # noqa: S608 (the three names above)
        self._db.execute("INSERT INTO identity VALUES (?, ?, ?, ?)", identity)

    @contextmanager
    def transaction(self, *, truncates: bool = False) -> Iterator[None]:
        """Commit all writes of the ``with`` block, or none if an exception ends the block.

        With ``truncates``, as after an erased secret, neither the file nor its log then has what the block deleted.
        """
        with transaction(self._db):
            yield
        # Until the write-ahead log is truncated, the log or the file still has the pages of what was erased.
        if self._forgot or truncates:
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self._forgot = False

    # Answers, one for each phase

    def answer(self, key: PhaseKey, request: bytes) -> bytes | None:
        """Return the stored answer to this request, or None if this phase was never answered.

        Raises :class:`ConflictingRequest` if another request was answered, :class:`Violation` if the answer is too old
        to be stored.
        """
        row = self._read(key, "request_hash", "answer")
        if row is None:
            return None
        # The request first: another request is a conflict, even where the answer's content has been dropped.
        check_same_request(key, row[0], content_hash(request))
        check_still_kept(key, row[1])
        return row[1]

    def record(self, key: PhaseKey, request: bytes, answer: bytes) -> None:
        """Store an answer; durable when this returns.

        Of a result, only the hash is stored: the documents have what the site took from it.
        """
        stored = b"" if key.phase is Phase.RESULT else request
        self._db.execute(
            _RECORD_ONCE, (key.round, key.attempt, key.phase, content_hash(request), stored, answer)
        )

    def has_answered(self, key: PhaseKey) -> bool:
        """Return True if the phase was answered."""
        return self._read(key, "phase") is not None

    def request(self, key: PhaseKey) -> bytes | None:
        """Return the request that was answered under this key, or None; empty once dropped, and for a result."""
        row = self._read(key, "request")
        return None if row is None else row[0]

    def stored_answer(self, key: PhaseKey) -> bytes | None:
        """Return the answer that was given under this key, or None; empty once dropped."""
        row = self._read(key, "answer")
        return None if row is None else row[0]

    def _read(self, key: PhaseKey, *columns: str) -> tuple[bytes, ...] | None:
        """Return these columns of the answer to a phase, since the others may have megabytes."""
        row: tuple[bytes, ...] | None = self._db.execute(
            f"SELECT {', '.join(columns)} FROM answers WHERE round=? AND attempt=? AND phase=?",  # noqa: S608 (columns are the callers' above)
            (key.round, key.attempt, key.phase),
        ).fetchone()
        return row

    def latest(self, *phases: Phase) -> PhaseKey | None:
        """Return the last (round, attempt) in which any of the phases was answered."""
        marks = ", ".join("?" * len(phases))
        row = self._db.execute(
            f"SELECT round, attempt, phase FROM answers WHERE phase IN ({marks}) "  # noqa: S608 (marks are "?, ?")
            "ORDER BY round DESC, attempt DESC, phase DESC LIMIT 1",
            [int(phase) for phase in phases],
        ).fetchone()
        return None if row is None else PhaseKey(self._run, row[0], row[1], Phase(row[2]))

    def attempts_before(self, key: PhaseKey, phase: Phase) -> tuple[PhaseKey, ...]:
        """Return the earlier attempts of the same round in which ``phase`` was answered, oldest first."""
        rows = self._db.execute(
            "SELECT attempt FROM answers WHERE round=? AND attempt<? AND phase=? ORDER BY attempt",
            (key.round, key.attempt, phase),
        ).fetchall()
        return tuple(PhaseKey(key.run, key.round, attempt, phase) for (attempt,) in rows)

    def forget_contents(self, before_round: int) -> None:
        """Drop the contents of old rounds; the hashes stay, so that a replay is still refused."""
        self._db.execute(
            "UPDATE answers SET request = x'', answer = x'' WHERE round > 0 AND round < ? "
            "AND length(request) + length(answer) > 0",
            (before_round,),
        )

    def forget_attempts(self, before: PhaseKey) -> None:
        """Drop the largest contents of earlier attempts of the round: results to catch up with, and values sent.

        A coordinator can repeat attempts without end, each with a vector of the model's length. Hashes stay, and so
        do the lists that later attempts are checked against.
        """
        earlier = "round = ? AND attempt < ?"
        of_attempts = (before.round, before.attempt)
        self._db.execute(
            f"UPDATE answers SET request = x'' WHERE phase = ? AND {earlier}",  # noqa: S608 (the two conditions above)
            (Phase.PRESENCE, *of_attempts),
        )
        self._db.execute(
            f"UPDATE answers SET answer = x'' WHERE phase IN (?, ?, ?) AND {earlier}",  # noqa: S608
            (Phase.DIRECTIONS, Phase.VALUES, Phase.MEANS, *of_attempts),
        )

    def forget_set_up(self, before_attempt: int) -> None:
        """Drop the contents of earlier attempts of the set-up; each of ``ckks`` holds the group's evaluation keys."""
        self._db.execute(
            "UPDATE answers SET request = x'', answer = x'' WHERE phase IN (?, ?) AND attempt < ?",
            (Phase.ROSTER, Phase.SECRET, before_attempt),
        )

    # Secrets and documents

    def put_secret(self, name: str, secret: bytes) -> None:
        """Store a secret encrypted, replacing one of the same name."""
        sealed = self._storage.encrypt(secret, self._place(name))
        self._db.execute("INSERT OR REPLACE INTO secrets VALUES (?, ?)", (name, sealed))

    def secret(self, name: str) -> bytes | None:
        """Return a secret by name, or None; raise :class:`crypto.errors.DecryptionError` if it was tampered with."""
        row = self._db.execute("SELECT sealed FROM secrets WHERE name=?", (name,)).fetchone()
        return None if row is None else self._storage.decrypt(bytes(row[0]), self._place(name))

    def _place(self, name: str) -> bytes:
        """Return what a stored secret is bound to, so that it opens under no other name and in no other run."""
        return encode("journal-secret", *self._owner, name.encode())

    def check_secrets(self) -> int:
        """Return how many secrets there are. :class:`crypto.errors.DecryptionError` unless each of them opens."""
        names = [name for (name,) in self._db.execute("SELECT name FROM secrets")]
        for name in names:
            self.secret(name)
        return len(names)

    def forget_secret(self, name: str) -> bool:
        """Erase a secret when its transaction ends; return True if the secret existed. See the module's limits."""
        existed = self._db.execute("DELETE FROM secrets WHERE name=?", (name,)).rowcount > 0
        self._forgot |= existed
        return existed

    def forget_secrets(self, *, but: str) -> None:
        """Erase all secrets except one, as :meth:`forget_secret` does."""
        self._forgot |= self._db.execute("DELETE FROM secrets WHERE name!=?", (but,)).rowcount > 0

    def put(self, name: str, round_number: int, content: bytes) -> None:
        """Store a document with its round, replacing an earlier document of that name."""
        self._db.execute("INSERT OR REPLACE INTO documents VALUES (?, ?, ?)", (name, round_number, content))

    def get(self, name: str) -> tuple[int, bytes] | None:
        """Return (round, content) of the document, or None."""
        row = self._db.execute("SELECT round, content FROM documents WHERE name=?", (name,)).fetchone()
        return None if row is None else (int(row[0]), bytes(row[1]))

    # Attempts that can no longer be answered

    def leave(self, begun: PhaseKey) -> None:
        """Record that the secrets of the attempt begun by this PRESENCE were erased before the attempt's end."""
        self.put(_LEFT, begun.round, str(begun.attempt).encode())

    def left(self) -> PhaseKey | None:
        """Return the last attempt that :meth:`leave` recorded."""
        stored = self.get(_LEFT)
        return None if stored is None else PhaseKey(self._run, stored[0], int(stored[1]), Phase.PRESENCE)


def check_same_request(key: PhaseKey, answered: bytes, asked: bytes) -> None:
    """Raise :class:`ConflictingRequest` when a phase is requested again with other content."""
    if answered != asked:
        raise ConflictingRequest(
            f"the coordinator requested {key.phase.name} of round {key.round}, attempt {key.attempt} again with "
            "different content"
        )


def check_still_kept(key: PhaseKey, answer: bytes) -> None:
    """Raise :class:`Violation` when the answer's bytes were dropped; no answer is empty by itself."""
    if not answer:
        raise Violation(
            f"{key.phase.name} of round {key.round}, attempt {key.attempt} was requested again after a later "
            "attempt or round had begun"
        )
