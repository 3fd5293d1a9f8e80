"""Privacy cost of a history: never below exact values, close above them, and with the slack of discrete noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mpmath
import pytest
from dp_accounting import NeighboringRelation, get_sigma_gaussian
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.accounting import accountant, loss_accountants
from privacy.accounting.accountant import MOST_EPSILON, Composed
from privacy.accounting.events import DpSgd, Event, GaussianRelease
from privacy.mechanisms import discrete_gaussian
from privacy.mechanisms.discrete_gaussian import discreteness
from privacy.mechanisms.grid import SIGMA
from tests.privacy.accountants import WRONG, Accountant, gaussian_delta, one_step_delta, prv
from tests.support.composed import delta_of, epsilon
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
def test_epsilon_agrees_with_another_accountant(name: str) -> None:
    agrees(epsilon, GRID[name])


@pytest.mark.parametrize("name", full_but(["a hundred", "mixed"], "a hundred"))
def test_epsilon_smaller_delta_agrees_with_another_accountant(name: str) -> None:
    agrees(epsilon, GRID[name], delta=1e-7)


@pytest.mark.parametrize("name", WRONG)
def test_comparison_finds_a_wrong_accountant(name: str) -> None:
    with pytest.raises(AssertionError):
        agrees(WRONG[name], MIXED)


def test_comparison_finds_another_neighbouring_relation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_accountants, "NEIGHBOURS", NeighboringRelation.REPLACE_ONE)
    loss_accountants._compose_training.cache_clear()
    try:
        with pytest.raises(AssertionError):
            agrees(epsilon, GRID["a hundred"])
    finally:
        loss_accountants._compose_training.cache_clear()


def test_epsilon_within_the_slack_has_a_delta() -> None:
    history = [GaussianRelease(20.0, 10**9)]
    at = Composed.of(history).slack().epsilon / 2
    assert delta_of(history, at) >= gaussian_delta(1 / 20, 0.0)


@pytest.mark.parametrize("count", [1, 7, 100])
@pytest.mark.parametrize("noise", [0.5, 1.39, 14.0, 100.0])
def test_epsilon_of_releases_is_the_closed_form_or_just_above(noise: float, count: int) -> None:
    for at in (0.1, 1.0, 3.0, 10.0):
        exact = gaussian_delta(math.sqrt(count) / noise, at)
        found = delta_of([GaussianRelease(noise)] * count, at)
        assert exact <= found <= exact * 1.0001 + 1.1e-12


@pytest.mark.parametrize(("noise", "rate"), [(0.5, 0.2), (1.0, 0.01), (1.0, 0.5), (2.0, 0.1), (4.0, 0.9)])
def test_epsilon_of_one_training_step_is_that_of_the_definition(noise: float, rate: float) -> None:
    for at in (0.05, 0.2, 0.6, 1.5):
        exact = one_step_delta(noise, rate, at)
        assert exact <= delta_of([DpSgd(noise, rate, 1)], at) <= exact * 1.0001 + 1e-7


def test_steps_with_every_record_cost_like_releases() -> None:
    for steps in (1, 100, 10_000):
        noise = 1.5 * math.sqrt(steps)
        exact = gaussian_delta(1 / 1.5, 3.0)
        assert exact <= delta_of([DpSgd(noise, 1.0, steps)], 3.0) <= exact * 1.002


def test_epsilon_guides_of_the_analytic_gaussian() -> None:
    """μ = 1 at ε = 1 is δ = 0.126937 (dp_accounting's own tests); σ for (1, 1e-5) is 3.7306, as the code published with
    Balle and Wang 2018 has it, where the classical √(2·log(1.25/δ))/ε is 4.845."""
    assert gaussian_delta(1.0, 1.0) == pytest.approx(0.126937, abs=5e-7)
    assert get_sigma_gaussian(1.0, DELTA) == pytest.approx(3.730632, abs=1e-6)
    assert epsilon([GaussianRelease(3.730632)], DELTA) == pytest.approx(1.0, abs=1e-5)
    assert epsilon([GaussianRelease(4.844805)], DELTA) < 0.76


def test_three_steps_cost_as_published() -> None:
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
def test_epsilon_is_just_below_published_looser_bounds(training: DpSgd, published: float) -> None:
    assert 0.4 * published < epsilon([training], DELTA) < published


@pytest.mark.full
@pytest.mark.parametrize(
    ("training", "limit"),
    [(DpSgd(1.3, 256 / 60_000, 4688), 0.23), (DpSgd(1.1, 256 / 60_000, 14_063), 0.57)],
)
def test_many_steps_approach_the_central_limit(training: DpSgd, limit: float) -> None:
    """μ = q·√(T·(e^(1/σ²) − 1)) of Bu et al. 2020, section 3.1, is the limit from below."""
    q, steps, noise = training.sampling_rate, training.steps, training.noise_multiplier
    mu = q * math.sqrt(steps * math.expm1(1 / noise**2))
    assert mu >= limit  # as their tables have it for no more steps than these
    central = epsilon([GaussianRelease(1 / mu)], DELTA)
    assert central < epsilon([training], DELTA) < 1.15 * central


def test_empty_history_costs_nothing() -> None:
    assert epsilon([], DELTA) == 0
    assert delta_of([], 0.0) == 0


def test_unknown_event_is_refused() -> None:
    unknown: Any = object()
    with pytest.raises(TypeError):
        epsilon([GaussianRelease(1.0), unknown], DELTA)


def test_order_does_not_matter_and_equal_steps_are_merged() -> None:
    parts: list[Event] = [DpSgd(1.0, 0.01, 50), GaussianRelease(5.0, 7), DpSgd(1.0, 0.01, 30)]
    assert Composed.of(parts) == Composed.of(parts[::-1])
    assert Composed.of(parts).training == (DpSgd(1.0, 0.01, 80),)


def test_with_releases_equals_a_list_to_the_last_bit() -> None:
    release = GaussianRelease(13.7, 5130)
    for count in (1, 3, 10, 97, 1000):
        assert Composed().with_releases(count, release) == Composed.of([release] * count)


def test_with_releases_adds_to_earlier_releases() -> None:
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
def test_epsilon_is_monotone_in_noise_releases_and_delta(
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
def test_training_cost_is_monotone_in_noise_rate_and_steps(noise: float, rate: float, steps: int) -> None:
    cost = epsilon([DpSgd(noise, rate, steps)], DELTA)
    tolerance = 1e-3  # histories of other lengths have other grids
    assert epsilon([DpSgd(noise * 1.5, rate, steps)], DELTA) <= cost + tolerance
    assert epsilon([DpSgd(noise, rate * 1.5, steps)], DELTA) >= cost - tolerance
    assert epsilon([DpSgd(noise, rate, 2 * steps)], DELTA) >= cost - tolerance
    assert epsilon([DpSgd(noise, rate, steps), GaussianRelease(20.0)], DELTA) >= cost - tolerance


def test_delta_of_is_the_inverse_of_epsilon() -> None:
    for history in ([GaussianRelease(13.9, 5130)] * 100, MIXED):
        assert delta_of(history, epsilon(history, DELTA)) == pytest.approx(DELTA, rel=1e-3)


def test_epsilon_many_coordinates_adds_the_slack_of_discrete_noise() -> None:
    discrete = Composed.of([GaussianRelease(4.0, 10**13)])
    assert discrete.slack().epsilon > 0.5
    assert discrete.epsilon(DELTA) >= epsilon([GaussianRelease(4.0)], DELTA) + discrete.slack().epsilon


def test_epsilon_delta_within_the_slack_is_infinite() -> None:
    history: list[Event] = [GaussianRelease(50.0, 5130), DpSgd(4.0, 0.01, 100)]
    taken = Composed.of(history).slack().delta
    assert epsilon(history, taken) == math.inf
    assert epsilon(history, 0.5 * taken) == math.inf
    assert epsilon(history, 10 * taken) < math.inf


def test_epsilon_beyond_any_guarantee_is_infinite() -> None:
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
    ],
)
def test_invalid_events_are_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=r"not |validation error"):
        make()


SIGMAS = (1.0, 1.5, 2.0, 4.0, 16.0)


def discrete(sigma: float) -> dict[int, mpmath.mpf]:
    reach = range(-int(14 * sigma) - 1, int(14 * sigma) + 2)
    weights = {k: mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * mpmath.mpf(sigma) ** 2)) for k in reach}
    total = mpmath.fsum(weights.values())
    return {k: weight / total for k, weight in weights.items()}


def rounded(sigma: float, k: int) -> mpmath.mpf:
    """Return the mass of rounded noise, computed from the tail on its side, where no digits are lost."""
    low, high = (abs(k) - mpmath.mpf(1) / 2) / sigma, (abs(k) + mpmath.mpf(1) / 2) / sigma
    return (mpmath.erfc(low / mpmath.sqrt(2)) - mpmath.erfc(high / mpmath.sqrt(2))) / 2


@pytest.mark.parametrize("sigma", SIGMAS)
def test_discreteness_bounds_the_ratio_at_every_point(sigma: float) -> None:
    above, _ = discreteness(1, sigma)
    room = 3 * math.exp(-2 * (math.pi * sigma) ** 2)
    with mpmath.workdps(60):
        logs = {k: mpmath.log(p / rounded(sigma, k)) for k, p in discrete(sigma).items()}
        assert max(logs.values()) <= above
        for k, log in logs.items():
            assert -log <= mpmath.mpf(k) ** 2 / (24 * sigma**4) + room
        # Not by more than the next term of either: a bound with another constant would be found out.
        assert max(logs.values()) > above * (1 - 1 / sigma**2) - room
        point = round(2 * sigma)
        assert -logs[point] > 0.6 * point**2 / (24 * sigma**4) - room


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("shift", [1, 3])
def test_discreteness_covers_the_exact_delta_of_one_integer(
    monkeypatch: pytest.MonkeyPatch, sigma: float, shift: int
) -> None:
    monkeypatch.setattr(accountant, "discreteness", lambda count: discreteness(count, sigma))
    release = GaussianRelease(sigma / shift, coordinates=1)
    chances = discrete(sigma)
    for at in (0.5, 2.0, 5.0, 20.0):
        exact = sum(max(0.0, float(p - math.exp(at) * chances.get(k - shift, 0))) for k, p in chances.items())
        assert exact <= delta_of([release], at) + 1e-15


def test_discreteness_over_coordinates_is_bounded_with_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The χ² bound at a probability that can be computed: at most e^-x, and over it at less than half of the bound."""
    for rare in (5.0, 30.0):
        monkeypatch.setattr(discrete_gaussian, "RARE", rare)
        for count in (1, 10, 1000):
            _, below = discreteness(count, SIGMA)
            threshold = below * 24 * SIGMA**2
            beyond = mpmath.gammainc(count / 2, threshold / 2, mpmath.inf, regularized=True)
            assert beyond <= math.exp(-rare)
            closer = mpmath.gammainc(count / 2, 0.4 * threshold / 2, mpmath.inf, regularized=True)
            assert closer > math.exp(-rare)


def test_discreteness_at_the_used_steps_is_negligible() -> None:
    """A hundred releases of ten classes with 512 features, and a thousand of a thousand with 2048."""
    usual = Composed().with_releases(100, GaussianRelease(13.9, 10 * 513)).slack()
    assert usual.epsilon < 5e-8
    assert usual.delta < 1e-11
    huge = Composed().with_releases(1000, GaussianRelease(44.0, 1000 * 2049)).slack()
    assert huge.epsilon < 2e-4
    assert huge.factor < 1.0001


def test_discreteness_without_coordinates_is_zero() -> None:
    assert discreteness(0) == (0.0, 0.0)
    assert Composed.of([GaussianRelease(2.0)]).slack().factor == 1
