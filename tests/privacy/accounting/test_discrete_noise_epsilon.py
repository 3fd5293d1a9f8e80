"""Discrete Gaussian noise against continuous noise that is rounded, by summing all of it up at small σ."""

from __future__ import annotations

import math

import mpmath
import pytest

from privacy.accounting import accountant
from privacy.accounting.accountant import Composed, delta_of
from privacy.accounting.events import GaussianRelease
from privacy.mechanisms import discrete_gaussian
from privacy.mechanisms.discrete_gaussian import discreteness
from privacy.mechanisms.grid import SIGMA

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
def test_the_ratio_is_within_its_bounds_at_every_point(sigma: float) -> None:
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
def test_one_release_of_one_integer_is_as_private_as_is_said(
    monkeypatch: pytest.MonkeyPatch, sigma: float, shift: int
) -> None:
    monkeypatch.setattr(accountant, "discreteness", lambda count: discreteness(count, sigma))
    release = GaussianRelease(sigma / shift, coordinates=1)
    chances = discrete(sigma)
    for epsilon in (0.5, 2.0, 5.0, 20.0):
        exact = sum(
            max(0.0, float(p - math.exp(epsilon) * chances.get(k - shift, 0))) for k, p in chances.items()
        )
        assert exact <= delta_of([release], epsilon) + 1e-15


def test_the_sum_over_coordinates_is_bounded_with_room(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_discreteness_costs_next_to_nothing() -> None:
    """A hundred releases of ten classes with 512 features, and a thousand of a thousand with 2048."""
    usual = Composed().with_releases(100, GaussianRelease(13.9, 10 * 513)).slack()
    assert usual.epsilon < 5e-8
    assert usual.delta < 1e-11
    huge = Composed().with_releases(1000, GaussianRelease(44.0, 1000 * 2049)).slack()
    assert huge.epsilon < 2e-4
    assert huge.factor < 1.0001


def test_no_coordinates_are_continuous_noise() -> None:
    assert discreteness(0) == (0.0, 0.0)
    assert Composed.of([GaussianRelease(2.0)]).slack().factor == 1
