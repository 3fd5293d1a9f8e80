"""Budget plans: what they find is the least noise and the most releases that a budget allows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import get_sigma_gaussian
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.accounting.budget_plan import (
    NOISE_GRID,
    Query,
    count_error,
    find_noise_multiplier,
    find_releases,
    mean_error,
)
from privacy.accounting.events import DpSgd, GaussianRelease, Unit
from privacy.errors import Unattainable
from privacy.mechanisms.grid import best_count_weight
from tests.support.composed import epsilon

DELTA = 1e-5
TRAINING = DpSgd(2.0, 0.05, 100)


@pytest.mark.parametrize(("count", "guide"), [(1, 1.39), (20, 6.2), (100, 13.9)])
def test_plan_guides(count: int, guide: float) -> None:
    """The guides hold for an epsilon of 3 and ten classes of 512 features, to their printed digits."""
    found = find_noise_multiplier(3.0, DELTA, count, coordinates=10 * 513)
    assert found == pytest.approx(guide, abs=0.005 if count == 1 else 0.05)


@pytest.mark.parametrize(("records", "guide"), [(50, 6.3), (500, 0.63), (5000, 0.063)])
def test_mean_error_guides_are_those_of_the_sum_alone(records: int, guide: float) -> None:
    """The error is at least the sum's, over √(clip² + weight²), if the count is exact but for its weight's share."""
    weight = best_count_weight(1.0, 512)
    assert mean_error(13.9, 1.0, weight, records, 512) > guide * (1 - 0.005)
    alone = 13.9 * math.sqrt(512) / records
    assert alone == pytest.approx(guide, rel=0.005)
    assert mean_error(13.9, 1.0, weight, records, 512) < 1.05 * alone


@pytest.mark.parametrize("beside", [(), (TRAINING,)])
def test_find_noise_multiplier_is_the_least_that_is_enough(beside: tuple[DpSgd, ...]) -> None:
    found = find_noise_multiplier(3.0, DELTA, 20, 5130, beside)
    assert epsilon([*beside, *[GaussianRelease(found, 5130)] * 20], DELTA) <= 3
    less = GaussianRelease(found - 1 / NOISE_GRID, 5130)
    assert epsilon([*beside, *[less] * 20], DELTA) > 3


@pytest.mark.parametrize("beside", [(), (TRAINING,)])
def test_find_releases_is_the_most_that_fit(beside: tuple[DpSgd, ...]) -> None:
    count = find_releases(3.0, DELTA, 14.0, 5130, beside)
    release = GaussianRelease(14.0, 5130)
    assert epsilon([*beside, *[release] * count], DELTA) <= 3
    assert epsilon([*beside, *[release] * (count + 1)], DELTA) > 3


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_find_releases_at_the_cost_of_training_and_releases_gives_as_many(count: int) -> None:
    cost = epsilon([TRAINING, *[GaussianRelease(14.0, 5130)] * count], DELTA)
    assert find_releases(cost, DELTA, 14.0, 5130, [TRAINING]) == count


@pytest.mark.full
@settings(max_examples=12, deadline=None)
@given(budget=st.floats(0.2, 12.0), count=st.integers(1, 300), delta=st.floats(1e-8, 1e-3))
def test_find_noise_and_releases_are_inverse(budget: float, count: int, delta: float) -> None:
    noise = find_noise_multiplier(budget, delta, count, 5130)
    assert find_releases(budget, delta, noise, 5130) == pytest.approx(count, abs=1, rel=1e-3)
    assert find_releases(budget, delta, noise, 5130) >= count
    assert epsilon([GaussianRelease(noise, 5130)] * count, delta) == pytest.approx(budget, rel=2e-3)


@pytest.mark.parametrize("budget", [0.3, 1.0, 3.0, 8.0])
def test_continuous_noise_is_that_of_the_closed_form(budget: float) -> None:
    for count in (1, 30):
        exact = math.sqrt(count) * get_sigma_gaussian(budget, DELTA)
        found = find_noise_multiplier(budget, DELTA, count)
        assert exact <= found <= exact * 1.0001 + 1.01 / NOISE_GRID


@pytest.mark.full
def test_training_leaves_less_for_releases() -> None:
    assert find_noise_multiplier(3.0, DELTA, 20, beside=[TRAINING]) > find_noise_multiplier(3.0, DELTA, 20)
    assert find_releases(3.0, DELTA, 14.0, beside=[TRAINING]) < find_releases(3.0, DELTA, 14.0)
    assert find_releases(0.3, DELTA, 1.0) == 0


def test_training_beyond_the_budget_is_unattainable() -> None:
    for solve in (
        lambda: find_noise_multiplier(0.5, DELTA, 1, beside=[TRAINING]),
        lambda: find_releases(0.5, DELTA, 14.0, beside=[TRAINING]),
    ):
        with pytest.raises(Unattainable):
            solve()


def test_delta_within_the_slack_is_unattainable() -> None:
    with pytest.raises(Unattainable):
        find_noise_multiplier(1.0, 1e-13, 5)


def test_releases_that_cost_nothing_are_not_counted() -> None:
    with pytest.raises(Unattainable, match="releases"):
        find_releases(10.0, DELTA, 1e6)


@pytest.mark.parametrize("budget", [0.0, -1.0, math.inf, math.nan])
def test_budget_has_to_be_positive_and_finite(budget: float) -> None:
    with pytest.raises(ValueError, match="epsilon"):
        find_noise_multiplier(budget, DELTA, 1)
    with pytest.raises(ValueError, match="epsilon"):
        find_releases(budget, DELTA, 1.0)


def test_plan_has_to_have_a_release() -> None:
    with pytest.raises(ValueError, match="releases"):
        find_noise_multiplier(1.0, DELTA, 0)


@pytest.mark.parametrize(("clip", "weight", "dim"), [(1.0, 0.3, 64), (5.0, 2.0, 16), (1.0, 0.1, 256)])
def test_mean_error_is_that_of_released_means(clip: float, weight: float, dim: int) -> None:
    """4000 releases of a class whose mean has the clip as its norm, which is the worst."""
    noise, count, trials = 1.3, 3000, 4000
    random = np.random.default_rng(5)
    mean = np.full(dim, clip / math.sqrt(dim))
    sigma = noise * math.hypot(clip, weight)
    sums = count * mean + sigma * random.standard_normal((trials, dim))
    counts = count + sigma / weight * random.standard_normal(trials)
    errors = np.linalg.norm(sums / counts[:, None] - mean, axis=1)
    root = math.sqrt(float(np.mean(errors**2)))
    assert root == pytest.approx(mean_error(noise, clip, weight, count, dim), rel=0.04)
    assert float(np.std(counts)) == pytest.approx(count_error(noise, clip, weight), rel=0.06)


@pytest.mark.parametrize(("clip", "dim"), [(1.0, 512), (3.0, 10), (0.5, 1)])
def test_best_count_weight_has_the_least_error(clip: float, dim: int) -> None:
    best = best_count_weight(clip, dim)
    least = mean_error(2.0, clip, best, 100, dim)
    assert least == pytest.approx(2.0 * clip * (math.sqrt(dim) + 1) / 100)
    for other in (0.9, 1.1):
        assert mean_error(2.0, clip, other * best, 100, dim) > least


CLASSES = 10


@pytest.mark.parametrize(("unit", "most"), [(Unit.RECORD, 1), (Unit.SUBJECT, CLASSES), (Unit.SITE, CLASSES)])
def test_query_impossible_classes_of_one_are_refused(unit: Unit, most: int) -> None:
    """A record has one class, so no record's counts may be divided among several."""
    assert Query(1.0, 1.0, 4, CLASSES, unit, most).classes_of_one == most
    for wrong in (0, most + 1):
        with pytest.raises(ValueError, match="classes_of_one"):
            Query(1.0, 1.0, 4, CLASSES, unit, wrong)
