"""A coordinator or a site that subtracts the results of two rounds in which the sites' rows are the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agreement import (
    Agreement,
    AveragingSection,
    Extractor,
    FeddbpSection,
    Method,
    PrivacySection,
    Protection,
)
from algorithms.pfpl import Weighting
from privacy.ledger.budget_account import read_account
from protoseal.simulation.local_federation import LocalFederation
from protoseal_wire.messages import Phase
from secure_client.errors import Violation
from secure_client.output.site_log import SiteRound
from secure_client.privacy.releases import Releases
from tests.adversary.attack import Plays
from tests.conformance.drop_outs import Clock, Loss, play, set_deadlines
from tests.support.grouped import EVERYONE, grouped_agreement
from tests.support.scripted_sums import ScriptedSums, Vector
from tests.support.small import short_training, small_agreement, small_data

A, B, C, D = EVERYONE
WITHOUT_C = (A, B, D)
FROZEN = short_training("tests.support.tiny_models:build_relu", frozen_extractor=True)
ONE_BRANCH = FeddbpSection(decision=False)
ONE_RELEASE = PrivacySection(
    clip=3.0, noise_multiplier=0.2, min_count=1.0, release_every=3, extractor=Extractor.TRAINED
)


def feddbp(**changes: Any) -> Agreement:
    return grouped_agreement(
        method=Method.FEDDBP, feddbp=ONE_BRANCH, averaging=AveragingSection(), rounds=5, **changes
    )


CASES: dict[str, Callable[[], Agreement]] = {
    "fedpc, frozen": lambda: grouped_agreement(training=FROZEN, rounds=5),
    "feddbp, frozen": lambda: feddbp(training=FROZEN),
    "fedpc, one release": lambda: grouped_agreement(privacy=ONE_RELEASE, rounds=5),
    "feddbp, one release": lambda: feddbp(privacy=ONE_RELEASE),
}
each_case = pytest.mark.parametrize("case", CASES)


def rows_in_sum(play: ScriptedSums, number: int, survivors: tuple[str, ...], attempt: int = 1) -> Vector:
    """Open a round's sum over the survivors as an honest coordinator does, and return its rows (K·d,)."""
    begun = play.attempt(*EVERYONE, round_number=number, attempt=attempt)
    opened = begun.carried_out(survivors)
    result = play.result_of(opened, begun, survivors)
    for name in EVERYONE:
        play.give_result(name, result, round_number=number, attempt=attempt)
    return opened[: play.agreement.layout.prototypes]


def own_rows(play: ScriptedSums, name: str, number: int) -> Vector:
    rows, counts = play.site(name).learner.train_round(number)
    return np.where((counts > 0)[:, None], rows, 0.0).ravel()


@each_case
def test_two_sums_of_unmoved_rows_differ_by_a_row_where_each_round_has_rows(
    plays: Plays, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The double: every round's sum has the rows of the one release."""
    monkeypatch.setattr(Agreement, "sends_rows", lambda *_: True)
    monkeypatch.setattr(
        Releases, "is_due", lambda _, number, released: released is None or released == 0 < number
    )
    play = plays.sums(CASES[case]())
    play.set_up(*EVERYONE)
    first, second = rows_in_sum(play, 1, EVERYONE), rows_in_sum(play, 2, WITHOUT_C)
    secret = own_rows(play, C, 1)
    # Class 2, which only three sites hold, is in both sums: C is not one of its holders.
    assert np.abs(secret).max() > 0.1
    np.testing.assert_allclose(first - second, secret, atol=1e-6)


@each_case
def test_rounds_with_the_same_rows_have_one_sum_of_them(plays: Plays, case: str) -> None:
    """No later sum has any row, also not of a site that was killed in between or that missed the first sum."""
    play = plays.sums(CASES[case]())
    play.set_up(*EVERYONE)
    first = rows_in_sum(play, 1, WITHOUT_C)
    expected = np.sum([own_rows(play, name, 1) for name in WITHOUT_C], axis=0)
    np.testing.assert_allclose(first, expected, atol=1e-6)
    for number, survivors in ((2, EVERYONE), (3, WITHOUT_C)):
        play.restart(C)
        # No component of a row is negative (FedPC), and no site's could cancel another's by chance.
        assert not rows_in_sum(play, number, survivors).any()


@each_case
def test_a_site_that_was_killed_between_its_shares_and_the_result_sends_no_rows_again(
    plays: Plays, case: str
) -> None:
    """The coordinator opens the sum and says that the round was abandoned."""
    play = plays.sums(CASES[case]())
    play.set_up(*EVERYONE)
    begun = play.attempt(*EVERYONE)
    assert begun.carried_out(EVERYONE).any()
    for name in EVERYONE:
        play.restart(name)
    with pytest.raises(Violation):
        play.attempt(C, round_number=1, attempt=2)
    later = play.attempt(*EVERYONE, round_number=2)
    assert not later.cohort.holds.any()
    opened = later.carried_out(WITHOUT_C)
    assert not opened[: play.agreement.layout.prototypes].any()


def test_a_first_sum_that_did_not_open_may_be_asked_for_again_in_its_round_alone(
    plays: Plays,
) -> None:
    play = plays.sums(CASES["feddbp, frozen"]())
    play.set_up(*EVERYONE)
    unopened = play.attempt(*EVERYONE)
    unopened.share(*EVERYONE)
    unopened.mask(*EVERYONE)
    assert rows_in_sum(play, 1, EVERYONE, attempt=2).any()
    assert not rows_in_sum(play, 2, EVERYONE).any()


def test_a_site_that_missed_a_releases_round_takes_part_without_prototypes_and_pays_for_none(
    plays: Plays,
) -> None:
    play = plays.sums(CASES["feddbp, one release"]())
    play.set_up(*EVERYONE)
    missed = play.play_sum(*WITHOUT_C)
    begun = play.attempt(
        *EVERYONE, round_number=2, start={C: (play.site(A).learner.received.base_hash, missed)}
    )
    opened = begun.carried_out(EVERYONE)
    assert not opened[: play.agreement.layout.prototypes].any()
    assert not read_account(play.budget(C).ledger).entries


def test_the_next_release_has_a_sum_of_its_own(plays: Plays) -> None:
    """Round 4 begins the second period; what the first and second sum differ by is noise over all sites."""
    play = plays.sums(CASES["feddbp, one release"]())
    play.set_up(*EVERYONE)
    rows = {number: rows_in_sum(play, number, EVERYONE) for number in range(1, 6)}
    assert [number for number, each in rows.items() if each.any()] == [1, 4]
    assert np.abs(rows[4] - rows[1]).max() > 1e-3


# PFPL, whose sites each get an answer of their own


def targets(protection: Protection, folder: Path) -> dict[int, Vector]:
    """Return clinic-a's targets (K, d) after each round of a run that clinic-d misses the second round of."""
    agreement = small_agreement(protection, Weighting.UNIFORM, rounds=3)
    training = short_training("tests.support.tiny_models:build_tanh", frozen_extractor=True)
    agreement = agreement.model_copy(update={"training": training})
    found, clock = {}, Clock()

    def take(name: str, figures: SiteRound) -> None:
        if name == A:
            found[figures.round] = by_name[A].learner.predictor.prototypes().personal

    with LocalFederation(agreement, small_data(agreement), on_round=take) as federation:
        by_name = {site.name: site for site in federation.sites}
        set_deadlines(federation, folder / "keys.bin", clock)
        play(federation, clock, [Loss(D, 2, Phase.PRESENCE)])
        own = by_name[A].learner.values.latest()[0] * agreement.own_share
        found[0] = by_name[D].learner.values.latest()[0]
    return {
        number: (each - own) / (1 - agreement.own_share) if number else each for number, each in found.items()
    }


@pytest.mark.parametrize("protection", [Protection.PLAIN, Protection.CKKS])
def test_a_site_cannot_subtract_two_answers_of_unmoved_rows(
    tmp_path: Path, protection: Protection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Class 0 has four holders: with answers in both rounds, the one that misses the second follows from them."""
    peers = targets(protection, tmp_path)
    np.testing.assert_array_equal(peers[1], peers[2])
    np.testing.assert_array_equal(peers[1], peers[3])
    monkeypatch.setattr(Agreement, "sends_rows", lambda *_: True)
    peers = targets(protection, tmp_path)
    np.testing.assert_allclose(3 * peers[1][0] - 2 * peers[2][0], peers[0][0], atol=1e-5)
