"""Statistical tests of samples, steps and noise, each against the distribution that is claimed.

A p-value is the probability, if the claim holds, of a value as far out as the recorded one. Functions return p-values
of both tails, or a single one where only one direction is a fault. Values of noise are in units of its deviation, which
is 2^20 steps of the grid. Noise that repeats, or is a combination of other noise, cancels in a difference that anybody
may take, however large its deviation is.

Limits. Tails of binomial spreads are exact up to rounding to a grid that is widened by its own error; those of overlaps
are normal with a continuity correction from a variance of 400 on, and exact below. P-values of coincidences are those
of a negative binomial law with the exact mean, and a variance that allows for triples; those of correlations are
Chernoff bounds; those of dependence are exact. Correlations at single distances show only if they add up over all
values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import signal, stats  # type: ignore[import-untyped]  # it ships no types

from privacy.mechanisms.grid import SIGMA

Float = NDArray[np.float64]
Ints = NDArray[np.int64]

_CELLS = 2**19
_EXACT_VARIANCE = 400.0
_ROWS_AT_ONCE = 1000
_EQUAL_COSINE = 0.9999
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


def least_p(tests: Mapping[str, float]) -> tuple[str, float]:
    """Return the name and the p-value of the test that says most, counted for all of the tests (Bonferroni)."""
    name = min(tests, key=tests.__getitem__)
    return name, min(1.0, tests[name] * len(tests))


class BinomialSpread:
    """Distribution of Σ (x − nq)²/(nq(1 − q)) over ``count`` independent binomial x of n ``trials`` at ``rate`` q.

    It has mean ``count``. Values of one size have a small sum, and values that vary together a large one. Raises
    ``ValueError`` unless 0 < q < 1, and counts and trials are 1 or more.
    """

    def __init__(self, count: int, trials: int, rate: float) -> None:
        if not (0.0 < rate < 1.0 and count > 0 and trials > 0):
            raise ValueError(f"no binomial spread of {count} values of {trials} trials at rate {rate}")
        self._count = count
        self._mean = trials * rate
        self._variance = trials * rate * (1 - rate)
        excess = (1 - 6 * rate * (1 - rate)) / self._variance
        # The law of one term, convolved with itself by FFT on a grid: with small nq the sum is far from chi-squared.
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

    def measure(self, values: Ints) -> float:
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
    # Variance of a hypergeometric law, summed over independent pairs of steps.
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
    return alike_p(_EQUAL_COSINE, pairs, directions) < level


def largest_cosine(projections: Float) -> float:
    """Return the largest absolute cosine of two different rows of projections (T, R), T ≥ 2."""
    lengths = np.linalg.norm(projections, axis=1, keepdims=True)
    rows = projections / np.maximum(lengths, np.finfo(np.float64).tiny)
    largest = 0.0
    for first in range(0, len(rows), _ROWS_AT_ONCE):
        cosines = np.abs(rows[first : first + _ROWS_AT_ONCE] @ rows.T)
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


WINDOWS = (8, 256)
"""Largest differences of two magnitudes that coincide, in steps: exact sums may be some steps off by rounding."""
_MEAN_DENSITY = 1 / math.sqrt(math.pi)
"""Mean of the density of a magnitude, at another magnitude."""
_DENSITY_VARIANCE = 4 / (2 * math.pi * math.sqrt(3)) - _MEAN_DENSITY**2
"""Variance of that density."""
_CHERNOFF_RATES = np.geomspace(1e-5, 0.495, 200)
"""Rates t of Chernoff bounds P(S ≥ s) ≤ E(exp(tS))/exp(ts), of which the best is taken."""
_SHAPES = {"uniform": (math.sqrt(3) / 2, 0.158), "Laplace": (math.sqrt(0.5), 0.354)}
"""Mean and deviation, in 1/√n, of Geary's ratio for noise of the claimed deviation and another distribution."""


def coincidences(values: Float, window: int) -> int:
    """Return the number of pairs of ``values`` (n,) with magnitudes that differ by ``window`` steps at most."""
    ordered = np.sort(np.abs(values.ravel()))
    last = np.searchsorted(ordered, ordered + (window + 0.5) / SIGMA, side="right")
    return int((last - np.arange(len(ordered)) - 1).sum())


def coincidences_p(seen: float, numbers: float, window: int, draws: int = 1) -> float:
    """Return the p-value of so many coincidences in ``draws`` sets of ``numbers`` values, or of more."""
    density = (2 * window + 1) / SIGMA
    # A pair coincides with the chance that two half-normal values fall within the window.
    mean = draws * numbers * (numbers - 1) / 2 * density * _MEAN_DENSITY
    if not mean:
        return 1.0
    # Pairs that share a value are dependent, which a Poisson law would leave out.
    spread = 2 * (numbers - 2) * density * _DENSITY_VARIANCE / _MEAN_DENSITY
    if spread <= 1e-9:
        return float(stats.poisson.sf(seen - 1, mean))
    return float(stats.nbinom.sf(seen - 1, mean / spread, 1 / (1 + spread)))


def copies_p(values: Float) -> float:
    """Return the p-value of the magnitudes in ``values`` that occur more than once, in whatever order and sign."""
    chances = [coincidences_p(coincidences(values, window), values.size, window) for window in WINDOWS]
    return min(1.0, len(WINDOWS) * min(chances))


def products_p(total: float, count: int) -> float:
    """Return a bound on the p-value of Σ x_i·x_{i+k} over ``count`` values, in either direction, for one distance k."""
    # The quadratic form is one of paths, whose eigenvalues are cosines. Its tails are heavier than a normal law's.
    exponents = -_CHERNOFF_RATES * abs(total) - count / 2 * np.log(
        (1 + np.sqrt(1 - 4 * _CHERNOFF_RATES**2)) / 2
    )
    return 2 * math.exp(min(0.0, float(exponents.min())))


def shifts_p(values: Float) -> float:
    """Return a bound on the p-value of the largest correlation of ``values`` (n,) with themselves.

    They are compared at each distance, and in reverse order about each place.
    """
    count = len(values)
    if count < 3:
        return 1.0
    # One FFT has the sums for all distances, and one those for all places of reflection.
    forward = signal.fftconvolve(values, values[::-1])[count:]
    mirrored = signal.fftconvolve(values, values)
    # A value's square is no product of two values.
    mirrored[::2] -= values**2
    mirrors = -_CHERNOFF_RATES * np.abs(mirrored).max() - count / 4 * np.log(1 - 4 * _CHERNOFF_RATES**2)
    distances = count * products_p(float(np.abs(forward).max()), count)
    places = 4 * count * math.exp(min(0.0, float(mirrors.min())))
    return min(1.0, 2 * min(distances, places))


def dependence_p(rows: Float) -> float:
    """Return the p-value of what is new in each row of ``rows`` (N, D), or in each column where N > D.

    The squared distance of the k-th of N ≤ D independent rows from the space of those before it has a chi-squared
    law with D − k + 1 degrees of freedom, and these distances are independent (Bartlett 1933).
    """
    # The diagonal of R has the distances of each row from the space of those before it.
    vectors = rows if len(rows) <= rows.shape[1] else rows.T
    count, size = vectors.shape
    if not count:
        return 1.0
    new = np.square(np.diagonal(np.linalg.qr(vectors.T, mode="r")))
    low = stats.chi2.cdf(new, size - np.arange(count))
    # Fisher's method for all rows together, Bonferroni for the smallest: a fault is in one row or in many.
    together = float(stats.chi2.sf(-2 * np.log(np.maximum(low, 1e-300)).sum(), 2 * count))
    return float(min(1.0, 2 * min(together, count * float(low.min()))))


def ratio_p(values: Float) -> float:
    """Return the p-value of Geary's ratio: mean magnitude over root mean square, which differs for other shapes.

    Its mean and variance are exact; its skewness, −1.764/√n, is allowed for (Cornish and Fisher).
    """
    if not values.any():
        return 0.0
    ratio = float(np.abs(values).mean() / math.sqrt(float(np.square(values).mean())))
    # Geary's test sees tails that a variance does not: a uniform or Laplace law can have the claimed deviation.
    mean, deviation = _ratio_moments(values.size)
    score = (ratio - mean) / deviation
    score += 1.764 / math.sqrt(values.size) / 6 * (score**2 - 1)
    return float(2 * stats.norm.sf(abs(score)))


def shapes_missed(numbers: int, level: float, power: float) -> list[str]:
    """Return the distributions that :func:`ratio_p` would miss at this level with more than 1 − ``power``."""
    mean, deviation = _ratio_moments(numbers)
    reach = float(stats.norm.isf(level / 2)) * deviation
    least = float(stats.norm.ppf(power)) / math.sqrt(numbers)
    return [name for name, (other, spread) in _SHAPES.items() if abs(other - mean) - reach < least * spread]


def _ratio_moments(numbers: int) -> tuple[float, float]:
    """Return mean and deviation of Geary's ratio; it is independent of the root mean square."""
    root = math.sqrt(2 / numbers) * math.exp(math.lgamma((numbers + 1) / 2) - math.lgamma(numbers / 2))
    mean = math.sqrt(2 / math.pi) / root
    return mean, math.sqrt((1 + (numbers - 1) * 2 / math.pi) / numbers - mean**2)
