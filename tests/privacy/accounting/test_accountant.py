"""ε of histories, against the other accountant, the definition, and figures from the literature."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from dp_accounting import NeighboringRelation, get_sigma_gaussian
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.accounting import loss_accountants
from privacy.accounting.accountant import MOST_EPSILON, Composed, delta_of, epsilon
from privacy.accounting.events import DpSgd, Event, GaussianRelease
from tests.privacy.accountants import WRONG, Accountant, one_step_delta, prv
from tests.privacy.closed_form import gaussian_delta
from tests.support.marks import full_but

DELTA = 1e-5
MIXED: list[Event] = [*[GaussianRelease(8.0)] * 10, DpSgd(1.1, 256 / 60_000, 2000), GaussianRelease(3.0)]
GRID: dict[str, Sequence[Event]] = {
    "one release": [GaussianRelease(1.39)],
    "a hundred": [GaussianRelease(13.9)] * 100,
    "a thousand": [GaussianRelease(13.9)] * 1000,
    "little noise": [GaussianRelease(0.5)] * 2,
    "unlike ones": [GaussianRelease(2.0), GaussianRelease(5.0), GaussianRelease(9.0)],
    "small batches": [DpSgd(1.0, 0.001, 20_000)],
    "large batches": [DpSgd(4.0, 0.1, 2000)],
    "whole batches": [DpSgd(20.0, 1.0, 100)],
    "little noise in training": [DpSgd(0.6, 0.01, 500)],
    "MNIST as often": [DpSgd(1.1, 256 / 60_000, 14_063)],
    "two trainings": [DpSgd(1.0, 0.01, 500), DpSgd(2.0, 0.05, 300)],
    "mixed": MIXED,
    "mixed, training in the middle": [GaussianRelease(4.0), DpSgd(2.0, 0.05, 500), GaussianRelease(6.0)],
    "mixed, mostly training": [DpSgd(0.8, 0.01, 1000), GaussianRelease(10.0)],
}


def agrees(accountant: Accountant, history: Sequence[Event], delta: float = DELTA) -> None:
    """Check for 0.1 % of the other accountant, less the error that it is asked to add, and not above its bound."""
    rough = prv(history, delta, error=0.05)
    error = 0.002 * rough
    bound, found = prv(history, delta, error), accountant(history, delta)
    assert found == pytest.approx(bound - error, rel=0.001)
    assert found <= bound


@pytest.mark.parametrize("name", full_but(GRID, "a hundred", "large batches", "mixed"))
def test_the_other_accountant_agrees(name: str) -> None:
    agrees(epsilon, GRID[name])


@pytest.mark.parametrize("name", full_but(["a hundred", "mixed"], "a hundred"))
def test_the_other_accountant_agrees_at_a_smaller_delta(name: str) -> None:
    agrees(epsilon, GRID[name], delta=1e-7)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_accountant_does_not_agree(name: str) -> None:
    with pytest.raises(AssertionError):
        agrees(WRONG[name], MIXED)


def test_another_relation_of_neighbours_does_not_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_accountants, "NEIGHBOURS", NeighboringRelation.REPLACE_ONE)
    loss_accountants._compose_training.cache_clear()
    try:
        with pytest.raises(AssertionError):
            agrees(epsilon, GRID["a hundred"])
    finally:
        loss_accountants._compose_training.cache_clear()


def test_an_epsilon_within_the_slack_has_a_delta() -> None:
    history = [GaussianRelease(20.0, 10**9)]
    at = Composed.of(history).slack().epsilon / 2
    assert delta_of(history, at) >= gaussian_delta(1 / 20, 0.0)


@pytest.mark.parametrize("count", [1, 7, 100])
@pytest.mark.parametrize("noise", [0.5, 1.39, 14.0, 100.0])
def test_releases_cost_what_the_closed_form_says_and_not_less(noise: float, count: int) -> None:
    for at in (0.1, 1.0, 3.0, 10.0):
        exact = gaussian_delta(math.sqrt(count) / noise, at)
        found = delta_of([GaussianRelease(noise)] * count, at)
        assert exact <= found <= exact * 1.0001 + 1.1e-12


@pytest.mark.parametrize(("noise", "rate"), [(0.5, 0.2), (1.0, 0.01), (1.0, 0.5), (2.0, 0.1), (4.0, 0.9)])
def test_a_step_of_training_costs_what_the_definition_says(noise: float, rate: float) -> None:
    for at in (0.05, 0.2, 0.6, 1.5):
        exact = one_step_delta(noise, rate, at)
        assert exact <= delta_of([DpSgd(noise, rate, 1)], at) <= exact * 1.0001 + 1e-7


def test_steps_with_every_record_are_releases() -> None:
    for steps in (1, 100, 10_000):
        noise = 1.5 * math.sqrt(steps)
        exact = gaussian_delta(1 / 1.5, 3.0)
        assert exact <= delta_of([DpSgd(noise, 1.0, steps)], 3.0) <= exact * 1.002


def test_figures_of_the_analytic_gaussian_mechanism() -> None:
    """μ = 1 at ε = 1 is δ = 0.126937 (dp_accounting's own tests); σ for (1, 1e-5) is 3.7306, as the code published with
    Balle and Wang 2018 has it, where the classical √(2·log(1.25/δ))/ε is 4.845."""
    assert gaussian_delta(1.0, 1.0) == pytest.approx(0.126937, abs=5e-7)
    assert get_sigma_gaussian(1.0, DELTA) == pytest.approx(3.730632, abs=1e-6)
    assert epsilon([GaussianRelease(3.730632)], DELTA) == pytest.approx(1.0, abs=1e-5)
    assert epsilon([GaussianRelease(4.844805)], DELTA) < 0.76


def test_three_steps_as_published() -> None:
    """dp_accounting's own tests: σ 0.5, q 0.2, 3 steps are (1, 0.15594)."""
    assert delta_of([DpSgd(0.5, 0.2, 3)], 1.0) == pytest.approx(0.15594, abs=1e-5)


@pytest.mark.parametrize(
    ("training", "published"),
    [
        (DpSgd(4.0, 0.01, 10_000), 1.26),  # Abadi et al. 2016, section 3.2: the moments accountant
        (DpSgd(1.3, 256 / 60_000, 4688), 1.34),  # Bu et al. 2020, figure 4: the moments accountant, 20 epochs
        (DpSgd(0.7, 256 / 60_000, 16_406), 8.68),  # the same, 70 epochs
        (DpSgd(1.0, 0.01, 300), 2.39),  # Opacus's documentation of compute_dp_sgd_privacy: Rényi
    ],
)
def test_epsilon_is_below_published_looser_bounds_and_near_them(training: DpSgd, published: float) -> None:
    assert 0.4 * published < epsilon([training], DELTA) < published


@pytest.mark.full
@pytest.mark.parametrize(
    ("training", "limit"),
    [(DpSgd(1.3, 256 / 60_000, 4688), 0.23), (DpSgd(1.1, 256 / 60_000, 14_063), 0.57)],
)
def test_many_steps_come_near_the_central_limit(training: DpSgd, limit: float) -> None:
    """μ = q·√(T·(e^(1/σ²) − 1)) of Bu et al. 2020, section 3.1, is the limit from below."""
    q, steps, noise = training.sampling_rate, training.steps, training.noise_multiplier
    mu = q * math.sqrt(steps * math.expm1(1 / noise**2))
    assert mu >= limit  # as their tables have it for no more steps than these
    central = epsilon([GaussianRelease(1 / mu)], DELTA)
    assert central < epsilon([training], DELTA) < 1.15 * central


def test_an_empty_history_costs_nothing() -> None:
    assert epsilon([], DELTA) == 0
    assert delta_of([], 0.0) == 0


def test_an_unknown_event_is_refused() -> None:
    unknown: Any = object()
    with pytest.raises(TypeError, match="no accountant covers"):
        epsilon([GaussianRelease(1.0), unknown], DELTA)


def test_order_does_not_matter_and_equal_steps_are_put_together() -> None:
    parts: list[Event] = [DpSgd(1.0, 0.01, 50), GaussianRelease(5.0, 7), DpSgd(1.0, 0.01, 30)]
    assert Composed.of(parts) == Composed.of(parts[::-1])
    assert Composed.of(parts).training == (DpSgd(1.0, 0.01, 80),)


def test_counted_releases_are_those_of_a_list_to_the_last_bit() -> None:
    release = GaussianRelease(13.7, 5130)
    for count in (1, 3, 10, 97, 1000):
        assert Composed().with_releases(count, release) == Composed.of([release] * count)


def test_counted_releases_are_added_to_those_before_them() -> None:
    """The grid's part in the cost grows with the number of coordinates."""
    before = Composed.of([GaussianRelease(2.0, 5130)])
    after = before.with_releases(3, GaussianRelease(4.0, 100))
    assert (after.squares, after.coordinates) == (1 / 4 + 3 / 16, 5130 + 300)


@pytest.mark.full
@settings(max_examples=15, deadline=None)
@given(
    noise=st.floats(0.5, 50.0),
    count=st.integers(1, 50),
    more=st.floats(0.05, 10.0),
    delta=st.floats(1e-9, 1e-2),
)
def test_more_noise_costs_less_and_more_releases_or_a_smaller_delta_cost_more(
    noise: float, count: int, more: float, delta: float
) -> None:
    cost = epsilon([GaussianRelease(noise)] * count, delta)
    assert epsilon([GaussianRelease(noise * (1 + more))] * count, delta) <= cost
    assert epsilon([GaussianRelease(noise)] * (count + 1), delta) >= cost
    assert epsilon([GaussianRelease(noise)] * count, delta / (1 + more)) >= cost
    assert epsilon([GaussianRelease(noise, coordinates=10**6)] * count, delta) >= cost


@pytest.mark.full
@settings(max_examples=4, deadline=None)
@given(noise=st.floats(0.8, 4.0), rate=st.floats(0.01, 0.3), steps=st.integers(10, 300))
def test_training_costs_less_with_more_noise_and_more_with_rate_or_steps(
    noise: float, rate: float, steps: int
) -> None:
    cost = epsilon([DpSgd(noise, rate, steps)], DELTA)
    tolerance = 1e-3  # histories of other lengths have other grids
    assert epsilon([DpSgd(noise * 1.5, rate, steps)], DELTA) <= cost + tolerance
    assert epsilon([DpSgd(noise, rate * 1.5, steps)], DELTA) >= cost - tolerance
    assert epsilon([DpSgd(noise, rate, 2 * steps)], DELTA) >= cost - tolerance
    assert epsilon([DpSgd(noise, rate, steps), GaussianRelease(20.0)], DELTA) >= cost - tolerance


def test_delta_and_epsilon_are_inverse() -> None:
    for history in ([GaussianRelease(13.9, 5130)] * 100, MIXED):
        assert delta_of(history, epsilon(history, DELTA)) == pytest.approx(DELTA, rel=1e-3)


def test_epsilon_many_coordinates_adds_the_slack_of_discrete_noise() -> None:
    discrete = Composed.of([GaussianRelease(4.0, 10**13)])
    assert discrete.slack().epsilon > 0.5
    assert discrete.epsilon(DELTA) >= epsilon([GaussianRelease(4.0)], DELTA) + discrete.slack().epsilon


def test_a_delta_that_is_within_the_slack_costs_everything() -> None:
    history: list[Event] = [GaussianRelease(50.0, 5130), DpSgd(4.0, 0.01, 100)]
    taken = Composed.of(history).slack().delta
    assert epsilon(history, taken) == math.inf
    assert epsilon(history, 0.5 * taken) == math.inf
    assert epsilon(history, 10 * taken) < math.inf


def test_an_event_beyond_any_guarantee_has_infinite_epsilon() -> None:
    assert epsilon([GaussianRelease(0.001)] * 3, DELTA) == math.inf
    assert delta_of([GaussianRelease(0.001)], MOST_EPSILON) == 1
    assert epsilon([GaussianRelease(0.026)], DELTA) == math.inf
    assert epsilon([GaussianRelease(0.03)], DELTA) < MOST_EPSILON


@pytest.mark.parametrize(
    "make",
    [
        lambda: GaussianRelease(0.0),
        lambda: GaussianRelease(math.nan),
        lambda: GaussianRelease(math.inf),
        lambda: GaussianRelease(1.0, -1),
        lambda: DpSgd(-1.0, 0.1, 1),
        lambda: DpSgd(1.0, 0.0, 1),
        lambda: DpSgd(1.0, 1.1, 1),
        lambda: DpSgd(1.0, math.nan, 1),
        lambda: DpSgd(1.0, 0.1, 0),
        lambda: epsilon([GaussianRelease(1.0)], 0.0),
        lambda: epsilon([], 1.0),
        lambda: delta_of([GaussianRelease(1.0)], -0.1),
        lambda: delta_of([GaussianRelease(1.0)], math.nan),
    ],
)
def test_invalid_events_are_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=r"not |validation error"):
        make()
