"""The audit's theorem: against the paper's numbers, against mechanisms by brute force, against randomised response."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linprog  # type: ignore[import-untyped]  # it ships no types
from scipy.stats import binom  # type: ignore[import-untyped]

from protoseal.evaluation.audit import Guesses, fair_coins, guesses_of, lower_bound, p_value

Signs = tuple[int, ...]
SOLVED = 1e-6
"""To so much are linear programs solved."""


@pytest.mark.parametrize(
    ("guesses", "delta", "bound"),
    [(Guesses(1000, 100, 75), 1e-4, 0.67298), (Guesses(100_000, 1510, 1439), 1e-5, 2.67585)],
)
def test_bounds_are_those_of_the_paper(guesses: Guesses, delta: float, bound: float) -> None:
    """Appendix D has 0.673 and section 7 has 2.675, both with a confidence of 95 %."""
    assert lower_bound(guesses, delta, 0.05) == math.floor(1000 * bound) / 1000


@pytest.mark.parametrize("right", [0, 1, 40, 73, 80])
@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, 1e-3), (0.7, 1e-4), (2.5, 0.0), (2.5, 1e-6), (20.0, 1e-5)]
)
def test_p_values_are_the_sums_of_the_theorem(right: int, epsilon: float, delta: float) -> None:
    canaries, made, chance = 300, 80, 1 / (1 + math.exp(-epsilon))
    chances = binom.pmf(np.arange(made + 1), made, chance)
    windows = [2 / i * chances[max(0, right - i) : right].sum() for i in range(1, canaries + 1)]
    printed = binom.sf(right - 1, made, chance) + canaries * delta * max(windows)
    expected = printed if right > made * chance else 1.0
    assert p_value(Guesses(canaries, made, right), epsilon, delta) == pytest.approx(min(1.0, expected))


def test_bounds_grow_with_right_guesses_and_shrink_with_delta_and_with_coins() -> None:
    def bound(right: int, delta: float = 1e-5, canaries: int = 1000) -> float:
        return lower_bound(Guesses(canaries, 200, right), delta, 0.05)

    assert 0 == bound(110) < bound(150) < bound(190) < bound(200)
    assert bound(190, 1e-3) < bound(190, 1e-4) < bound(190)
    assert bound(190, canaries=100_000) < bound(190)
    assert bound(200, delta=1.0) == 0


@pytest.mark.parametrize("numbers", [(10, 11, 5), (10, 5, 6), (10, 5, -1)])
def test_numbers_that_cannot_be_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        Guesses(*numbers)


@pytest.mark.parametrize(("epsilon", "delta"), [(-1.0, 0.1), (math.inf, 0.1), (1.0, -0.1), (1.0, 1.1)])
def test_no_such_epsilon_or_delta(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError, match="ε is 0 or more"):
        p_value(Guesses(10, 5, 5), epsilon, delta)


# Which coins are guessed


def test_extreme_scores_are_guessed() -> None:
    scores = np.array([0.3, -2.0, 5.0, 0.1, 4.0, -1.0])
    coins = np.array([True, False, True, False, False, True])
    assert guesses_of(scores, coins, 2) == Guesses(6, 2, 2)
    assert guesses_of(scores, coins, 4) == Guesses(6, 4, 2)
    assert guesses_of(scores, coins, 3) == Guesses(6, 3, 2)  # the odd one is for the highest
    assert guesses_of(scores, coins, 0) == Guesses(6, 0, 0)
    with pytest.raises(ValueError, match="7 guesses of 6"):
        guesses_of(scores, coins, 7)


def test_coins_are_fair() -> None:
    """Sum and correlation of neighbours, both within 6.2 deviations: a false alarm below 1e-9."""
    signs = np.where(fair_coins(40_000), 1, -1)
    assert abs(signs.sum()) < 6.2 * 200
    assert abs((signs[:-1] * signs[1:]).sum()) < 6.2 * 200


# All mechanisms, by linear programming


def most(coins: int, made: int, right: int, epsilon: float, delta: float) -> float:
    """The largest probability of so many right guesses over all (ε, δ)-private mechanisms.

    A mechanism is a distribution of guesses for each outcome of the coins. For each two outcomes that differ in one
    coin, in both directions, Σ max(0, P − e^ε·Q) over guesses is at most δ; the maxima are variables of their own.
    """
    outcomes = list(itertools.product((-1, 1), repeat=coins))
    guesses = [each for each in itertools.product((-1, 0, 1), repeat=coins) if sum(map(abs, each)) == made]
    place = {pair: number for number, pair in enumerate(itertools.product(outcomes, guesses))}
    pairs = [(one, other) for one in outcomes for other in outcomes if _wrong(one, other) == 1]
    size = len(place) + len(pairs) * len(guesses)
    above, limits = (
        np.zeros((len(pairs) * (len(guesses) + 1), size)),
        np.zeros(len(pairs) * (len(guesses) + 1)),
    )
    row = 0
    for number, (one, other) in enumerate(pairs):
        first = len(place) + number * len(guesses)
        for extra, guess in enumerate(guesses):
            above[row, [place[one, guess], place[other, guess], first + extra]] = 1, -math.exp(epsilon), -1
            row += 1
        above[row, first : first + len(guesses)], limits[row] = 1, delta
        row += 1
    whole, gain = np.zeros((len(outcomes), size)), np.zeros(size)
    for number, outcome in enumerate(outcomes):
        for guess in guesses:
            whole[number, place[outcome, guess]] = 1
            if made - _wrong(outcome, guess) >= right:
                gain[place[outcome, guess]] = 1 / len(outcomes)
    return _maximum(gain, above, limits, whole)


def most_alike(made: int, right: int, epsilon: float, delta: float) -> float:
    """The same where all coins are guessed: the best mechanism then treats all coins, and both sides, alike.

    Turning and swapping coins gives mechanisms that are as good, and so does their mean. So let p_d be the probability
    of d wrong guesses; among those in which a given coin is right, (r − d)/r·p_d have d wrong ones.
    """
    size = made + 1 + 2 * made
    above, limits = np.zeros((2 * made + 1, size)), np.zeros(2 * made + 1)
    for d in range(made):
        one, other = (made - d) / made, (d + 1) / made
        above[d, [d, d + 1, made + 1 + d]] = one, -math.exp(epsilon) * other, -1
        above[made + d, [d + 1, d, 2 * made + 1 + d]] = other, -math.exp(epsilon) * one, -1
    above[-1, made + 1 :], limits[-1] = 1, delta
    whole, gain = np.zeros((1, size)), np.zeros(size)
    whole[0, : made + 1], gain[: made - right + 1] = 1, 1
    return _maximum(gain, above, limits, whole)


def _maximum(
    gain: NDArray[np.float64],
    above: NDArray[np.float64],
    limits: NDArray[np.float64],
    whole: NDArray[np.float64],
) -> float:
    found = linprog(-gain, above, limits, whole, np.ones(len(whole)), bounds=(0, 1))
    assert found.success
    return float(-found.fun)


def _wrong(one: Signs, other: Signs) -> int:
    return sum(a * b < 0 for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(("coins", "made"), [(1, 1), (2, 1), (2, 2), (3, 2), (3, 3)])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (0.5, 0.05), (2.0, 0.01)])
def test_the_best_mechanism_treats_all_coins_alike(
    coins: int, made: int, epsilon: float, delta: float
) -> None:
    """Where some coins are not guessed, what δ buys is what coins / made times as much does where all are."""
    for right in range(1, made + 1):
        alike = most_alike(made, right, epsilon, delta * coins / made)
        assert most(coins, made, right, epsilon, delta) == pytest.approx(alike, abs=1e-9)


@pytest.mark.parametrize("made", [1, 2, 3, 7, 30])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 0.01), (1.0, 1e-3), (2.0, 0.01), (2.0, 1e-3)])
def test_no_mechanism_guesses_better_than_the_theorem_says(made: int, epsilon: float, delta: float) -> None:
    for right in range(1, made + 1):
        guesses = Guesses(made, made, right)
        best, told = most_alike(made, right, epsilon, delta), p_value(guesses, epsilon, delta)
        assert best <= told + SOLVED
        without = p_value(guesses, epsilon, 0.0)
        if without < 0.5:
            assert best > without + delta / 30  # so a bound that forgets δ would be found wrong
            assert most_alike(made, right, epsilon, 0.0) == pytest.approx(without, abs=SOLVED)


def test_below_the_mean_the_sum_of_the_theorem_is_exceeded() -> None:
    """Why it counts as 1 there."""
    chance = 1 / (1 + math.exp(-2.0))
    printed = binom.sf(0, 2, chance) + 2 * 2 * 0.01 * binom.pmf(0, 2, chance)
    assert most(2, 2, 1, 2.0, 0.01) == pytest.approx(0.98712, abs=1e-5)
    assert printed == pytest.approx(0.98636, abs=1e-5)
    assert p_value(Guesses(2, 2, 1), 2.0, 0.01) == 1.0


# Randomised response


def test_as_many_right_claims_are_refuted_as_the_level_says() -> None:
    """Randomised response with ε = 1 reaches the bound for δ = 0. False alarm of each comparison: below 1e-9."""
    runs, made, level, epsilon = 4000, 60, 0.05, 1.0
    rng = np.random.default_rng(5)
    tails = [p_value(Guesses(made, made, right), epsilon, 0.0) for right in range(made + 1)]
    refuted = {right for right, tail in enumerate(tails) if tail < level}
    chance = tails[min(refuted)]
    for stated, low, high in ((1.0, 0.0, level), (1.6, 0.3, 1.0)):
        count = sum(_right_of_response(rng, made, stated) in refuted for _ in range(runs))
        assert count <= binom.isf(1e-9, runs, high)
        assert count >= binom.ppf(1e-9, runs, low)
    assert 0.01 < chance < level  # the level is nearly used up, so that the comparison says something
    bounds = [lower_bound(Guesses(made, made, right), 0.0, level) > epsilon for right in range(made + 1)]
    assert {right for right, above in enumerate(bounds) if above} == refuted


def _right_of_response(rng: np.random.Generator, made: int, epsilon: float) -> int:
    coins = rng.integers(0, 2, made).astype(np.bool_)
    kept = rng.random(made) < 1 / (1 + math.exp(-epsilon))
    return guesses_of(np.where(kept, coins, ~coins).astype(np.float64), coins, made).right
