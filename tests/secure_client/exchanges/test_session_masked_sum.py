"""A site in a masked sum: the order of steps, restarts at each of them, and what it keeps of its secrets.

A masked sum of everyone, step by step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from crypto.errors import BoundError
from crypto.pairwise.shares import SealedShare
from protoseal_wire.messages import Phase, SurvivorSignature
from secure_client.errors import Violation
from tests.secure_client.conftest import OpenSites
from tests.support.grouped import EVERYONE, PARAMETERS, grouped_agreement
from tests.support.scripted_sums import ScriptedSums, SumAttempt

STEPS = (Phase.SHARES, Phase.VALUES, Phase.SURVIVORS, Phase.UNMASK)

A, B, C, D = EVERYONE


@pytest.fixture
def play(open_sites: OpenSites) -> ScriptedSums:
    opened = open_sites(grouped_agreement())
    opened.set_up(*EVERYONE)
    return opened


def secrets_kept(play: ScriptedSums, name: str) -> set[str]:
    """Return the names of the attempts' secrets in a site's journal."""
    rows = play.site(name).journal._db.execute("SELECT name FROM secrets").fetchall()
    return {row[0] for row in rows if " round " in row[0]}


@pytest.mark.parametrize("phase", STEPS[1:])
def test_no_step_comes_before_the_one_it_follows(play: ScriptedSums, phase: Phase) -> None:
    begun = play.attempt(*EVERYONE)
    with pytest.raises(Violation, match=STEPS[STEPS.index(phase) - 1].name):
        begun.ask(A, phase, b"")


def test_no_step_comes_after_the_result(play: ScriptedSums) -> None:
    result = play.play_sum(*EVERYONE)
    begun = play.attempt(*EVERYONE, round_number=2)
    begun.share(*EVERYONE)
    play.give_result(A, result, round_number=2)
    with pytest.raises(Violation, match="VALUES"):
        begun.mask(A)


def test_a_site_that_dropped_out_takes_its_groups_result_but_not_one_of_an_attempt_it_was_not_in(
    play: ScriptedSums,
) -> None:
    result = play.play_sum(A, B, D)
    with pytest.raises(Violation, match="attempt 1"):
        play.give_result(C, result)
    begun = play.attempt(
        *EVERYONE, round_number=2, start={C: (play.site(A).learner.received.base_hash, result)}
    )
    survivors = (A, B, D)
    second = play.result_of(begun.carried_out(survivors), begun, survivors)
    for name in EVERYONE:
        play.give_result(name, second, round_number=2)
    assert play.site(C).learner.received.base_hash == play.site(A).learner.received.base_hash


# Secrets


def test_secrets_of_an_attempt_are_erased_once_shares_are_released(play: ScriptedSums) -> None:
    begun = played_up_to(play, Phase.SURVIVORS)
    assert len(secrets_kept(play, A)) == 2
    begun.release(EVERYONE, begun.sign(EVERYONE, *EVERYONE), A)
    assert secrets_kept(play, A) == set()
    assert len(secrets_kept(play, B)) == 2


@pytest.mark.parametrize("ends", ["a result", "a newer attempt", "the run's end"])
def test_secrets_of_an_attempt_without_its_last_step_are_erased_when_it_is_over(
    play: ScriptedSums, ends: str
) -> None:
    begun = play.attempt(*EVERYONE)
    begun.share(*EVERYONE)
    before = secrets_kept(play, A)
    assert len(before) == 2
    if ends == "a result":
        survivors = (B, C, D)
        begun.mask(*survivors)
        class_two_withheld = np.zeros(24 + PARAMETERS)
        play.give_result(A, play.result_of(class_two_withheld, begun, survivors))
    elif ends == "a newer attempt":
        play.attempt(*EVERYONE, attempt=2)
    else:
        play.site(A).session.end()
    assert not before & secrets_kept(play, A)


def test_a_site_that_erased_its_secrets_signs_no_survivors(play: ScriptedSums) -> None:
    """The coordinator would count on its shares at UNMASK, when a round can no longer be attempted again."""
    begun = played_up_to(play, Phase.VALUES)
    play.site(A).session.end()
    play.restart(A)
    with pytest.raises(Violation):
        begun.sign(EVERYONE, A)
    assert len(begun.sign(EVERYONE, B, C, D)) == 3


def test_each_attempt_has_keys_of_its_own(play: ScriptedSums) -> None:
    first = play.attempt(*EVERYONE)
    second = play.attempt(*EVERYONE, attempt=2)
    every = [
        key for begun in (first, second) for keys in begun.public.values() for key in (keys.mask, keys.share)
    ]
    assert len(set(every)) == 16


def test_a_share_that_does_not_open_is_logged_and_the_sum_opens_without_it(
    play: ScriptedSums, caplog: pytest.LogCaptureFixture
) -> None:
    """A member that shares badly keeps no other from answering, nor makes it leave the run."""
    begun = play.attempt(*EVERYONE)
    begun.share(*EVERYONE)
    begun.made[D] = (_spoilt(begun, begun.made[D][0]), *begun.made[D][1:])
    begun.mask(*EVERYONE)
    with caplog.at_level(logging.ERROR, logger="protoseal.site"):
        opened = begun.opened(EVERYONE)
    assert f"the share that {D} made for this site is unusable" in caplog.text
    expected = np.sum([play.vector(name, begun) for name in EVERYONE], axis=0)
    assert (np.abs(opened - expected) <= play.rounding(4)).all()


def _spoilt(begun: SumAttempt, share: SealedShare) -> SealedShare:
    """Put garbage in the place of the sealed pair, under its sender's good signature."""
    body = bytes(len(share.sealed))
    fields = (*begun.binding.fields(), share.sender.encode(), share.recipient.encode(), body)
    signature = begun.play.parties[share.sender].credentials.sign("mask-share", *fields)
    return replace(share, sealed=body, signature=signature)


# Values


def test_a_value_beyond_its_bound_is_never_masked(
    play: ScriptedSums, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should a value grow between the statement and the sum."""
    begun = play.attempt(*EVERYONE)
    begun.share(*EVERYONE)
    monkeypatch.setattr(play.site(A).learner.values, "averaged_part", lambda: np.full(PARAMETERS, np.nan))
    with pytest.raises(BoundError, match="segment 1"):
        begun.mask(A)


def test_a_class_that_too_few_of_the_group_hold_is_sent_as_zeros(
    play: ScriptedSums, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sites hold class 2 without clinic-d, and three are agreed: its sum is zeros, though both sites train it."""
    present = (A, B, C)
    rows = play.attempt(*present).carried_out(present)[:24].reshape(3, -1)
    assert rows[:2].any(axis=1).all()
    assert not rows[2].any()
    assert np.linalg.norm(play.site(A).learner.train_round(1)[0][2]) > 0.1
    monkeypatch.setattr(
        "agreement.derived.cohorts.active_classes", lambda presence, _: np.ones(3, dtype=np.bool_)
    )
    monkeypatch.setattr(
        "secure_client.protocol.secure_aggregation.SecureAggregation._check_class_holders", lambda *_: None
    )
    again = play.attempt(*present, round_number=2).carried_out(present)[:24].reshape(3, -1)
    assert again[2].any()


_CASES: dict[str, tuple[Callable[[SumAttempt], None], str]] = {
    "a stranger's share": (
        lambda begun: begun.mask(A, shares=(replace(begun.shares_for(A)[0], sender="clinic-z"),)),
        "clinic-z",
    ),
    "a share for another site": (
        lambda begun: begun.mask(A, shares=begun.shares_for(B)),
        "due",
    ),
    "the site's own name": (
        lambda begun: begun.mask(
            A, shares=(*begun.shares_for(A)[:2], replace(begun.made[A][0], recipient=A))
        ),
        "sender clinic-a",
    ),
}


@pytest.mark.parametrize("case", _CASES)
def test_shares_that_are_not_the_members_are_refused(play: ScriptedSums, case: str) -> None:
    begun = play.attempt(*EVERYONE)
    begun.share(*EVERYONE)
    ask, refusal = _CASES[case]
    with pytest.raises(Violation, match=refusal):
        ask(begun)


def test_the_journals_files_hold_no_secret_of_an_attempt_that_is_over(
    play: ScriptedSums, tmp_path: Path
) -> None:
    play.attempt(*EVERYONE)
    (sealed,) = (
        play.site(A)
        .journal._db.execute("SELECT sealed FROM secrets WHERE name LIKE 'mask secrets%'")
        .fetchone()
    )
    assert _anywhere(sealed[40:], tmp_path / A)
    play.attempt(*EVERYONE, attempt=2)
    assert not _anywhere(sealed[40:], tmp_path / A)


def _anywhere(content: bytes, folder: Path) -> bool:
    return any(content in path.read_bytes() for path in folder.iterdir())


def played_up_to(play: ScriptedSums, last: Phase) -> SumAttempt:
    """Play all steps to ``last``."""
    begun = play.attempt(*EVERYONE)
    signatures: list[SurvivorSignature] = []
    for phase in STEPS[: STEPS.index(last) + 1]:
        for name in EVERYONE:
            match phase:
                case Phase.SHARES:
                    begun.share(name)
                case Phase.VALUES:
                    begun.mask(name)
                case Phase.SURVIVORS:
                    signatures += begun.sign(EVERYONE, name)
                case _:
                    begun.released |= begun.release(EVERYONE, tuple(signatures), name)
    return begun
