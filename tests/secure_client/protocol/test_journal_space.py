"""Space of a journal whose answers and documents are as long as a model."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from crypto.keys import StorageKey
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.errors import ConflictingRequest
from secure_client.protocol.journal import Journal

VECTOR = 1_000_000


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(
        tmp_path / "journal.sqlite",
        run="run",
        agreement_hash=bytes(32),
        site="a",
        storage=StorageKey(bytes(32)),
    )


def play_round(journal: Journal, number: int) -> tuple[PhaseKey, bytes]:
    """Store one vector as the site's values and one as its base; return the key and the content of the result."""
    values = PhaseKey("run", number, 1, Phase.VALUES)
    with journal.transaction():
        journal.forget_contents(number)
        journal.record(values, b"list", os.urandom(VECTOR))
    key, result = PhaseKey("run", number, 1, Phase.RESULT), os.urandom(VECTOR)
    with journal.transaction():
        journal.put("base", number, result)
        journal.record(key, result, b"acknowledged")
    return key, result


def test_journal_keeps_each_vector_of_a_round_once(journal: Journal, tmp_path: Path) -> None:
    with journal:
        for number in range(1, 6):
            play_round(journal, number)
    # A megabyte is room for the other rows and the partly filled pages.
    assert (tmp_path / "journal.sqlite").stat().st_size < 3 * VECTOR


def test_journal_knows_a_result_by_its_hash(journal: Journal) -> None:
    with journal:
        key, result = play_round(journal, 1)
        assert journal.answer(key, result) == b"acknowledged"
        with pytest.raises(ConflictingRequest):
            journal.answer(key, result[:-1] + b"?")
        assert journal.request(key) == b""
        assert journal.has_answered(key)
