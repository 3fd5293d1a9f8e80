"""Statistical tests of recorded samples and noise, each against the distribution that DP-SGD claims.

A p-value is the probability, if the claim holds, of a value as far out as the recorded one. Functions return p-values
of both tails, or a single one where only one direction is a fault.

Limits. Tails of binomial spreads are exact up to rounding to a grid that is widened by its own error; those of overlaps
are normal with a continuity correction from a variance of 400 on, and exact below.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]  # it ships no types

Float = NDArray[np.float64]
Ints = NDArray[np.int64]

_CELLS = 2**19
_EXACT_VARIANCE = 400.0
_AT_ONCE = 1000
_ALIKE = 0.9999
"""Cosine of two equal noises' projections, less float32's rounding."""


@dataclass(frozen=True)
class Tails:
    """P-values of a value as ``low``, or as ``high``, as the recorded one."""

    low: float
    high: float

    @property
    def both(self) -> float:
        """Return the p-value against either direction."""
        return min(1.0, 2 * min(self.low, self.high))


class BinomialSpread:
    """Distribution of Σ (x − nq)²/(nq(1 − q)) over ``count`` independent binomial x of n ``trials`` at ``rate`` q.

    It has mean ``count``. Values of one size have a small sum, and values that vary together a large one. Raises
    ``ValueError`` unless 0 < q < 1, and counts and trials are 1 or more.
    """

    def __init__(self, count: int, trials: int, rate: float) -> None:
        if not (0.0 < rate < 1.0 and count > 0 and trials > 0):
            raise ValueError(f"no binomial spread of {count} values of {trials} trials at rate {rate}")
        self._count, self._mean, self._variance = count, trials * rate, trials * rate * (1 - rate)
        excess = (1 - 6 * rate * (1 - rate)) / self._variance
        top = count + 12 * math.sqrt(count * (2 + excess)) + 100 * (1 + 1 / self._variance)
        self._cell = top / _CELLS
        # Values beyond 12 deviations and more have a probability below any level of a test.
        reach = math.sqrt(top * self._variance)
        first, last = max(0, math.floor(self._mean - reach)), min(trials, math.ceil(self._mean + reach))
        values = np.arange(first, last + 1)
        cells = np.rint((values - self._mean) ** 2 / self._variance / self._cell).astype(np.int64)
        weights = stats.binom.pmf(values, trials, rate)
        single = np.bincount(np.minimum(cells, 2 * _CELLS - 1), weights=weights, minlength=2 * _CELLS)
        total = np.fft.irfft(np.fft.rfft(single) ** count, 2 * _CELLS)
        self._below = np.cumsum(np.maximum(total, 0.0))

    def of(self, values: Ints) -> float:
        """Return the spread of recorded values (count,)."""
        return float(((values - self._mean) ** 2).sum() / self._variance)

    @property
    def of_one_size(self) -> float:
        """Return the least spread: that of values which all are the whole number next to the mean."""
        return self._count * (round(self._mean) - self._mean) ** 2 / self._variance

    def tails(self, spread: float) -> Tails:
        """Return the tails of a spread, both rounded up by the grid's error."""
        error = math.ceil(self._count / 2) + 1
        cell = round(spread / self._cell)
        return Tails(self._probability(cell + error), max(0.0, 1.0 - self._probability(cell - error - 1)))

    def _probability(self, cell: int) -> float:
        return 0.0 if cell < 0 else min(1.0, float(self._below[min(cell, len(self._below) - 1)]))


def overlap_tails(sizes: Ints, watched: int, overlap: int) -> Tails:
    """Return the tails of the ``overlap`` of consecutive samples with ``sizes`` (T,) among ``watched`` units.

    Given their sizes, independent samples are uniform subsets, so that the overlap is a sum of T − 1 independent
    hypergeometric numbers: neither the rate nor the spread of sizes matters. T ≥ 2.
    """
    pairs = list(zip(sizes[:-1].tolist(), sizes[1:].tolist(), strict=True))
    share = sizes / watched
    spreads = sizes[1:] * share[:-1] * (1 - share[:-1]) * (watched - sizes[1:]) / max(1, watched - 1)
    variance = float(spreads.sum())
    if variance >= _EXACT_VARIANCE:
        mean = float((sizes[1:] * share[:-1]).sum())
        normal = stats.norm(mean, math.sqrt(variance))
        return Tails(float(normal.cdf(overlap + 0.5)), float(normal.sf(overlap - 0.5)))
    law = np.ones(1)
    for one, other in pairs:
        values = np.arange(min(one, other) + 1)
        law = np.convolve(law, stats.hypergeom.pmf(values, watched, one, other))
    below = np.cumsum(law)
    high = 1.0 if overlap == 0 else 1.0 - float(below[min(overlap - 1, len(below) - 1)])
    return Tails(min(1.0, float(below[min(overlap, len(below) - 1)])), max(0.0, high))


def square_tails(total: float, numbers: float) -> Tails:
    """Return the tails of a sum of ``numbers`` squares of normal numbers of deviation 1."""
    law = stats.chi2(numbers)
    return Tails(float(law.cdf(total)), float(law.sf(total)))


def least_factor_refuted(numbers: float, level: float, power: float) -> float:
    """Return the factor of the noise from which on downwards :func:`square_tails` refutes it with this ``power``."""
    return math.sqrt(float(stats.chi2.ppf(level, numbers) / stats.chi2.ppf(power, numbers)))


def normal_p(value: float, deviation: float) -> float:
    """Return the p-value of a normal number of mean 0, in either direction."""
    return float(2 * stats.norm.sf(abs(value) / deviation))


def fourth_p(mean: float, numbers: int) -> float:
    """Return the p-value of a mean fourth power of normal numbers of deviation 1, in either direction.

    A fourth power has mean 3, variance 96 and skewness 10.1. The mean of n has nearly the log-normal law with its mean
    and variance, whose skewness is 9.8/√n; its low tail is too heavy below 200 numbers, and is not used there.
    """
    if mean < 3 and numbers < 200:
        return 1.0
    variance = math.log1p(96 / 9 / numbers)
    return normal_p(math.log(max(mean, 1e-300) / 3) + variance / 2, math.sqrt(variance))


def alike_p(cosine: float, pairs: int, directions: int) -> float:
    """Return the bound on the probability that one of ``pairs`` of independent noises has a cosine so near to ±1."""
    if directions < 2:
        return 1.0
    return min(1.0, pairs * float(stats.beta.sf(min(1.0, cosine**2), 0.5, (directions - 1) / 2)))


def repeats_would_show(pairs: int, directions: int, level: float) -> bool:
    """Return True if equal noise in one of the pairs has a p-value below ``level``."""
    return alike_p(_ALIKE, pairs, directions) < level


def largest_cosine(projections: Float) -> float:
    """Return the largest absolute cosine of two different rows of projections (T, R), T ≥ 2."""
    lengths = np.linalg.norm(projections, axis=1, keepdims=True)
    rows = projections / np.maximum(lengths, np.finfo(np.float64).tiny)
    largest = 0.0
    for first in range(0, len(rows), _AT_ONCE):
        cosines = np.abs(rows[first : first + _AT_ONCE] @ rows.T)
        cosines[np.arange(len(cosines)), first + np.arange(len(cosines))] = 0.0
        largest = max(largest, float(cosines.max()))
    return largest


def common_tails(projections: Float) -> Tails:
    """Return the tails of |Σ_t s_t|²/T for the rows s_t of projections (T, R): large for noise with a common part.

    Noise that cancels over steps makes it small.
    """
    steps, directions = projections.shape
    return square_tails(float((projections.sum(axis=0) ** 2).sum() / steps), directions)


def successive_p(parts: Iterable[Float]) -> float:
    """Return the p-value of Σ_t s_t·s_{t+1} over the successive rows of each part (T, R)."""
    product, count = 0.0, 0
    for rows in parts:
        product += float((rows[1:] * rows[:-1]).sum())
        count += rows[1:].size
    return normal_p(product, math.sqrt(count)) if count else 1.0
