"""What a coordinator recorded of a whole run: no prototype is in it under `ckks`, and the same search finds `plain`'s.

Every message is searched: statements, roster answers with the evaluation keys, acknowledgements, presence, values;
and for every round's prototypes, and how they moved from round to round.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from algorithms.pfpl import Weighting
from protoseal.config import Agreement, Protection
from protoseal.evaluation.recording import compare, describe
from protoseal.files import SitePrototypes
from protoseal_wire.messages import Phase
from secure_server.store import Received
from tests.conformance.runs import Record, agreement_for, data_for, recording_federation

SITES, ROUNDS = ("site-1", "site-2", "site-3"), 2


class Run:
    """A recorded run of three sites with two classes each, and their prototypes after every round."""

    def __init__(self, protection: Protection, folder: Path) -> None:
        self.agreement: Agreement = agreement_for(
            protection, Weighting.COMPLEMENT, classes=2, dim=64, rounds=ROUNDS
        )
        self.record: Record = {}
        data = data_for(self.agreement, np.ones((len(SITES), 2), dtype=np.bool_))
        with recording_federation(self.agreement, data, folder, self.record, keep=True) as federation:
            federation.run()
            self.received = list(federation.store.received())

    def vectors(self) -> NDArray[np.float64]:
        """Each site's prototypes of every round, and their movements."""
        rows = {site: [self.record[r, site].prototypes.local for r in range(1, ROUNDS + 1)] for site in SITES}
        moved = [second - first for each in rows.values() for first, second in pairwise(each)]
        return np.concatenate([*(row for each in rows.values() for row in each), *moved])

    def last(self) -> dict[str, SitePrototypes]:
        return {site: self.record[ROUNDS, site].prototypes for site in SITES}


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(Protection.CKKS, tmp_path_factory.mktemp("ckks"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(Protection.PLAIN, tmp_path_factory.mktemp("plain"))


def kinds(received: Sequence[Received]) -> set[Phase | None]:
    return {None if each.key is None else each.key.phase for each in received}


def test_under_ckks_nothing_that_was_received_looks_like_a_prototype(encrypted: Run) -> None:
    assert kinds(encrypted.received) == {None, *Phase}
    assert (
        sum(len(each.content) for each in encrypted.received) > 5_000_000
    )  # evaluation keys and ciphertexts
    found = compare(encrypted.received, encrypted.agreement, encrypted.vectors())
    assert not found.leaks
    assert found.threshold < 0.96  # so a copy with a twelfth of noise would have been found


def test_under_plain_the_same_search_finds_them(plain: Run) -> None:
    assert kinds(plain.received) == {None, *Phase} - {Phase.SECRET}
    assert compare(plain.received, plain.agreement, plain.vectors()).leaks


@pytest.mark.parametrize("number", range(1, ROUNDS + 1))
def test_under_plain_each_round_alone_is_enough(plain: Run, number: int) -> None:
    one = [each for each in plain.received if each.key is not None and each.key.round == number]
    assert compare(one, plain.agreement, plain.vectors()).leaks


def test_without_its_values_a_plain_run_shows_nothing(plain: Run) -> None:
    rest = [each for each in plain.received if each.key is None or each.key.phase is not Phase.VALUES]
    assert not compare(rest, plain.agreement, plain.vectors()).leaks


def test_the_description_says_what_was_seen(plain: Run, encrypted: Run) -> None:
    by_plain = {line.what: line for line in describe(plain.received, plain.agreement, plain.last())}
    by_ckks = {
        line.what: line for line in describe(encrypted.received, encrypted.agreement, encrypted.last())
    }
    assert {what for what, line in by_ckks.items() if line.seen} == {
        "messages, their sizes and times",
        "which site has which class",
    }
    assert all(line.seen for line in by_plain.values())
    assert by_plain["prototypes as plain numbers"].evidence.startswith("768 plain numbers and 0 ciphertexts")
    assert by_ckks["prototypes as plain numbers"].evidence.startswith("0 plain numbers and 12 ciphertexts")
    assert "6 signed presence statements" in by_ckks["which site has which class"].evidence
