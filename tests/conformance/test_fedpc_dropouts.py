"""FedPC: sites that vanish in each phase of a round, and come back. What is left is as under `plain`, or nothing is.

In every run the sites 1, 3, 5, 7 and 9 are one group and 2, 4, 6 and 8 the other, so that each can lose one: nobody's
class falls below three holders without the two that are lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agreement import Protection
from protoseal_wire.messages import Phase
from tests.conformance import sum_equations
from tests.conformance.dropout_schedule import AFTER, EVERYONE, LOST, each_phase, staying, two_lost
from tests.conformance.grouped_runs import (
    Transcript,
    compare_predictions,
    grouped_agreement,
    run_grouped,
    two_kinds,
)
from tests.conformance.runs import data_for
from tests.conformance.stepped_federation import Loss
from tests.support.marks import full_but


def run(folder: Path, protection: Protection, rounds: int, losses: Sequence[Loss]) -> Transcript:
    holds = two_kinds()
    agreement = grouped_agreement(protection, classes=holds.shape[1], dim=16, rounds=rounds)
    return run_grouped(agreement, data_for(agreement, holds), folder, losses)


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Transcript:
    """Each round loses two sites in another phase; in the round after they are back."""
    losses = two_lost(Protection.MASKED)
    return run(tmp_path_factory.mktemp("masked"), Protection.MASKED, AFTER, losses)


@pytest.fixture(scope="module")
def unheard(tmp_path_factory: pytest.TempPathFactory) -> Transcript:
    """The two do answer, the answer is lost, and they are back for the result; that they got it, is lost in round 6."""
    losses = [
        replace(each, answer_lost=True, back=each.phase is not Phase.RESULT)
        for each in two_lost(Protection.MASKED)
    ]
    return run(tmp_path_factory.mktemp("unheard"), Protection.MASKED, AFTER, losses)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Transcript:
    """Return the transcript under `plain`, with the same survivors in every round."""
    return run(tmp_path_factory.mktemp("plain"), Protection.PLAIN, AFTER, two_lost(Protection.PLAIN))


@each_phase
def test_survivors_get_their_result_when_each_group_loses_a_site(
    masked: Transcript, number: int, phase: Phase
) -> None:
    assert masked.summary()[number - 1] == (number, 1, False)
    assert sum_equations.contributors(masked, number) == staying(phase)
    assert {site for round_number, site in masked.got if round_number == number} == set(EVERYONE) - set(LOST)
    assert sum_equations.excess(masked, number) <= 1.0
    assert sum_equations.excess(masked, number, rounded=True) <= 1.0


@each_phase
def test_returned_sites_train_from_the_base_of_their_group(
    masked: Transcript, number: int, phase: Phase
) -> None:
    for group in masked.groups:
        (base,) = {masked.got[number, site].hash for site in group if site not in LOST}
        for site in group:
            start = masked.starts[number + 1, 1, site]
            assert start.base == base == masked.bases[number + 1, 1, site]
            assert (start.catch_up is not None) == (site in LOST)


@pytest.mark.full
@each_phase
def test_the_same_survivors_under_plain_get_the_same(
    masked: Transcript, plain: Transcript, number: int, phase: Phase
) -> None:
    assert sum_equations.contributors(plain, number) == staying(phase)
    assert sum_equations.excess(plain, number) <= 1.0
    compare_predictions(masked, plain, number)


@each_phase
def test_answers_that_are_lost_and_sites_that_are_back_for_the_result(
    unheard: Transcript, number: int, phase: Phase
) -> None:
    assert unheard.summary()[number - 1] == (number, 1, False)
    assert sum_equations.contributors(unheard, number) == staying(phase)
    assert sum_equations.excess(unheard, number) <= 1.0
    for site in LOST:
        got_result = phase is not Phase.PRESENCE  # who was not seen at PRESENCE takes no part
        assert ((number, site) in unheard.got) == got_result or phase is Phase.RESULT
        start = unheard.starts[number + 1, 1, site]
        assert (start.catch_up is None) == (phase not in (Phase.PRESENCE, Phase.RESULT))
        assert start.base == unheard.bases[number + 1, 1, site]


@pytest.mark.parametrize("name", full_but(["masked", "unheard", "plain"], "masked", "unheard"))
def test_every_site_takes_part_in_the_last_round(name: str, request: pytest.FixtureRequest) -> None:
    transcript: Transcript = request.getfixturevalue(name)
    assert sum_equations.contributors(transcript, AFTER) == EVERYONE
    assert {site for number, site in transcript.got if number == AFTER} == set(EVERYONE)
    assert sum_equations.excess(transcript, AFTER) <= 1.0


# More than can be gone on without

CLUSTERING, TOO_FEW_VALUES, TOO_FEW_HOLDERS, TOO_FEW_SIGNATURES, TOO_FEW_SHARES = range(5)
SECOND = ("site-2", "site-4", "site-6", "site-8")
FIRST = ("site-1", "site-3", "site-5", "site-7", "site-9")


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Transcript:
    """Every round loses more than its group, or a class, can do without; two rounds after the last are undisturbed."""
    losses = [
        Loss("site-9", CLUSTERING, Phase.VALUES),
        *(Loss(site, TOO_FEW_VALUES, Phase.VALUES) for site in SECOND[:2]),
        Loss("site-3", TOO_FEW_HOLDERS, Phase.SHARES),  # one of three of the first group that have class 4
        *(Loss(site, TOO_FEW_SIGNATURES, Phase.SURVIVORS) for site in ("site-1", "site-9")),
        *(Loss(site, TOO_FEW_SHARES, Phase.UNMASK) for site in SECOND[:2]),
    ]
    return run(tmp_path_factory.mktemp("failing"), Protection.MASKED, TOO_FEW_SHARES + 2, losses)


def test_a_site_that_the_clustering_went_on_without_joins_the_largest_group(failing: Transcript) -> None:
    assert {attempt for number, attempt, _ in failing.put if number == CLUSTERING} == {1, 2}
    assert (CLUSTERING, 2, "site-9") not in failing.put
    assert failing.groups == (FIRST, SECOND)


@pytest.mark.parametrize(
    ("number", "contributors"),
    [
        (TOO_FEW_VALUES, FIRST),  # the two that are left of the second group sit the next attempt out
        (TOO_FEW_HOLDERS, tuple(sorted({*EVERYONE} - {"site-3"}))),
        (TOO_FEW_SIGNATURES, SECOND),  # three that sent values with the two would not again: a sum takes four
    ],
)
def test_a_round_that_loses_too_many_sites_is_repeated_without_them(
    failing: Transcript, number: int, contributors: tuple[str, ...]
) -> None:
    assert failing.summary()[number - 1] == (number, 2, False)
    assert sum_equations.contributors(failing, number) == contributors
    assert {site for round_number, site in failing.got if round_number == number} == set(contributors)
    assert sum_equations.excess(failing, number) <= 1.0


def test_an_attempt_that_is_repeated_has_keys_of_its_own(failing: Transcript) -> None:
    """Equal vectors under equal masks would show the sites that dropped out in between."""
    keys = failing.stated_keys()
    both = {site: (keys[TOO_FEW_SIGNATURES, 1, site], keys[TOO_FEW_SIGNATURES, 2, site]) for site in SECOND}
    assert all(
        {first.mask, first.share}.isdisjoint({second.mask, second.share}) for first, second in both.values()
    )
    every = [key for each in keys.values() for key in (each.mask, each.share)]
    assert len(set(every)) == len(every)


def test_a_round_whose_sum_cannot_be_opened_is_abandoned_and_nobody_trains_from_it(
    failing: Transcript,
) -> None:
    assert failing.summary()[TOO_FEW_SHARES - 1] == (TOO_FEW_SHARES, 1, True)
    assert not {site for number, site in failing.got if number == TOO_FEW_SHARES}
    first, second = (
        failing.got[TOO_FEW_HOLDERS, "site-1"].hash,
        failing.got[TOO_FEW_SIGNATURES, "site-6"].hash,
    )
    for site in (*FIRST, *SECOND[2:]):
        base = failing.starts[TOO_FEW_SHARES + 1, 1, site].base
        assert base == (first if site in FIRST else second)


def test_the_round_after_an_abandoned_one_leaves_out_the_sites_that_caused_it(failing: Transcript) -> None:
    assert sum_equations.contributors(failing, TOO_FEW_SHARES + 1) == FIRST
    assert sum_equations.contributors(failing, TOO_FEW_SHARES + 2) == EVERYONE
    for number in (TOO_FEW_SHARES + 1, TOO_FEW_SHARES + 2):
        assert failing.summary()[number - 1] == (number, 1, False)
        assert sum_equations.excess(failing, number) <= 1.0


def test_a_group_without_a_result_starts_from_the_last_that_it_had(failing: Transcript) -> None:
    assert {failing.starts[TOO_FEW_VALUES + 1, 1, site].base for site in SECOND} == {b""}
    last = {failing.got[TOO_FEW_SIGNATURES, site].hash for site in SECOND}
    assert {failing.starts[TOO_FEW_SHARES + 2, 1, site].base for site in SECOND} == last
