"""Store of a run: its state, the sites' statements and uploads, the results.

The store is one SQLite file. Each :meth:`Store.save` is one transaction over the new state and its cause, synced to
the disk before it returns: whatever is acknowledged afterwards survives SIGKILL and power loss, and no change is half
written. Limits: the disk must keep what it reports as synced, and the store does not notice if an older copy of the
file replaces it.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Self

from protoseal_files.durable_files import lock_file, make_state_folder
from protoseal_files.sqlite import (
    DatabaseOwner,
    closed_on_error,
    make_private,
    prepare_for_large_values,
    transaction,
)
from protoseal_wire.codec import content_hash
from protoseal_wire.messages import Phase, PhaseKey
from secure_server.errors import Conflict, StoreInUse, StoreOfOtherRun, WrongPhase, WrongStore
from secure_server.rounds.state import State

_SCHEMA_VERSION = 2
_SCHEMA = (
    "CREATE TABLE identity (schema INTEGER NOT NULL, run TEXT NOT NULL, agreement_hash BLOB NOT NULL) STRICT",
    "CREATE TABLE state (id INTEGER PRIMARY KEY CHECK (id = 1), json TEXT NOT NULL) STRICT",
    """CREATE TABLE statements (
        site TEXT PRIMARY KEY, content BLOB NOT NULL, received_at REAL NOT NULL
    ) STRICT""",
    # Pruning deletes contents of old rounds and keeps their hashes, so that a replay is still refused.
    """CREATE TABLE uploads (
        round INTEGER NOT NULL, attempt INTEGER NOT NULL, phase INTEGER NOT NULL, site TEXT NOT NULL,
        sha256 BLOB NOT NULL, content BLOB, received_at REAL NOT NULL,
        PRIMARY KEY (round, attempt, phase, site)
    ) STRICT""",
    # Sites of one group share a result, which is stored once. A sum of rows is stored under the phase VALUES.
    """CREATE TABLE results (
        round INTEGER NOT NULL, attempt INTEGER NOT NULL, phase INTEGER NOT NULL, site TEXT NOT NULL,
        sha256 BLOB NOT NULL,
        PRIMARY KEY (round, attempt, phase, site)
    ) STRICT""",
    "CREATE TABLE contents (sha256 BLOB PRIMARY KEY, content BLOB NOT NULL) STRICT",
)

_DELETE_RESULTS = """
    DELETE FROM results WHERE round < ? AND EXISTS (
        SELECT 1 FROM results AS newer
        WHERE (newer.site, newer.phase) = (results.site, results.phase)
        AND (newer.round, newer.attempt) > (results.round, results.attempt)
    )
"""


@dataclass(frozen=True)
class Received:
    """Message that a site sent and the coordinator accepted: a statement (``key`` is None) or an answer.

    ``received_at`` is in seconds since the epoch, by the coordinator's clock.
    """

    site: str
    key: PhaseKey | None
    content: bytes
    received_at: float


@dataclass(frozen=True)
class ResultReference:
    """Reference to a result that a site was given: its RESULT key, and its SHA-256 (32 bytes)."""

    key: PhaseKey
    sha256: bytes


class Store(DatabaseOwner):
    """Store of one run, open in one process. Calls come from one thread at a time."""

    def __init__(
        self,
        database: sqlite3.Connection,
        lock: BinaryIO,
        path: Path,
        run: str,
        *,
        record: bool,
        clock: Callable[[], float],
    ) -> None:
        """Wrap an open connection; use :meth:`open`."""
        self._db = database
        self._lock = lock
        self._path = path
        self._run = run
        self._record = record
        self._clock = clock
        # The content that was read last, by its hash: the sites of a group ask for it one after the other.
        self._last_read = (b"", b"")

    @classmethod
    def open(
        cls,
        path: Path,
        run: str,
        agreement_hash: bytes,
        *,
        record: bool = False,
        durable: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> Self:
        """Open or create the file, readable by its owner alone.

        With ``record`` no upload is ever pruned: :meth:`received` is then the complete list of messages. Only for a
        simulation, ``durable`` = false does not wait for the disk: a killed process loses nothing, a power cut may.
        Raises :class:`StoreInUse` if a store has the file open, :class:`WrongStore` if the file is of another run,
        agreement or version, or no store at all.
        """
        make_state_folder(path.parent)
        try:
            lock = lock_file(path.with_name(path.name + ".lock"))
        except BlockingIOError as error:
            raise StoreInUse(f"{path} is in use: is another coordinator of this run running?") from error
        try:
            database = _open_database(path, (_SCHEMA_VERSION, run, agreement_hash), durable)
        except BaseException:
            lock.close()
            raise
        return cls(database, lock, path, run, record=record, clock=clock)

    def close(self) -> None:
        """Release the file. Idempotent."""
        super().close()
        self._lock.close()

    # State and its cause

    def load(self) -> State | None:
        """Return the last saved state, None in a new store; raise :class:`WrongStore` if the state is damaged."""
        row = self._db.execute("SELECT json FROM state").fetchone()
        try:
            return None if row is None else State.from_json(row[0])
        except ValueError as error:
            raise WrongStore(f"the stored state of run {self._run} cannot be read: {error}") from error

    def save(
        self,
        state: State,
        *,
        upload: tuple[PhaseKey, str, bytes] | None = None,
        statement: tuple[str, bytes] | None = None,
        results: Mapping[str, bytes] | None = None,
        sums: Mapping[str, bytes] | None = None,
    ) -> None:
        """Store ``state`` with its cause in one transaction, durable when this returns.

        ``upload`` is (key, site, content), ``statement`` (site, content); the same content again is harmless, other
        content is a :class:`Conflict` and changes nothing. ``results`` (site → content) are those of
        ``state.result_key``, ``sums`` those over the values of the same attempt.
        """
        # One transaction: a state without the upload that caused it would count an answer that is lost.
        with self._transaction():
            if upload is not None:
                self._put_upload(*upload)
            if statement is not None:
                self._put_statement(*statement)
            for site, content in (results or {}).items():
                self._put_result(state.result_key, site, content)
            for site, content in (sums or {}).items():
                self._put_result(state.key(Phase.VALUES), site, content)
            self._put_state(state)

    def prune(self, before_round: int) -> None:
        """Delete the data of rounds before ``before_round``, except the set-up.

        This deletes results and sums, except each site's latest, which later rounds may need. Unless the store records,
        this deletes contents of uploads too.
        """
        self._last_read = (b"", b"")
        with self._transaction():
            self._db.execute(_DELETE_RESULTS, (before_round,))
            self._db.execute("DELETE FROM contents WHERE sha256 NOT IN (SELECT sha256 FROM results)")
            if not self._record:
                self._db.execute(
                    "UPDATE uploads SET content = NULL WHERE round < ? AND phase NOT IN (?, ?) "
                    "AND content IS NOT NULL",
                    (before_round, int(Phase.ROSTER), int(Phase.SECRET)),
                )

    # Stored contents

    def reader(self) -> AnswerReader:
        """Return a reader for another thread, which closes it before this store is closed."""
        return AnswerReader(self._path)

    def upload(self, key: PhaseKey, site: str) -> bytes | None:
        """Return the answer of ``site`` to ``key``; None if there is none, or it is pruned."""
        return self._read("content", "uploads", key, site)

    def upload_hash(self, key: PhaseKey, site: str) -> bytes | None:
        """Return the SHA-256 (32 bytes) of the answer of ``site`` to ``key``, pruned or not; None if none came."""
        return self._read("sha256", "uploads", key, site)

    def result(self, key: PhaseKey, site: str) -> bytes | None:
        """Return the result for ``site`` under a RESULT key; None if there is none, or it is pruned."""
        digest = self._result_hash(key, site)
        return None if digest is None else self.content(digest)

    def content(self, sha256: bytes) -> bytes | None:
        """Return a result by its SHA-256; None if there is none, or it is pruned."""
        if sha256 != self._last_read[0]:
            row = self._db.execute("SELECT content FROM contents WHERE sha256 = ?", (sha256,)).fetchone()
            if row is None:
                return None
            self._last_read = (sha256, row[0])
        return self._last_read[1]

    def latest_result(self, sites: Iterable[str], before_round: int) -> ResultReference | None:
        """Return the last result that any of ``sites`` was given before a round; None before the first."""
        return self._latest(Phase.RESULT, sites, before_round)

    def latest_sum(self, sites: Iterable[str], before_round: int) -> bytes | None:
        """Return the last sum over a group with any of ``sites`` before a round; None before the first."""
        latest = self._latest(Phase.VALUES, sites, before_round)
        return None if latest is None else self.content(latest.sha256)

    def _latest(self, phase: Phase, sites: Iterable[str], before_round: int) -> ResultReference | None:
        row = self._db.execute(
            "SELECT round, attempt, sha256 FROM results "
            "WHERE phase = ? AND round < ? AND site IN (SELECT value FROM json_each(?)) "
            "ORDER BY round DESC, attempt DESC, sha256 DESC LIMIT 1",
            (int(phase), before_round, json.dumps(list(sites))),
        ).fetchone()
        if row is None:
            return None
        round_, attempt, digest = row
        return ResultReference(PhaseKey(self._run, round_, attempt, phase), digest)

    def statements(self) -> dict[str, bytes]:
        """Return each joined site's signed statement."""
        return dict(self._db.execute("SELECT site, content FROM statements"))

    def last_join(self) -> datetime:
        """Return the time of the newest statement; raise ``ValueError`` if there is none."""
        (received_at,) = self._db.execute("SELECT max(received_at) FROM statements").fetchone()
        if received_at is None:
            raise ValueError("no site has joined")
        return datetime.fromtimestamp(received_at, UTC)

    def received(self) -> Iterator[Received]:
        """Return the messages taken in, oldest first: all of the run if it was recorded from its start to now.

        The same bytes sent twice are listed once; refused messages are not listed.
        """
        rows = self._db.execute(
            "SELECT site, NULL, NULL, NULL, content, received_at FROM statements UNION ALL "
            "SELECT site, round, attempt, phase, content, received_at FROM uploads WHERE content IS NOT NULL "
            "ORDER BY received_at"
        )
        for site, round_, attempt, phase, content, received_at in rows:
            key = None if phase is None else PhaseKey(self._run, round_, attempt, Phase(phase))
            yield Received(site, key, content, received_at)

    # Rows

    def _transaction(self) -> AbstractContextManager[None]:
        return transaction(self._db)

    def _put_state(self, state: State) -> None:
        self._db.execute("INSERT OR REPLACE INTO state VALUES (1, ?)", (state.to_json(),))

    def _put_statement(self, site: str, content: bytes) -> None:
        stored = self.statements().get(site)
        if stored is not None:
            check_same(f"{site}'s statement in run {self._run}", stored, content)
            return
        self._db.execute("INSERT INTO statements VALUES (?, ?, ?)", (site, content, self._clock()))

    def _put_upload(self, key: PhaseKey, site: str, content: bytes) -> None:
        digest = content_hash(content)
        stored = self.upload_hash(key, site)
        if stored is not None:
            check_same(f"{site}'s answer to {key.phase.name} of round {key.round}", stored, digest)
            return
        self._db.execute(
            "INSERT INTO uploads VALUES (?, ?, ?, ?, ?, ?, ?)",
            (*_step(key), site, digest, content, self._clock()),
        )

    def _put_result(self, key: PhaseKey, site: str, content: bytes) -> None:
        stored, digest = self._result_hash(key, site), content_hash(content)
        if stored is not None:
            check_same(f"the result for {site} in round {key.round}", stored, digest)
            return
        # Asked first: SQLite copies a value of megabytes before it finds that the value is there.
        if self._db.execute("SELECT 1 FROM contents WHERE sha256 = ?", (digest,)).fetchone() is None:
            self._db.execute("INSERT INTO contents VALUES (?, ?)", (digest, content))
        self._db.execute("INSERT INTO results VALUES (?, ?, ?, ?, ?)", (*_step(key), site, digest))

    def _result_hash(self, key: PhaseKey, site: str) -> bytes | None:
        return self._read("sha256", "results", key, site)

    def _read(self, column: str, table: str, key: PhaseKey, site: str) -> bytes | None:
        check_run(key, self._run)
        query = f"SELECT {column} FROM {table} WHERE (round, attempt, phase, site) = (?, ?, ?, ?)"  # noqa: S608 (names are the callers' above)
        row = self._db.execute(query, (*_step(key), site)).fetchone()
        return None if row is None else row[0]


def check_same(what: str, stored: bytes, given: bytes) -> None:
    """Raise :class:`Conflict` unless stored and given content are equal."""
    if stored != given:
        raise Conflict(f"{what} is already stored with other content, which is kept")


def check_run(key: PhaseKey, run: str) -> None:
    """Raise :class:`WrongPhase` if the key is of another run."""
    if key.run != run:
        raise WrongPhase(f"{key.phase.name} is for run {key.run!r}, but this is run {run!r}")


def check_identity(path: Path, found: object, expected: tuple[int, str, bytes]) -> None:
    """Raise :class:`StoreOfOtherRun` unless the file is of this version of the schema, run and agreement."""
    if found != expected:
        raise StoreOfOtherRun(
            f"{path} belongs to another run, agreement or version of protoseal: set another "
            "state_dir for this run, or restore the agreement that the run was started with"
        )


def _step(key: PhaseKey) -> tuple[int, int, int]:
    return key.round, key.attempt, int(key.phase)


def _open_database(path: Path, identity: tuple[int, str, bytes], durable: bool) -> sqlite3.Connection:
    make_private(path)
    # Statements are not cached: each would keep the last values bound to it in memory.
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=0)
    with closed_on_error(database):
        try:
            _prepare(database, identity, durable)
            found = database.execute("SELECT schema, run, agreement_hash FROM identity").fetchone()
        except sqlite3.DatabaseError as error:
            raise WrongStore(f"{path} is not a coordinator's store: {error}") from error
        check_identity(path, found, identity)
    return database


def _prepare(database: sqlite3.Connection, identity: tuple[int, str, bytes], durable: bool) -> None:
    prepare_for_large_values(database)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
    if database.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
        _create(database, identity)
    if database.execute("SELECT 1 FROM statements").fetchone() is None:
        _start_over(database, identity)


def _create(database: sqlite3.Connection, identity: tuple[int, str, bytes]) -> None:
    with transaction(database):
        for table in _SCHEMA:
            database.execute(table)
        database.execute("INSERT INTO identity VALUES (?, ?, ?)", identity)


def _start_over(database: sqlite3.Connection, identity: tuple[int, str, bytes]) -> None:
    """Empty a store of this schema that no site has joined yet, so that a corrected agreement may start there."""
    with transaction(database):
        changed = database.execute(
            "UPDATE identity SET run = ?, agreement_hash = ? WHERE schema = ? AND (run, agreement_hash) != (?, ?)",
            (*identity[1:], identity[0], *identity[1:]),
        )
        if changed.rowcount:
            database.execute("DELETE FROM state")


class AnswerReader(DatabaseOwner):
    """Second connection to the file, read-only; it sees what the store has committed. One thread may use it."""

    def __init__(self, path: Path) -> None:
        """Open the connection; use :meth:`secure_server.store.Store.reader`, while that store is open."""
        self._db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)

    def answer(self, key: PhaseKey, site: str) -> bytes:
        """Return the answer of ``site`` to ``key``; raise ``RuntimeError`` if it was pruned."""
        row = self._db.execute(
            "SELECT content FROM uploads WHERE (round, attempt, phase, site) = (?, ?, ?, ?)",
            (key.round, key.attempt, int(key.phase), site),
        ).fetchone()
        if row is None or row[0] is None:
            raise RuntimeError(f"the store has no answer of {site} to {key.phase.name} of round {key.round}")
        return bytes(row[0])
