"""Records behind rotated rows, told by lengths and inner products: a class of one record is a fingerprint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
import pytest

from protoseal.attacks.cases import Case, Measurement, Verdict
from protoseal.attacks.prototype_inversion import PrototypeInversion
from protoseal.attacks.prototype_membership import PrototypeMembership
from protoseal.attacks.readings import LENGTHS, Adversary, round_zero_readings
from protoseal.attacks.recorded_run import RecordedRun, compute_features
from protoseal.attacks.rotated_rows import (
    PAIRS,
    PRODUCTS,
    Moments,
    RotatedRows,
    Spread,
    form_moments,
    list_shown_rows,
    rotated_readings,
)
from tests.protoseal.attacks.recorded import (
    record_anew,
    recorded,
    recorded_frozen,
    recorded_in_groups,
    recorded_peer_sum,
)
from tests.support.marks import full_but

COORDINATOR = Adversary.COORDINATOR
SITE, ROTATED = "site-2", (LENGTHS, PRODUCTS, PAIRS)
NOISE = {"clip": 2.0, "noise_multiplier": 0.2}
MEMBER, MEMBER_OF_20 = PrototypeMembership(1), PrototypeMembership(20)
IMAGE, IMAGE_OF_20 = (PrototypeInversion(samples, decoder=True) for samples in (1, 20))


@cache
def measured(case: Case, run: RecordedRun) -> Mapping[str, Measurement]:
    """Return the coordinator's results by what they are read from."""
    return {each.reading: each for each in case.measure(run, COORDINATOR)}


def verdict(case: Case, run: RecordedRun) -> Verdict:
    """Return the worst verdict of the readings by lengths and inner products, beside the undefended run."""
    (undefended,) = measured(case, recorded_frozen("plain")).values()
    results = [each for basis, each in measured(case, run).items() if basis in ROTATED]
    verdicts = [case.judge(each, undefended) for each in results]
    return max(verdicts, key=(Verdict.DEFENDED, Verdict.TOO_WEAK, Verdict.NOT_DEFENDED).index)


# One record


@pytest.mark.parametrize("reading", [LENGTHS, PRODUCTS])
def test_rotated_row_length_tells_its_one_record(reading: str) -> None:
    run = recorded_frozen("masked")
    assert measured(MEMBER, run)[reading].value > 0.99
    assert measured(IMAGE, run)[reading].value > 0.99


@pytest.mark.parametrize("case", [MEMBER, IMAGE])
def test_rotated_rows_one_record_is_not_defended(case: Case) -> None:
    assert verdict(case, recorded_frozen("masked")) is Verdict.NOT_DEFENDED


@pytest.mark.parametrize("case", full_but([MEMBER_OF_20, IMAGE_OF_20], MEMBER_OF_20))
def test_rotated_rows_twenty_records_tell_none(case: Case) -> None:
    assert verdict(case, recorded_frozen("masked")) is not Verdict.NOT_DEFENDED


def test_rotated_rows_picture_has_the_chosen_image() -> None:
    shown = measured(IMAGE, recorded_frozen("masked"))[LENGTHS].pictures[0].images
    np.testing.assert_array_equal(shown["chosen image"], shown["original"])


# Two records, from a list of candidates


def test_pairs_of_a_list_have_one_rows_length() -> None:
    run = recorded_frozen("masked")
    two = measured(PrototypeMembership(2), run)
    assert two[PAIRS].value > 0.99 > two[LENGTHS].value
    assert measured(PrototypeInversion(2, decoder=True), run)[PAIRS].value > 0.99


def test_pairs_of_two_lists_have_one_cosine() -> None:
    """FedPLCC withholds lengths: two sites' single records show by the angle between them."""
    run = record_anew("fedplcc", "masked", (1, 1, 20))
    assert measured(MEMBER, run)[PAIRS].value > 0.99


ONE_CLASS_IN_COMMON = (1, 1, 0, 1, 0, 0, 0, 0, 0, 0)
"""Samples that give three classes of one record to a site, of which any two of four sites have one in common."""
TWO_RECORDS = (1, 0, 0, 0, 1, 0, 0, 0, 0, 0)
"""Samples that give two classes of one record to a site; no two of four sites have one in common."""


@pytest.mark.parametrize("samples", [ONE_CLASS_IN_COMMON, TWO_RECORDS])
def test_pairs_of_two_lists_round_zero_has_one(samples: tuple[int, ...]) -> None:
    """FedPC's round 0: a product of rows with one class in common, and the length of a row of two records."""
    of_one = measured(MEMBER, record_anew("fedpc", "masked", samples))
    assert of_one[f"{PAIRS}, in round 0"].value > 0.99 > of_one[f"{LENGTHS}, in round 0"].value


# What helps


@pytest.mark.parametrize("run", [recorded_peer_sum, lambda: recorded("pfpl", "ckks")], ids=["sum", "ckks"])
def test_rotated_readings_sums_and_ciphertexts_have_none(run: Callable[[], RecordedRun]) -> None:
    assert rotated_readings(run(), COORDINATOR, SITE) == ()


def test_rotated_rows_noise_hides_the_one_record() -> None:
    run = record_anew("pfpl", "masked", (1, 20), privacy=NOISE | {"min_count": 0.01})
    assert measured(MEMBER, run)[LENGTHS].low < MEMBER.chance + MEMBER.margin


def test_rotated_rows_min_count_withholds_one_record() -> None:
    # Three sites are left with each class, the fewest that are agreed.
    run = record_anew("pfpl", "masked", (1, 20, 20, 20), privacy=NOISE | {"min_count": 10.0})
    assert measured(MEMBER, run) == {}
    assert LENGTHS in measured(MEMBER_OF_20, run)


# Rounds


def test_rotated_rows_ratios_of_rounds_are_added() -> None:
    run = record_anew("pfpl", "masked", split="iid:per=200", rounds=2)
    shown, inputs = list_shown_rows(run, SITE), run.sites[SITE].test.inputs[:9]
    assert [*shown] == [1, 2]
    one, two, both = (
        RotatedRows(run, SITE, rounds).ratios(0, inputs, products=True)
        for rounds in ({1: shown[1]}, {2: shown[2]}, shown)
    )
    np.testing.assert_allclose(one + two, both)
    assert np.abs(one).min() > 0.0


def test_round_zero_readings_use_the_initial_model() -> None:
    """A colluding site rotates its rows back; the coordinator alone has their length and products."""
    run = recorded_in_groups("masked")
    assert list(round_zero_readings(run, COORDINATOR, SITE)) == []
    (learned,) = round_zero_readings(run, Adversary.COLLUSION, SITE)
    train, initial = run.sites[SITE].train, run.initial
    assert initial is not None
    features = compute_features(initial, train.inputs)
    means = np.array([features[train.labels == k].mean(axis=0) for k in learned.labels])
    np.testing.assert_allclose(learned.rows, means, atol=1e-5)
    assert [each.reading for each in rotated_readings(run, COORDINATOR, SITE)] == [
        f"{reading}, in round 0" for reading in ROTATED
    ]


# Forms


def test_form_moments_are_those_of_drawn_vectors() -> None:
    rng = np.random.default_rng(0)
    factors = rng.normal(size=(2, 4, 4)) / 2.0
    own, others = (Spread(rng.normal(size=4), factor @ factor.T) for factor in factors)
    drawn = [rng.multivariate_normal(each.mean, each.covariance, size=200_000) for each in (own, others)]
    forms = np.array([(drawn[i] * drawn[j]).sum(axis=1) for i, j in ((0, 0), (0, 1), (1, 1))])
    expected: Moments = form_moments(own.mean[None], own.covariance, others)
    np.testing.assert_allclose(forms.mean(axis=1), expected.means[0], rtol=0.02)
    np.testing.assert_allclose(np.cov(forms), expected.covariances[0], rtol=0.05, atol=0.05)


def test_moments_cosine_of_orthogonal_rows_is_finite() -> None:
    """The mean product is 0, and the variance is that of the product over both lengths."""
    covariance = np.diag([0.1, 0.2, 0.1])[None]
    cosine = Moments(np.array([[1.0, 0.0, 4.0]]), covariance).cosines()
    assert cosine.means[0, 0] == 0.0
    assert cosine.covariances[0, 0, 0] == pytest.approx(0.2 / 4.0)
