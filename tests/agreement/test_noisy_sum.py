"""Noise that sites share: how much each adds for which list, what a sum of it says, and what is refused by name."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from agreement import (
    Agreement,
    AveragingSection,
    Extractor,
    FeddbpSection,
    FedpcSection,
    MaskingSection,
    Method,
    Noise,
    PrivacySection,
    Protection,
)
from agreement.derived.cohorts import min_group_size, stated_classes
from agreement.schema.layout import NoisySum
from crypto.pairwise.attempt import fewest_against, threshold
from privacy.mechanisms.grid import SIGMA
from secure_client.privacy.budget import BudgetSection
from tests.support.grouped import grouped_agreement
from tests.support.small import small_agreement

NOISE = 3.0
SHARED = PrivacySection(clip=2.0, noise_multiplier=NOISE, noise=Noise.DISTRIBUTED)
AGREED = grouped_agreement(privacy=SHARED)


def with_(**changes: Any) -> PrivacySection:
    return SHARED.model_copy(update=changes)


# How much


@pytest.mark.parametrize("colluding", [0, 1, 2, 5])
@pytest.mark.parametrize("listed", [2, 3, 4, 5, 8, 14, 20, 100, 300])
def test_a_threshold_of_those_listed_without_the_colluding_makes_the_agreed_noise(
    listed: int, colluding: int
) -> None:
    """Variances of (t − c) times 2^40 equal noise multiplier times sensitivity, squared, in exact arithmetic."""
    if listed < fewest_against(colluding):
        with pytest.raises(ValueError, match=f"{listed}.*{colluding}"):
            NoisySum.of(with_(colluding=colluding), 8, listed)
        return
    noisy = NoisySum.of(with_(colluding=colluding), 8, listed)
    honest = threshold(listed) - colluding
    needed = Fraction(NOISE) ** 2 * noisy.grid.sensitivity_squared
    assert honest >= 1
    assert needed <= honest * SIGMA**2
    assert needed > (honest - Fraction(1, 1000)) * SIGMA**2
    assert noisy.threshold == threshold(listed)


def test_no_list_that_is_taken_leaves_less_than_one_share_or_lets_colluders_open_it() -> None:
    for colluding in range(12):
        for listed in range(fewest_against(colluding), 120):
            assert threshold(listed) - colluding >= 1
            assert colluding < 2 * threshold(listed) - listed


def test_the_longest_list_has_the_finest_grid_and_the_largest_numbers() -> None:
    sums = [NoisySum.of(SHARED, 8, listed) for listed in range(3, 100)]
    for one, other in pairwise(sums):
        assert other.grid.step <= one.grid.step
        assert other.bound(1000) >= one.bound(1000)


# What it says


def test_means_are_over_records_in_units_of_a_feature() -> None:
    noisy = NoisySum.of(SHARED, 2, 5)
    grid = noisy.grid
    features = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    whole = grid.clip_records(features).sum(axis=0).astype(float)
    vectors = np.array([whole * 4000, [7.0, 7.0]])
    rows, has = noisy.means(vectors, np.array([4000.0 * 3 * grid.weight, 3.0]), 5)
    assert has.tolist() == [True, False]
    np.testing.assert_allclose(rows, [features.mean(axis=0), [0.0, 0.0]], atol=1e-5)


@pytest.mark.parametrize(("survivors", "listed"), [(4, 5), (5, 5), (7, 9), (9, 9)])
def test_a_class_is_absent_below_three_deviations_of_the_noise_that_is_there(
    survivors: int, listed: int
) -> None:
    noisy = NoisySum.of(SHARED, 8, listed)
    deviation = float(np.sqrt(survivors)) * SIGMA / noisy.grid.weight
    assert noisy.least_count(survivors) == pytest.approx(3 * deviation)
    for times, there in ((2.999, False), (3.001, True)):
        _, has = noisy.means(np.zeros((1, 8)), np.array([times * deviation * noisy.grid.weight]), survivors)
        assert has.tolist() == [there]
    assert NoisySum.of(with_(min_count=7.0), 8, listed).least_count(survivors) == 7.0


# The agreement


def test_numbers_of_the_largest_site_have_room_in_every_sum() -> None:
    """All records of one class and along one axis, and noise that is never seen; as many sites as there may be."""
    fixed, most = AGREED.fixed_point(), AGREED.averaging.most_samples
    for listed in (3, AGREED.max_sites):
        grid = AGREED.noisy_sum(listed).grid
        number = float(most * max(grid.radius, grid.weight) + 2**31)
        layout = AGREED.layout
        vector = layout.noisy_contribution(
            np.full((3, 8), number), np.full(3, number), np.zeros(layout.parameters)
        )
        words = fixed.encode(vector)
        total = fixed.decode_sum(words * words.dtype.type(AGREED.max_sites), AGREED.max_sites)
        assert total[0] == AGREED.max_sites * number == total[-1]


def test_every_site_states_every_class() -> None:
    held = np.array([True, False, False])
    assert stated_classes(AGREED, 1, held).all()
    assert stated_classes(grouped_agreement(), 1, held).tolist() == held.tolist()


def test_shared_noise_that_overflows_the_ring_is_refused() -> None:
    with pytest.raises(ValidationError, match="bound"):
        grouped_agreement(
            privacy=with_(noise_multiplier=0.05),
            averaging=AveragingSection(parameters=AGREED.averaging.parameters, most_samples=10**9),
        )
    with pytest.raises(ValidationError, match=r"2\^30"):
        grouped_agreement(privacy=with_(count_weight=1e-9))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"protection": Protection.PLAIN}, "needs protection 'masked'.* not 'plain'"),
        ({"protection": Protection.CKKS}, "needs protection 'masked'.* not 'ckks'"),
        ({"method": Method.PFPL}, "does not serve method pfpl: its targets use"),
        (
            {
                "method": Method.FEDDBP,
                "averaging": AveragingSection(),
                "feddbp": FeddbpSection(decision=False),
            },
            r" does not provide: set personal = false in \[feddbp\]",
        ),
    ],
)
def test_shared_noise_refuses_what_it_does_not_serve_by_name(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        grouped_agreement(**{"privacy": SHARED, **changes})


def test_shared_noise_serves_each_supported_method() -> None:
    for method in (Method.FEDDBP, Method.FEDPROTO):
        agreed = grouped_agreement(
            privacy=SHARED,
            method=method,
            averaging=AveragingSection(),
            feddbp=FeddbpSection(personal=False, decision=False),
        )
        assert agreed.privacy == SHARED
    trained = with_(extractor=Extractor.TRAINED)
    assert grouped_agreement(privacy=trained).privacy == trained
    one_group = FedpcSection(groups=1, alignment=0.0)
    assert grouped_agreement(privacy=SHARED, fedpc=one_group).fedpc == one_group


def test_noise_is_not_carried_over_rounds() -> None:
    with pytest.raises(ValidationError, match="release_every"):
        PrivacySection(clip=1.0, noise_multiplier=1.0, noise=Noise.DISTRIBUTED, release_every=2)


# How few


def test_lists_are_as_long_as_the_colluders_ask() -> None:
    for colluding, fewest in ((0, 3), (1, 3), (2, 5), (3, 8)):
        agreed = grouped_agreement(privacy=with_(colluding=colluding))
        assert min_group_size(agreed, 10) == fewest
    assert min_group_size(grouped_agreement(privacy=with_(colluding=3, noise=Noise.LOCAL)), 10) == 3


@pytest.mark.parametrize(
    ("colluding", "changes", "sites", "reason"),
    [
        (2, {}, 10, "and a group of 3 does not resist them: .* min_holders to 5"),
        (2, {"min_holders": 5, "min_sites": 5}, 10, None),
        (3, {"method": Method.FEDPROTO, "averaging": AveragingSection()}, 7, "a group of 7 does not"),
        (3, {"method": Method.FEDPROTO, "averaging": AveragingSection()}, 8, None),
        (
            21,
            {"method": Method.FEDPROTO, "averaging": AveragingSection()},
            200,
            "masks of 200 sites resist only 20",
        ),
        (20, {"method": Method.FEDPROTO, "averaging": AveragingSection()}, 200, None),
        (
            21,
            {
                "method": Method.FEDPROTO,
                "averaging": AveragingSection(),
                "masking": MaskingSection(complete_up_to=200),
            },
            200,
            None,
        ),
    ],
)
def test_more_colluders_than_a_run_holds_off_are_refused_where_its_size_is_known(
    colluding: int, changes: dict[str, Any], sites: int, reason: str | None
) -> None:
    agreed: Agreement = grouped_agreement(**{"privacy": with_(colluding=colluding), **changes})
    if reason is None:
        agreed.check_colluding(agreed.method, sites)
        return
    with pytest.raises(ValueError, match=reason):
        agreed.check_colluding(agreed.method, sites)


# The site's own file


def test_a_site_takes_shared_noise_only_where_it_says_against_how_many() -> None:
    def own(**limits: Any) -> BudgetSection:
        return BudgetSection(dataset="scans", ledger=Path("ledger.jsonl"), epsilon=3.0, **limits)

    with pytest.raises(ValueError, match=r"least_colluding.*\[privacy\]"):
        own().check(SHARED, 10)
    with pytest.raises(ValueError, match="least_colluding"):
        own(least_colluding=2).check(SHARED, 10)
    own(least_colluding=1).check(SHARED, 10)
    own().check(with_(noise=Noise.LOCAL), 10)


def test_noise_of_one_site_is_agreed_unless_asked_for() -> None:
    plain = small_agreement().model_copy(update={"privacy": PrivacySection(clip=1.0, noise_multiplier=1.0)})
    assert not plain.distributed_noise
    assert not plain.layout.noisy
