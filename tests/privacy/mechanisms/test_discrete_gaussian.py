"""Discrete noise: exact probabilities pass; another sigma, a step left out and biased words do not."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import privacy.mechanisms.discrete_gaussian as sampler
from privacy.mechanisms.discrete_gaussian import bernoulli_exp, discrete_gaussian
from tests.crypto.draw_counts import (
    Float,
    Ints,
    WrongDrawsError,
    check_counts,
    check_integers,
    gaussian_chances,
)

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
def test_the_gaussian_has_its_exact_probabilities_and_no_other_sigmas(sigma_log2: int) -> None:
    sigma = 2.0**sigma_log2
    draws = discrete_gaussian(COUNT, sigma_log2)
    _check_gaussian(draws, sigma, _reach(sigma))
    for factor in (2 / 3, 3 / 2):
        with pytest.raises(WrongDrawsError):
            _check_gaussian(draws, factor * sigma, _reach(sigma))


@pytest.mark.parametrize("sigma_log2", [12, RELEASED])
def test_the_gaussian_of_a_release_has_its_shape_and_no_other_sigmas(sigma_log2: int) -> None:
    sigma = 2.0**sigma_log2
    draws = discrete_gaussian(COUNT, sigma_log2)
    _check_wide(draws, sigma)
    for factor in (2 / 3, 3 / 2):
        with pytest.raises(WrongDrawsError):
            _check_wide(draws, factor * sigma)


@pytest.mark.parametrize("modulus", [2, 3, 64, 255])
def test_the_low_places_of_a_wide_gaussian_are_uniform(modulus: int) -> None:
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


def test_draws_beyond_one_portion_are_like_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "_AT_ONCE", 64)
    draws = discrete_gaussian(2000, 1)
    assert draws.shape == (2000,)
    _check_gaussian(draws, 2.0, 6)


# Its parts


FRACTIONS = [(0, 1), (1, 8), (1, 1), (3, 2), (7, 3), (5, 1), (2**40, 2**41), (2**41 + 2**39, 2**41)]


@pytest.mark.parametrize(("numerator", "denominator"), FRACTIONS)
def test_a_trial_succeeds_with_the_chance_exp_of_minus_the_fraction(numerator: int, denominator: int) -> None:
    wins = int(bernoulli_exp(np.full(COUNT, numerator), denominator).sum())
    counts = np.array([wins, COUNT - wins])
    check_counts(counts, _two(math.exp(-numerator / denominator)))
    for factor in (2 / 3, 3 / 2):
        if numerator:
            with pytest.raises(WrongDrawsError):
                check_counts(counts, _two(math.exp(-factor * numerator / denominator)))


def _two(chance: float) -> Float:
    return np.array([chance, 1.0 - chance])


def test_trials_of_different_chances_do_not_mix() -> None:
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
def test_a_sampler_with_a_step_left_out_is_told_apart(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_every_number_below_a_bound_has_equally_many_words(
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
def test_every_bound_that_trials_ask_for_fits_a_word(denominator: int, k: int) -> None:
    drawn = sampler._below(denominator * k, 4)
    assert drawn.dtype == np.int64
    assert all(0 <= each < denominator * k for each in drawn.tolist())


@given(st.integers(0, 2**31 - 1), st.integers(0, 20))
def test_no_acceptance_leaves_63_bits(magnitude: int, sigma_log2: int) -> None:
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
def test_the_count_is_exact(count: int) -> None:
    draws = discrete_gaussian(count, 20)
    assert draws.shape == (count,)
    assert draws.dtype == np.int64
    assert bernoulli_exp(np.zeros(count, dtype=np.int64), 1).tolist() == [True] * count


@pytest.mark.parametrize(("count", "log2"), [(-1, 1), (1, -1), (1, 21)])
def test_bad_arguments_are_refused(count: int, log2: int) -> None:
    with pytest.raises(ValueError, match="sigma_log2 0 to 20"):
        discrete_gaussian(count, log2)


@pytest.mark.parametrize(("numerator", "denominator"), [(-1, 1), (1, 0), (1, 2**41 + 1)])
def test_bad_fractions_are_refused(numerator: int, denominator: int) -> None:
    with pytest.raises(ValueError, match="the denominator"):
        bernoulli_exp(np.array([numerator]), denominator)
