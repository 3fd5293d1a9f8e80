"""Sums of discrete Gaussian draws, by exact convolution at small σ, where they differ from one draw as a sum does."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.accounting import accountant
from privacy.accounting.accountant import delta_of
from privacy.accounting.events import GaussianRelease
from privacy.mechanisms import discrete_gaussian
from privacy.mechanisms.discrete_gaussian import discreteness
from privacy.mechanisms.grid import SIGMA, Grid, noise_share

Density = dict[int, mpmath.mpf]
DIGITS = 40
SIGMAS, TERMS = (1.0, 1.25, 1.5), (2, 3, 7)


def summed_distance(terms: int, steps: float = SIGMA) -> float:
    """Bound |log P(S = x)/P(G = x)| for ``terms`` draws with σ = ``steps`` ≥ 1, by the theorem of docs/adr/0016."""
    return math.fsum(2 * math.atanh(ripple(steps, k)) for k in range(1, terms))


def ripple(steps: float, draws: int) -> float:
    """Return ρ_k of the theorem."""
    q = math.exp(-2 * (math.pi * steps) ** 2 * draws / (draws + 1))
    return 2 * q / (1 - q)


def one_draw(variance: float, reach: int) -> Density:
    weights = {
        k: mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * mpmath.mpf(variance))) for k in range(-reach, reach + 1)
    }
    total = mpmath.fsum(weights.values())
    return {k: weight / total for k, weight in weights.items()}


def convolved(one: Density, other: Density) -> Density:
    found: Density = {}
    for x, p in one.items():
        for y, q in other.items():
            found[x + y] = found.get(x + y, mpmath.mpf(0)) + p * q
    return found


@cache
def summed(sigma: float, terms: int) -> Density:
    """Return the distribution of the sum of so many draws, exact but for tails of each below 1e-40."""
    with mpmath.workdps(DIGITS):
        draw = one_draw(sigma**2, math.ceil(14 * sigma))
        total = draw
        for _ in range(terms - 1):
            total = convolved(total, draw)
    return total


def apart(sigma: float, terms: int) -> float:
    """Return the largest |log P(S = x)/P(G = x)| within six standard deviations, where the cut tails do not matter."""
    deviation = sigma * math.sqrt(terms)
    with mpmath.workdps(DIGITS):
        one = one_draw(sigma**2 * terms, math.ceil(14 * deviation))
        points = range(-math.ceil(6 * deviation), math.ceil(6 * deviation) + 1)
        return max(abs(float(mpmath.log(summed(sigma, terms)[k] / one[k]))) for k in points)


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("sigma", SIGMAS)
def test_a_sum_is_as_near_to_one_draw_as_is_proved(sigma: float, terms: int) -> None:
    assert 0.0 < apart(sigma, terms) <= summed_distance(terms, sigma)


@pytest.mark.parametrize("sigma", SIGMAS)
def test_the_bound_for_two_is_not_far_off(sigma: float) -> None:
    """Over a third of it: a smaller constant or a larger exponent would be found out."""
    assert apart(sigma, 2) > summed_distance(2, sigma) / 3


def test_a_sum_of_discrete_gaussians_is_not_one() -> None:
    assert apart(1.0, 2) > 1e-5
    assert apart(1.5, 2) < 1e-8


@pytest.mark.parametrize("as_many", [6, 8])
def test_the_comparison_sees_a_wrong_variance(as_many: int) -> None:
    """The sum of seven draws against one with the variance of six or eight."""
    with mpmath.workdps(DIGITS):
        one = one_draw(float(as_many), 50)
        worst = max(abs(float(mpmath.log(summed(1.0, 7)[k] / one[k]))) for k in range(-15, 16))
    assert worst > 1000 * summed_distance(7, 1.0)


@pytest.mark.parametrize("terms", [2, 3])
@pytest.mark.parametrize("shift", [3, 8, -8])
def test_one_sum_is_as_private_as_one_release_of_the_agreed_noise(
    monkeypatch: pytest.MonkeyPatch, terms: int, shift: int
) -> None:
    """The exact δ of an integer that a record moves by ``shift`` under T noises; with one less it would not hold."""
    sigma = 4.0
    monkeypatch.setattr(
        discrete_gaussian, "RARE", 30.0
    )  # of 1000 the part of a δ would be less, and the bound idle
    monkeypatch.setattr(accountant, "discreteness", lambda count: discreteness(count, sigma))
    release = GaussianRelease(sigma * math.sqrt(terms) / abs(shift), coordinates=1)
    for epsilon in (0.5, 2.0, 5.0):
        said = delta_of([release], epsilon) + 1e-12
        assert exact_delta(summed(sigma, terms), shift, epsilon) <= said
    assert exact_delta(summed(sigma, terms - 1), shift, 2.0) > delta_of([release], 2.0)


def exact_delta(chances: Density, shift: int, epsilon: float) -> float:
    """Return Σ max(0, P(x) − e^ε·P(x − shift))."""
    with mpmath.workdps(DIGITS):
        factor, none = mpmath.exp(epsilon), mpmath.mpf(0)
        return float(
            mpmath.fsum(max(none, p - factor * chances.get(k - shift, none)) for k, p in chances.items())
        )


@given(st.integers(2, 400), st.floats(1.0, 3e6))
def test_a_sum_costs_no_more_than_one_draw_of_a_sites_own_deviation(terms: int, sigma: float) -> None:
    """Discreteness of √T·σ and the theorem's bound together, against discreteness of σ: what is accounted for."""
    for coordinates in (1, 5130):
        once, summed_up = (
            discreteness(coordinates, sigma),
            discreteness(coordinates, sigma * math.sqrt(terms)),
        )
        more = coordinates * summed_distance(terms, sigma)
        assert summed_up[0] + more <= once[0]
        assert summed_up[1] + more <= once[1]


def test_with_the_steps_that_are_used_the_bound_is_nothing() -> None:
    assert summed_distance(10_000) == 0.0
    assert -2 * (math.pi * SIGMA) ** 2 / 2 < -(10**13)


# Shares


@given(st.floats(1e-3, 1e3), st.integers(1, 10_000))
def test_shares_make_the_agreed_noise_and_hardly_more(noise: float, terms: int) -> None:
    share = noise_share(noise, terms)
    together = terms * Fraction(share) ** 2 / Fraction(noise) ** 2
    assert 1 <= together < 1 + Fraction(1, 10**12)


@given(st.floats(0.1, 10.0), st.integers(1, 300), st.floats(0.2, 5.0))
def test_the_grid_of_a_share_keeps_the_noise_of_all_of_them(noise: float, terms: int, weight: float) -> None:
    """T draws of 2^20 steps have a variance of T·2^40: the agreed multiple of the sensitivity, squared, in integers."""
    grid = Grid.of(1.0, weight, noise_share(noise, terms))
    agreed = grid.sensitivity_squared * Fraction(noise) ** 2
    assert agreed <= terms * SIGMA**2
    assert agreed > terms * SIGMA**2 * (1 - Fraction(1, 10**4))


@pytest.mark.parametrize(("noise", "terms"), [(2.0, 0), (0.0, 3), (math.inf, 3), (math.nan, 1)])
def test_there_is_no_share_of_nothing(noise: float, terms: int) -> None:
    with pytest.raises(ValueError, match="terms"):
        noise_share(noise, terms)
