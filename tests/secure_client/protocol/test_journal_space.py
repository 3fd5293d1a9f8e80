"""Space of a journal whose answers and documents are as long as a model."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

import pytest

from crypto.keys import StorageKey
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.errors import ConflictingRequest
from secure_client.protocol.journal import Journal
from tests.support.simulations import run_federation
from tests.support.small import small_agreement, small_data

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


def test_session_keeps_the_last_rounds_contents_until_this_rounds_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every vector takes the place of the last round's in the file, and a site keeps those of one round."""
    record, kept = Journal.record, defaultdict[Phase, set[int]](set)

    def note(journal: Journal, key: PhaseKey, request: bytes, answer: bytes) -> None:
        record(journal, key, request, answer)
        if key.round == 3:
            rows = journal._db.execute("SELECT round FROM answers WHERE length(request) + length(answer) > 0")
            kept[key.phase] |= {number for (number,) in rows if number}

    monkeypatch.setattr(Journal, "record", note)
    agreement = small_agreement(rounds=3)
    run_federation(agreement, small_data(agreement), tmp_path)
    assert kept[Phase.PRESENCE] == {2, 3}
    assert kept[Phase.VALUES] == kept[Phase.RESULT] == {3}
