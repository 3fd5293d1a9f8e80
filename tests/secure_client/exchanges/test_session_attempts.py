"""Further attempts of a round: those that a site joins after it sent masked values in an earlier attempt."""

from __future__ import annotations

import numpy as np
import pytest

from secure_client.errors import Violation
from tests.secure_client.conftest import OpenSites
from tests.support.grouped import EVERYONE, grouped_agreement
from tests.support.scripted_sums import ScriptedSums, SumAttempt

A, B, C, D = EVERYONE


@pytest.fixture
def play(open_sites: OpenSites) -> ScriptedSums:
    opened = open_sites(grouped_agreement())
    opened.set_up(*EVERYONE)
    return opened


def masked(play: ScriptedSums, attempt: int, *names: str, round_number: int = 1) -> SumAttempt:
    """Play an attempt that is given up once everyone has sent masked values."""
    begun = play.attempt(*names, round_number=round_number, attempt=attempt)
    begun.share(*names)
    begun.mask(*names)
    return begun


def test_an_attempt_with_the_thresholds_number_of_the_earlier_ones_sites_is_carried_out(
    play: ScriptedSums,
) -> None:
    masked(play, 1, *EVERYONE)
    left = (A, B, D)
    begun = play.attempt(*left, attempt=2)
    expected = np.sum([play.vector(name, begun) for name in left], axis=0)
    assert (np.abs(begun.carried_out(left) - expected) <= play.rounding(3)).all()


def test_an_attempt_with_fewer_of_the_earlier_sites_is_refused_by_each(open_sites: OpenSites) -> None:
    play = open_sites(grouped_agreement(min_holders=2, min_sites=2, allow_fewer_holders_reveals_peers=True))
    for name in EVERYONE:
        play.insist(name, 2)
    play.set_up(*EVERYONE)
    masked(play, 1, *EVERYONE)
    begun = play.attempt(A, B, attempt=2)
    refusal = "2 of the 4"
    for name in (A, B):
        with pytest.raises(Violation, match=refusal):
            begun.share(name)


def test_newcomers_do_not_stand_in_for_those_that_are_gone(play: ScriptedSums) -> None:
    """The members know nothing of clinic-d in the first attempt, in which it was absent."""
    masked(play, 1, A, B, C)
    begun = play.attempt(A, B, D, attempt=2)
    begun.share(D)
    with pytest.raises(Violation, match="2 of the 3"):
        begun.share(A)
    play.attempt(*EVERYONE, attempt=3).carried_out(EVERYONE)


def test_an_attempt_in_which_the_site_made_shares_alone_does_not_count(play: ScriptedSums) -> None:
    """Its vector is in no sum of that attempt."""
    first = play.attempt(A, B, C)
    first.share(A, B, C)
    first.mask(B)
    second = play.attempt(A, B, D, attempt=2)
    second.share(A)
    with pytest.raises(Violation, match="2 of the 3"):
        second.share(B)


@pytest.mark.parametrize(
    ("first", "second", "refused", "named"),
    [
        (EVERYONE, (A, B, D), (A, B, C), "2 of the 3 sites that attempt 2 listed"),
        ((A, B, C), EVERYONE, (A, B, D), "2 of the 3 sites that attempt 1 listed"),
    ],
)
def test_every_earlier_attempt_counts(
    play: ScriptedSums, first: tuple[str, ...], second: tuple[str, ...], refused: tuple[str, ...], named: str
) -> None:
    masked(play, 1, *first)
    masked(play, 2, *second)
    with pytest.raises(Violation, match=named):
        play.attempt(*refused, attempt=3).share(A)
    play.attempt(*EVERYONE, attempt=4).carried_out(EVERYONE)


def test_another_rounds_attempts_do_not_count(play: ScriptedSums) -> None:
    masked(play, 1, A, B, C)
    play.attempt(A, B, D, round_number=2).check_opens((A, B, D))
