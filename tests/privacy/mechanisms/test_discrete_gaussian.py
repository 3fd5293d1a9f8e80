"""Discrete Gaussian noise: exact probabilities, alone and as a sum of several sites' noise.

Counts of draws are compared with exact probabilities; right draws fail with probability below 1e-9.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import privacy.mechanisms.discrete_gaussian as sampler
from privacy.accounting import accountant
from privacy.accounting.events import GaussianRelease
from privacy.mechanisms.discrete_gaussian import bernoulli_exp, discrete_gaussian, discreteness
from privacy.mechanisms.grid import SIGMA, Grid, noise_share
from tests.support.composed import delta_of

Float = NDArray[np.float64]
Ints = NDArray[np.int64]

_LOG_FALSE_ALARM = math.log(1e9)


class WrongDrawsError(AssertionError):
    """The draws are not of the distribution that they are held against."""


def check_counts(counts: Ints, chances: Float) -> None:
    """Counts (k,) are of draws with these chances, by the likelihood ratio form of the chi-squared test.

    The relative entropy D of counts to chances has P(D ≥ x) ≤ exp(-nx) (e n x/(k − 1))^(k − 1) once n·x ≥ k − 1,
    for every n: Agrawal, *Finite-sample concentration of the multinomial in relative entropy* (2020), theorem I.2.
    """
    n, freedom = int(counts.sum()), counts.size - 1
    seen = counts > 0
    if (chances[seen] <= 0.0).any():
        raise WrongDrawsError("a draw that cannot be")
    entropy = float((counts[seen] * np.log(counts[seen] / (n * chances[seen]))).sum())
    if entropy > freedom and entropy - freedom * math.log(math.e * entropy / freedom) > _LOG_FALSE_ALARM:
        raise WrongDrawsError(f"{n} draws in {counts.size} cells: {entropy} nats from what is expected")


def check_integers(draws: Ints, chances: Float) -> None:
    """Draws are of integers −r … r with these chances, (2r + 1,). The ends of the range have all beyond them."""
    reach = chances.size // 2
    near = np.clip(draws, -reach, reach) + reach
    check_counts(np.bincount(near, minlength=chances.size), chances)


def gaussian_chances(sigma: float, reach: int) -> Float:
    """Return the discrete Gaussian's probabilities of −reach … reach, with the tails at the ends."""
    return _folded(lambda x: -x * x / (2.0 * sigma * sigma), 40 * math.ceil(sigma), reach)


def _folded(log_mass: Callable[[Float], Float], far: int, reach: int) -> Float:
    far = max(far, reach + 1)
    mass = np.exp(log_mass(np.arange(-far, far + 1, dtype=np.float64)))
    mass /= mass.sum()
    inner = mass[far - reach : far + reach + 1].copy()
    inner[0] += mass[: far - reach].sum()
    inner[-1] += mass[far + reach + 1 :].sum()
    return inner


COUNT = 40_000
SMALL = [0, 1, 2, 3]
RELEASED = 20


def _reach(sigma: float) -> int:
    return max(2, math.floor(3 * sigma))


def _check_gaussian(draws: Ints, sigma: float, reach: int) -> None:
    check_integers(draws, gaussian_chances(sigma, reach))


def _check_wide(draws: Ints, sigma: float) -> None:
    """Check sigmas so large that continuous and discrete Gaussians have the same tails, in 64 cells of equal width."""
    edges = np.linspace(-3.0, 3.0, 63)
    below = np.array([0.0, *(math.erfc(-edge / math.sqrt(2.0)) / 2.0 for edge in edges), 1.0])
    cells = np.searchsorted(edges, draws / sigma)
    check_counts(np.bincount(cells, minlength=64), np.diff(below))


# Gaussian


@pytest.mark.parametrize("sigma_log2", SMALL)
def test_draws_have_their_exact_probabilities_and_no_other_sigmas(sigma_log2: int) -> None:
    sigma = 2.0**sigma_log2
    draws = discrete_gaussian(COUNT, sigma_log2)
    _check_gaussian(draws, sigma, _reach(sigma))
    for factor in (2 / 3, 3 / 2):
        with pytest.raises(WrongDrawsError):
            _check_gaussian(draws, factor * sigma, _reach(sigma))


@pytest.mark.parametrize("sigma_log2", [12, RELEASED])
def test_draws_of_a_release_have_its_shape_and_no_other_sigmas(sigma_log2: int) -> None:
    sigma = 2.0**sigma_log2
    draws = discrete_gaussian(COUNT, sigma_log2)
    _check_wide(draws, sigma)
    for factor in (2 / 3, 3 / 2):
        with pytest.raises(WrongDrawsError):
            _check_wide(draws, factor * sigma)


@pytest.mark.parametrize("modulus", [2, 3, 64, 255])
def test_low_bits_of_a_wide_gaussian_are_uniform(modulus: int) -> None:
    """Up to exp(-2π²sigma²/modulus²), which is nothing. A sampler of coarser numbers is told apart."""
    draws, even = discrete_gaussian(COUNT, RELEASED), np.full(modulus, 1.0 / modulus)
    check_counts(np.bincount(draws % modulus, minlength=modulus), even)
    with pytest.raises(WrongDrawsError):
        check_counts(np.bincount(draws * modulus % modulus, minlength=modulus), even)


def test_neighbouring_draws_are_independent() -> None:
    draws = discrete_gaussian(COUNT, 0)
    chances = gaussian_chances(1.0, 2)
    first, second = (np.clip(each, -2, 2) + 2 for each in (draws[::2], draws[1::2]))
    pairs = np.outer(chances, chances).ravel()
    check_counts(np.bincount(5 * first + second, minlength=25), pairs)
    with pytest.raises(WrongDrawsError):
        check_counts(np.bincount(5 * first + first, minlength=25), pairs)


def test_draws_of_several_portions_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "_AT_ONCE", 64)
    draws = discrete_gaussian(2000, 1)
    assert draws.shape == (2000,)
    _check_gaussian(draws, 2.0, 6)


# Its parts


FRACTIONS = [(0, 1), (1, 8), (1, 1), (3, 2), (7, 3), (5, 1), (2**40, 2**41), (2**41 + 2**39, 2**41)]


@pytest.mark.parametrize(("numerator", "denominator"), FRACTIONS)
def test_bernoulli_exp_has_its_exact_probability(numerator: int, denominator: int) -> None:
    wins = int(bernoulli_exp(np.full(COUNT, numerator), denominator).sum())
    counts = np.array([wins, COUNT - wins])
    check_counts(counts, _two(math.exp(-numerator / denominator)))
    for factor in (2 / 3, 3 / 2):
        if numerator:
            with pytest.raises(WrongDrawsError):
                check_counts(counts, _two(math.exp(-factor * numerator / denominator)))


def _two(chance: float) -> Float:
    return np.array([chance, 1.0 - chance])


def test_bernoulli_exp_trials_of_different_chances_do_not_mix() -> None:
    numerators = np.tile(np.array([0, 1, 40]), 4000)
    wins = bernoulli_exp(numerators, 4).reshape(-1, 3).sum(axis=0)
    assert wins[0] == 4000
    for count, numerator in zip(wins[1:], (1, 40), strict=True):
        check_counts(np.array([count, 4000 - count]), _two(math.exp(-numerator / 4)))
    assert numerators[2] == 40  # the caller's numbers are not used up


# A step left out


def _always(denominator: int) -> Callable[[Ints, int], np.ndarray]:
    def trials(numerators: Ints, over: int) -> np.ndarray:
        return (
            np.ones(numerators.size, dtype=np.bool_)
            if over == denominator
            else bernoulli_exp(numerators, over)
        )

    return trials


LEFT_OUT = {
    "the Gaussian's own acceptance": ("bernoulli_exp", _always(2 * 4**2)),
    "the low part's acceptance": ("bernoulli_exp", _always(4)),
    "zero's second sign": ("_second_zero", lambda sizes, _negative: np.zeros(sizes.size, dtype=np.bool_)),
    "the high part": ("_geometric", lambda count: np.zeros(count, dtype=np.int64)),
    "odd from even": ("_exp_minus_one", lambda count: sampler._below(2, count) == 1),
}


@pytest.mark.parametrize("step", LEFT_OUT)
def test_check_finds_a_sampler_with_a_step_left_out(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _check_gaussian(discrete_gaussian(COUNT, 2), 4.0, 12)
    monkeypatch.setattr(sampler, *LEFT_OUT[step])
    with pytest.raises(WrongDrawsError):
        _check_gaussian(discrete_gaussian(COUNT, 2), 4.0, 12)


# Words


def _every_word(width: int) -> Iterator[bytes]:
    """Yield all words of so many bytes, once each, then zeros, which no bound rejects."""
    yield np.arange(256**width, dtype=f"<u{width}").tobytes()
    while True:
        yield b"\0" * 256**width * width


@pytest.mark.parametrize(
    ("bound", "width"), [(2, 1), (3, 1), (7, 1), (128, 1), (255, 1), (256, 2), (1000, 2)]
)
def test_below_has_equally_many_words_for_each_number(
    bound: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over all words there are. Those turned away come back as zeros here, and are counted off again."""
    scripted = _every_word(width)
    monkeypatch.setattr(secrets, "token_bytes", lambda size: next(scripted)[:size])
    counts = np.bincount(sampler._below(bound, 256**width), minlength=bound)
    share, left_over = divmod(256**width, bound)
    counts[0] -= left_over
    assert counts.tolist() == [share] * bound
    biased = np.bincount(np.arange(256**width) % bound, minlength=bound)
    assert len(set(biased.tolist())) == (2 if left_over else 1)


@given(st.integers(1, 2**41), st.integers(1, 2**22))
def test_below_every_requested_bound_fits_a_word(denominator: int, k: int) -> None:
    drawn = sampler._below(denominator * k, 4)
    assert drawn.dtype == np.int64
    assert all(0 <= each < denominator * k for each in drawn.tolist())


@given(st.integers(0, 2**31 - 1), st.integers(0, 20))
def test_acceptance_stays_within_63_bits(magnitude: int, sigma_log2: int) -> None:
    """The sampler's results in words equal those in integers of unlimited size."""
    sigma = 1 << sigma_log2
    squares = np.square(np.abs(np.array([-magnitude, magnitude])) - sigma)
    assert squares.tolist() == [(magnitude - sigma) ** 2] * 2
    assert Fraction(int(squares[0]), 2 * sigma**2) < 2**63


def test_numpys_seed_changes_nothing() -> None:
    np.random.seed(1)
    first = discrete_gaussian(4, RELEASED)
    np.random.seed(1)
    assert (discrete_gaussian(4, RELEASED) != first).any()


def test_all_randomness_is_the_operating_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operating system is the only source: the same bytes give the same draws."""

    def replay() -> Callable[[int], bytes]:
        return np.random.default_rng(5).bytes

    drawn = []
    for _ in range(2):
        monkeypatch.setattr(secrets, "token_bytes", replay())
        drawn.append(discrete_gaussian(1000, RELEASED).tolist())
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("count", [0, 1, 2, 1001])
def test_count_is_exact(count: int) -> None:
    draws = discrete_gaussian(count, 20)
    assert draws.shape == (count,)
    assert draws.dtype == np.int64
    assert bernoulli_exp(np.zeros(count, dtype=np.int64), 1).tolist() == [True] * count


@pytest.mark.parametrize(("count", "log2"), [(-1, 1), (1, -1), (1, 21)])
def test_invalid_arguments_are_refused(count: int, log2: int) -> None:
    with pytest.raises(ValueError, match="sigma_log2"):
        discrete_gaussian(count, log2)


@pytest.mark.parametrize(("numerator", "denominator"), [(-1, 1), (1, 0), (1, 2**41 + 1)])
def test_invalid_fractions_are_refused(numerator: int, denominator: int) -> None:
    with pytest.raises(ValueError, match="denominator"):
        bernoulli_exp(np.array([numerator]), denominator)


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
def test_sum_of_draws_is_as_near_to_one_draw_as_proved(sigma: float, terms: int) -> None:
    assert 0.0 < apart(sigma, terms) <= summed_distance(terms, sigma)


@pytest.mark.parametrize("sigma", SIGMAS)
def test_bound_for_two_draws_is_nearly_met(sigma: float) -> None:
    """Over a third of it: a smaller constant or a larger exponent would be found out."""
    assert apart(sigma, 2) > summed_distance(2, sigma) / 3


def test_sum_of_discrete_gaussians_is_not_discrete_gaussian() -> None:
    assert apart(1.0, 2) > 1e-5
    assert apart(1.5, 2) < 1e-8


@pytest.mark.parametrize("as_many", [6, 8])
def test_comparison_finds_a_wrong_variance(as_many: int) -> None:
    """The sum of seven draws against one with the variance of six or eight."""
    with mpmath.workdps(DIGITS):
        one = one_draw(float(as_many), 50)
        worst = max(abs(float(mpmath.log(summed(1.0, 7)[k] / one[k]))) for k in range(-15, 16))
    assert worst > 1000 * summed_distance(7, 1.0)


@pytest.mark.parametrize("terms", [2, 3])
@pytest.mark.parametrize("shift", [3, 8, -8])
def test_sum_is_as_private_as_one_release_of_the_agreed_noise(
    monkeypatch: pytest.MonkeyPatch, terms: int, shift: int
) -> None:
    """The exact δ of an integer that a record moves by ``shift`` under T noises; with one less it would not hold."""
    sigma = 4.0
    monkeypatch.setattr(sampler, "RARE", 30.0)  # of 1000 the part of a δ would be less, and the bound idle
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
def test_sum_costs_no_more_than_one_draw_of_a_sites_deviation(terms: int, sigma: float) -> None:
    """Discreteness of √T·σ and the theorem's bound together, against discreteness of σ: what is accounted for."""
    for coordinates in (1, 5130):
        once, summed_up = (
            discreteness(coordinates, sigma),
            discreteness(coordinates, sigma * math.sqrt(terms)),
        )
        more = coordinates * summed_distance(terms, sigma)
        assert summed_up[0] + more <= once[0]
        assert summed_up[1] + more <= once[1]


def test_bound_at_the_used_steps_is_negligible() -> None:
    assert summed_distance(10_000) == 0.0
    assert -2 * (math.pi * SIGMA) ** 2 / 2 < -(10**13)


# Shares


@given(st.floats(1e-3, 1e3), st.integers(1, 10_000))
def test_noise_shares_add_up_to_the_agreed_noise(noise: float, terms: int) -> None:
    share = noise_share(noise, terms)
    together = terms * Fraction(share) ** 2 / Fraction(noise) ** 2
    assert 1 <= together < 1 + Fraction(1, 10**12)


@given(st.floats(0.1, 10.0), st.integers(1, 300), st.floats(0.2, 5.0))
def test_grid_of_a_share_keeps_the_noise_of_all(noise: float, terms: int, weight: float) -> None:
    """T draws of 2^20 steps have a variance of T·2^40: the agreed multiple of the sensitivity, squared, in integers."""
    grid = Grid.of(1.0, weight, noise_share(noise, terms))
    agreed = grid.sensitivity_squared * Fraction(noise) ** 2
    assert agreed <= terms * SIGMA**2
    assert agreed > terms * SIGMA**2 * (1 - Fraction(1, 10**4))


@pytest.mark.parametrize(("noise", "terms"), [(2.0, 0), (0.0, 3), (math.inf, 3), (math.nan, 1)])
def test_noise_share_without_terms_is_refused(noise: float, terms: int) -> None:
    with pytest.raises(ValueError, match="terms"):
        noise_share(noise, terms)
