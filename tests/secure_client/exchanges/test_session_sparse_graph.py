"""A site in a masked sum over a sparse graph: what it is told, what it signs, and which round it is done with."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agreement import Agreement
from crypto.pairwise.member_signatures import verify_sharers
from protoseal_wire.messages import SurvivorSignature
from secure_client.errors import ConflictingRequest, Violation
from tests.secure_client.conftest import OpenSites
from tests.support.grouped import EVERYONE, grouped_agreement
from tests.support.scripted_sums import ScriptedSums, SumAttempt

A, B, C, D = EVERYONE
WITHOUT_D = (A, B, C)


def sparse() -> Agreement:
    """Set up four sites, each with two holders of its shares; none may drop out before all have made them."""
    masking = {"complete_up_to": 3, "max_colluding": 0.0, "max_dropped": 0.0}
    return grouped_agreement(masking=masking)


@pytest.fixture
def play(open_sites: OpenSites) -> ScriptedSums:
    opened = open_sites(sparse())
    opened.set_up(*EVERYONE)
    return opened


def masked(play: ScriptedSums) -> SumAttempt:
    """Play an attempt up to VALUES."""
    begun = play.attempt(*EVERYONE)
    begun.share(*EVERYONE)
    begun.mask(*EVERYONE)
    return begun


def holder_and_owner(begun: SumAttempt) -> tuple[str, str]:
    """Return a site, and another site whose shares the first was sent."""
    share = begun.made[A][0]
    return share.recipient, share.sender


def assert_opens(play: ScriptedSums, begun: SumAttempt) -> None:
    expected = np.sum([play.vector(name, begun) for name in EVERYONE], axis=0)
    assert np.abs(expected).max() > 0.1
    assert (np.abs(begun.opened(EVERYONE) - expected) <= play.rounding(4)).all()


def test_the_graph_is_sparse_and_its_sum_opens(play: ScriptedSums) -> None:
    begun = masked(play)
    assert begun.graph.sparse
    assert {name: len(made) for name, made in begun.made.items()} == dict.fromkeys(EVERYONE, 2)
    assert_opens(play, begun)


def test_a_group_of_three_of_the_same_run_is_complete(play: ScriptedSums) -> None:
    """The agreement and the number of members decide, in each attempt."""
    begun = play.attempt(A, B, D)
    begun.share(A, B, D)
    assert not begun.graph.sparse
    assert {len(made) for made in begun.made.values()} == {2}
    begun.mask(A, B, D)
    assert not begun.masks_with
    expected = np.sum([play.vector(name, begun) for name in (A, B, D)], axis=0)
    assert (np.abs(begun.opened((A, B, D)) - expected) <= play.rounding(3)).all()


def test_each_site_signs_whom_it_masks_with(play: ScriptedSums) -> None:
    begun = masked(play)
    members = play.site(A).session._setup.roster().members
    for name in EVERYONE:
        verify_sharers(members[name], begun.binding, EVERYONE, begun.masks_with[name].signature)


def test_a_second_word_on_who_made_shares_is_refused_for_good(play: ScriptedSums) -> None:
    begun = masked(play)
    with pytest.raises(ConflictingRequest):
        begun.mask(A, sharers=WITHOUT_D, shares=tuple(s for s in begun.shares_for(A) if s.sender != D))


# Who made shares

_TOLD: dict[str, tuple[Callable[[SumAttempt, str], None], str]] = {
    "nobody": (lambda begun, name: begun.mask(name, sharers=()), "sharers"),
    "all but itself": (
        lambda begun, name: begun.mask(name, sharers=tuple(each for each in EVERYONE if each != name)),
        "sharers",
    ),
    "all but one whose share came": (
        lambda begun, name: begun.mask(name, sharers=tuple(each for each in EVERYONE if each != A)),
        A,
    ),
    "a stranger too": (
        lambda begun, name: begun.mask(name, sharers=(*EVERYONE, "clinic-z")),
        "clinic-z",
    ),
    "fewer than the threshold": (
        lambda begun, name: begun.mask(name, sharers=tuple(sorted({A, name}))),
        "threshold|missing",
    ),
}


@pytest.mark.parametrize("case", _TOLD)
def test_odd_words_on_who_made_shares_are_refused(play: ScriptedSums, case: str) -> None:
    begun = play.attempt(*EVERYONE)
    begun.share(*EVERYONE)
    holder, _ = holder_and_owner(begun)
    tell, refusal = _TOLD[case]
    with pytest.raises(Violation, match=refusal):
        tell(begun, holder)
    assert holder not in begun.masked


def test_a_share_that_its_owner_did_not_make_is_refused(play: ScriptedSums) -> None:
    """The coordinator chooses no holder: not by passing on another's share, nor by naming another owner."""
    begun = play.attempt(*EVERYONE)
    begun.share(*EVERYONE)
    share, other = begun.made[A][0], begun.made[B][0]
    (outside,) = set(EVERYONE) - {A, *(each.recipient for each in begun.made[A])}
    for forged in (replace(share, recipient=outside), replace(other, sender=A, recipient=outside)):
        with pytest.raises(Violation, match=A):
            begun.mask(outside, shares=(forged,))


def test_where_all_hold_shares_nobody_says_who_made_them(open_sites: OpenSites) -> None:
    play = open_sites(grouped_agreement())
    play.set_up(*EVERYONE)
    begun = play.attempt(*EVERYONE)
    begun.share(*EVERYONE)
    with pytest.raises(Violation, match="sharers"):
        begun.mask(A, sharers=EVERYONE)


# Under whose word shares are released

_Sharers = Callable[[SumAttempt, str, tuple[SurvivorSignature, ...]], tuple[SurvivorSignature, ...]]
_WORDS: dict[str, tuple[_Sharers, str]] = {
    "no owner's": (lambda _begun, _name, _owners: (), "unexpected"),
    "not every owner's": (lambda _begun, _name, owners: owners[1:], "unexpected"),
    "one of another site too": (
        lambda begun, name, owners: (*owners, begun.masks_with[name]),
        "unexpected",
    ),
    "another site's in an owner's name": (
        lambda begun, name, owners: (
            replace(owners[0], signature=begun.masks_with[name].signature),
            *owners[1:],
        ),
        "mask-sharers",
    ),
    "on survivors": (
        lambda begun, _name, owners: (
            SurvivorSignature(owners[0].site, begun.sign(EVERYONE, owners[0].site)[0].signature),
            *owners[1:],
        ),
        "mask-sharers",
    ),
}


@pytest.mark.parametrize("case", _WORDS)
def test_no_share_is_released_but_under_each_owners_word_on_the_same_set(
    play: ScriptedSums, case: str
) -> None:
    begun = masked(play)
    signatures = begun.sign(EVERYONE, *EVERYONE)
    holder, _ = holder_and_owner(begun)
    change, refusal = _WORDS[case]
    with pytest.raises(Violation, match=refusal):
        begun.release(
            EVERYONE,
            signatures,
            holder,
            sharers=change(begun, holder, begun.owners(holder, EVERYONE)),
        )
    begun.release(EVERYONE, signatures, holder)


def test_the_word_of_an_owner_that_masks_with_others_is_refused(play: ScriptedSums) -> None:
    """The owner was told of all members but one, and the holders of its shares were told of all."""
    begun = play.attempt(*EVERYONE)
    begun.share(*EVERYONE)
    holder = next(each.recipient for each in begun.made[A] if each.recipient != C)
    told = (A, B, D)  # without clinic-c there are still three holders of each class
    begun.mask(B, C, D)
    begun.mask(A, sharers=told, shares=tuple(each for each in begun.shares_for(A) if each.sender != C))
    signatures = begun.sign(told, *told)
    with pytest.raises(Violation, match="mask-sharers"):
        begun.release(told, signatures, holder)


def test_where_all_hold_shares_no_such_word_is_taken(open_sites: OpenSites) -> None:
    play = open_sites(grouped_agreement())
    play.set_up(*EVERYONE)
    begun = masked(play)
    signatures = begun.sign(EVERYONE, *EVERYONE)
    with pytest.raises(Violation, match="unexpected"):
        begun.release(EVERYONE, signatures, A, sharers=signatures[1:2])


# Which round is over


def test_a_site_that_signed_survivors_refuses_further_attempts_of_the_round(
    play: ScriptedSums, caplog: pytest.LogCaptureFixture
) -> None:
    begun = masked(play)
    begun.sign(EVERYONE, A)
    with (
        caplog.at_level(logging.ERROR, logger="protoseal.site"),
        pytest.raises(Violation, match="attempt 1"),
    ):
        play.attempt(A, attempt=2)
    assert "asked for round 1 again after this site signed its survivors" in caplog.text
    play.attempt(*(B, C, D), attempt=2)
    play.attempt(*EVERYONE, round_number=2)


def test_with_a_complete_graph_a_site_that_signed_takes_part_again(open_sites: OpenSites) -> None:
    play = open_sites(grouped_agreement())
    play.set_up(*EVERYONE)
    begun = masked(play)
    begun.sign(EVERYONE, *EVERYONE)
    again = play.attempt(*EVERYONE, attempt=2)
    again.share(*EVERYONE)


def test_secrets_of_an_attempt_are_erased_once_shares_are_released(
    play: ScriptedSums, tmp_path: Path
) -> None:
    begun = masked(play)
    journal = play.site(A).journal
    (sealed,) = journal._db.execute("SELECT sealed FROM secrets WHERE name LIKE 'mask secrets%'").fetchone()
    assert any(sealed[40:] in path.read_bytes() for path in (tmp_path / A).iterdir())
    begun.release(EVERYONE, begun.sign(EVERYONE, *EVERYONE), A)
    rows = journal._db.execute("SELECT name FROM secrets").fetchall()
    assert not [row for row in rows if " round " in row[0]]
    assert not any(sealed[40:] in path.read_bytes() for path in (tmp_path / A).iterdir())
