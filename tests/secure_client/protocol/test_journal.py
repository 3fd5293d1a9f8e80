"""Erasure of secrets from a journal: those of an attempt that is over leave every file."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from crypto.keys import StorageKey
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.errors import ConflictingRequest, Violation
from secure_client.protocol.journal import Journal
from tests.support.weakened_builds import weaken

LOG_EMPTIED = (
    "secure_client.protocol.journal.Journal.transaction: "
    "self._db.execute('PRAGMA wal_checkpoint(TRUNCATE)').fetchall()"
)

NAME = "mask secrets of round 1, attempt 1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


def open_journal(folder: Path) -> Journal:
    storage = StorageKey(bytes(32))
    return Journal(folder / "journal.sqlite", run="run", agreement_hash=bytes(32), site="a", storage=storage)


def sealed(journal: Journal, name: str) -> bytes:
    (found,) = journal._db.execute("SELECT sealed FROM secrets WHERE name=?", (name,)).fetchone()
    return bytes(found)


def anywhere(content: bytes, folder: Path) -> bool:
    """Return True if the database or its log has the whole secret; the files are read as the system has them."""
    return any(content in path.read_bytes() for path in folder.iterdir())


@pytest.mark.parametrize("size", [96, 20_000])
def test_a_forgotten_secret_is_in_no_file(folder: Path, size: int) -> None:
    with open_journal(folder) as journal:
        with journal.transaction():
            journal.put_secret(NAME, bytes(size))
            journal.put_secret("group secret", b"kept")
        stored = sealed(journal, NAME)
        assert anywhere(stored[-64:], folder)
        with journal.transaction():
            journal.forget_secret(NAME)
        assert journal.secret(NAME) is None
        assert not anywhere(stored[-64:], folder)
        assert journal.secret("group secret") == b"kept"
    with open_journal(folder) as journal:
        assert journal.secret(NAME) is None


@pytest.mark.parametrize("weakened", ["secure_delete", "wal_checkpoint"])
def test_both_the_pages_and_the_log_are_overwritten(
    folder: Path, weakened: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The encrypted secret remains without either step, so that the check above can fail."""
    with open_journal(folder) as journal:
        if weakened == "secure_delete":
            journal._db.execute("PRAGMA secure_delete=OFF")
        else:
            weaken(LOG_EMPTIED, monkeypatch)
        with journal.transaction():
            journal.put_secret(NAME, bytes(96))
        stored = sealed(journal, NAME)
        with journal.transaction():
            journal.forget_secret(NAME)
        assert anywhere(stored[-64:], folder)


def test_opening_the_journal_erases_secrets_that_a_killed_process_left(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after a secret was forgotten, and before the log was emptied; closing it would empty the log too."""
    killed = tmp_path / "killed"
    with open_journal(folder) as journal:
        with journal.transaction():
            journal.put_secret(NAME, bytes(96))
        stored = sealed(journal, NAME)
        weaken(LOG_EMPTIED, monkeypatch)
        with journal.transaction():
            journal.forget_secret(NAME)
        shutil.copytree(folder, killed)
    assert anywhere(stored[-64:], killed)
    with open_journal(killed) as journal:
        assert journal.secret(NAME) is None
        assert not anywhere(stored[-64:], killed)


def test_a_secret_that_a_failed_step_would_have_erased_is_kept(folder: Path) -> None:
    def fail_halfway(journal: Journal) -> None:
        with journal.transaction():
            journal.forget_secret(NAME)
            raise OSError("disk full")

    with open_journal(folder) as journal:
        journal.put_secret(NAME, b"secret")
        with pytest.raises(OSError, match="full"):
            fail_halfway(journal)
        assert journal.secret(NAME) == b"secret"


def test_forgetting_a_missing_secret_keeps_the_others(folder: Path) -> None:
    with open_journal(folder) as journal:
        journal.put_secret("another", b"kept")
        with journal.transaction():
            journal.forget_secret(NAME)
        assert journal.secret(NAME) is None
        assert journal.secret("another") == b"kept"


def test_repeated_attempts_keep_no_vector_but_the_last(folder: Path) -> None:
    vector = bytes(range(256)) * 400
    with open_journal(folder) as journal:
        for attempt in range(1, 5):
            presence = PhaseKey("run", 1, attempt, Phase.PRESENCE)
            journal.forget_attempts(presence)
            journal.record(presence, vector, b"statement")
            journal.record(replace(presence, phase=Phase.SHARES), b"list", b"shares")
            journal.record(replace(presence, phase=Phase.VALUES), b"received shares", vector)
        stored = "SELECT SUM(LENGTH(request)), SUM(LENGTH(answer)) FROM answers"
        requests, answers = journal._db.execute(stored).fetchone()
        assert max(requests, answers) < 2 * len(vector)
        assert journal.stored_answer(replace(presence, attempt=1)) == b"statement"
        with pytest.raises(Violation):
            journal.answer(replace(presence, attempt=1, phase=Phase.VALUES), b"received shares")
        with pytest.raises(ConflictingRequest):
            journal.answer(replace(presence, attempt=1), b"another start")
        assert journal.answer(replace(presence, phase=Phase.VALUES), b"received shares") == vector
