"""The discrete and the rounded Gaussian distribution side by side, in arithmetic of 60 digits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from mpmath import mp, mpf  # type: ignore[import-untyped]  # it ships no types
from numpy.typing import NDArray

from crypto.gaussian_rounding import log_ratio, total_variation, with_discrete_noise

Float = NDArray[np.float64]

DIGITS = 60
RELEASED = 2.0**20


def _masses(sigma: int, at: range) -> tuple[list[mpf], list[mpf]]:
    """p and q at some integers ≥ 0."""
    root, wide = mpf(sigma) * mp.sqrt(2), mpf(2) * sigma * sigma
    whole = (
        sigma * mp.sqrt(2 * mp.pi) * mp.jtheta(3, 0, mp.exp(-2 * mp.pi**2 * sigma**2))
    )  # Poisson's summation
    p = [mp.exp(-(x * x) / wide) / whole for x in at]
    q = [(mp.erfc((x - mpf(1) / 2) / root) - mp.erfc((x + mpf(1) / 2) / root)) / 2 for x in at]
    return p, q


def _distance(sigma: int) -> float:
    p, q = _masses(sigma, range(16 * sigma))
    apart = [abs(a - b) for a, b in zip(p, q, strict=True)]
    return float((2 * mp.fsum(apart) - apart[0]) / 2)


@pytest.mark.parametrize("sigma", [1, 2, 3, 8, 32])
def test_the_sum_behind_the_discrete_distribution_is_poissons(sigma: int) -> None:
    with mp.workdps(DIGITS):
        p, q = _masses(sigma, range(20 * sigma))
        assert abs(2 * mp.fsum(p) - p[0] - 1) < mpf(10) ** -40
        assert abs(2 * mp.fsum(q) - q[0] - 1) < mpf(10) ** -40


@pytest.mark.parametrize("sigma", [1, 2, 3, 8, 32])
def test_the_total_variation_is_below_its_bound_and_not_far_below(sigma: int) -> None:
    with mp.workdps(DIGITS):
        distance = _distance(sigma)
    assert distance < total_variation(sigma) < 4 * distance
    if sigma >= 8:
        assert distance * sigma**2 == pytest.approx(0.02016, rel=0.01)


def test_the_total_variation_at_the_sigma_of_a_release() -> None:
    """φ|q/φ − 1|/2 is smooth: a sum at every 4096th integer gives it to many digits."""
    with mp.workdps(DIGITS):
        stride = 2**12
        p, q = _masses(2**20, range(0, 9 * 2**20, stride))
        apart = [abs(a - b) for a, b in zip(p, q, strict=True)]
        distance = float(stride * (2 * mp.fsum(apart) - apart[0]) / 2)
    assert distance < total_variation(RELEASED) == 2.0**-44 < 4 * distance
    assert distance * RELEASED**2 == pytest.approx(0.02016, rel=1e-3)


@pytest.mark.parametrize("sigma", [1, 2, 3, 8, 32, 2**20])
def test_the_ratio_of_the_two_is_within_its_bounds(sigma: int) -> None:
    with mp.workdps(DIGITS):
        p, q = _masses(sigma, range(0, 12 * sigma + 1, max(1, sigma // 64)))
        logs = [mp.log(b / a) * sigma * sigma for a, b in zip(p, q, strict=True)]
        assert min(logs) >= -mpf(1) / 24
        assert max(logs) <= 6 + mpf(1) / 100
        assert max(logs) > (5.8 if sigma >= 8 else 2)  # no bound that anything keeps
        assert mp.erfc(12 / mp.sqrt(2)) < mpf(2) ** -107
    assert log_ratio(sigma, 1) * sigma**2 == pytest.approx(7.0)


def _halves(sigma: int) -> tuple[Float, Float]:
    """p and q in float64, far enough that nothing is missing."""
    x = np.arange(-14 * sigma, 14 * sigma + 1)
    p = np.exp(-np.square(x) / (2.0 * sigma**2))
    root = sigma * math.sqrt(2.0)
    q = np.array([math.erfc((abs(each) - 0.5) / root) - math.erfc((abs(each) + 0.5) / root) for each in x])
    return p / p.sum(), q / 2.0


def _delta(mass: Float, shift: int, epsilon: float) -> float:
    """The exact δ when both of two coordinates move by ``shift``, term by term."""
    pairs = np.outer(mass, mass)
    moved = np.zeros_like(pairs)
    moved[shift:, shift:] = pairs[:-shift, :-shift]
    return float(np.maximum(pairs - math.exp(epsilon) * moved, 0.0).sum())


@pytest.mark.parametrize("sigma", [8, 32])
@pytest.mark.parametrize("epsilon", [0.25, 1.0, 3.0])
def test_delta_of_the_discrete_mechanism_is_within_what_is_said(sigma: int, epsilon: float) -> None:
    discrete, rounded = _halves(sigma)
    delta = _delta(rounded, sigma // 2, epsilon)
    more, enough = with_discrete_noise(epsilon, delta, sigma, 2)
    assert _delta(discrete, sigma // 2, more) <= enough
    by_distance = (1.0 + math.exp(epsilon)) * 2 * total_variation(sigma)
    assert _delta(discrete, sigma // 2, epsilon) <= delta + by_distance
    assert _delta(discrete, sigma // 2, more / 2) > enough  # a claim of half the ε does not hold


def test_a_hundred_releases_cost_next_to_nothing() -> None:
    """And by the total variation they would cost more than the whole of an ordinary δ."""
    coordinates = 100 * 10 * 513
    epsilon, delta = with_discrete_noise(8.0, 1e-5, RELEASED, coordinates)
    assert 8.0 < epsilon < 8.000004
    assert 1e-5 < delta < 1.0000001e-5
    assert (1 + math.exp(8.0)) * coordinates * total_variation(RELEASED) > 8e-5


def test_without_coordinates_nothing_changes_and_delta_is_never_above_one() -> None:
    assert with_discrete_noise(1.0, 1e-5, 1.0, 0) == (1.0, 1e-5)
    assert with_discrete_noise(900.0, 0.5, 1.0, 10**9) == (900.0 + 7e9, 1.0)


@pytest.mark.parametrize("sigma", [0.5, 0.0, -1.0, math.nan, math.inf])
def test_a_sigma_below_one_is_refused(sigma: float) -> None:
    for call in (
        lambda: total_variation(sigma),
        lambda: log_ratio(sigma, 1),
        lambda: with_discrete_noise(1.0, 0.0, sigma, 1),
    ):
        with pytest.raises(ValueError, match="sigma is 1 or more"):
            call()


@pytest.mark.parametrize(
    ("epsilon", "delta", "coordinates"),
    [(-1.0, 0.1, 1), (1.0, 1.1, 1), (math.nan, 0.1, 1), (1.0, -0.1, 1), (1.0, 0.1, -1)],
)
def test_what_is_no_guarantee_is_refused(epsilon: float, delta: float, coordinates: int) -> None:
    with pytest.raises(ValueError, match="or more"):
        with_discrete_noise(epsilon, delta, 1.0, coordinates)
