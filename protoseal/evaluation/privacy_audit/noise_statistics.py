"""Statistical tests of noise on a grid: values that occur again, depend on others, or have another distribution.

Noise that repeats, or is a combination of other noise, cancels in a difference that anybody may take, however large its
deviation is. Values are in units of the deviation, which is 2^20 steps of the grid. A p-value is the probability, if
the noise is drawn as claimed, of a result as far out.

Limits. P-values of coincidences are those of a negative binomial law with the exact mean, and a variance that allows
for triples; those of correlations are Chernoff bounds; those of dependence are exact. Correlations at single distances
show only if they add up over all values.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import signal, stats  # type: ignore[import-untyped]  # it ships no types

from privacy.mechanisms.grid import SIGMA

Float = NDArray[np.float64]

WINDOWS = (8, 256)
"""Largest differences of two magnitudes that coincide, in steps: exact sums may be some steps off by rounding."""
_EACH = 1 / math.sqrt(math.pi)
"""Mean of the density of a magnitude, at another magnitude."""
_TRIPLES = 4 / (2 * math.pi * math.sqrt(3)) - _EACH**2
"""Variance of that density."""
_RATES = np.geomspace(1e-5, 0.495, 200)
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
    mean = draws * numbers * (numbers - 1) / 2 * density * _EACH
    if not mean:
        return 1.0
    spread = 2 * (numbers - 2) * density * _TRIPLES / _EACH
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
    exponents = -_RATES * abs(total) - count / 2 * np.log((1 + np.sqrt(1 - 4 * _RATES**2)) / 2)
    return 2 * math.exp(min(0.0, float(exponents.min())))


def shifts_p(values: Float) -> float:
    """Return a bound on the p-value of the largest correlation of ``values`` (n,) with themselves.

    They are compared at each distance, and in reverse order about each place.
    """
    count = len(values)
    if count < 3:
        return 1.0
    forward = signal.fftconvolve(values, values[::-1])[count:]
    turned = signal.fftconvolve(values, values)
    # A value's square is no product of two values.
    turned[::2] -= values**2
    mirrors = -_RATES * np.abs(turned).max() - count / 4 * np.log(1 - 4 * _RATES**2)
    distances = count * products_p(float(np.abs(forward).max()), count)
    places = 4 * count * math.exp(min(0.0, float(mirrors.min())))
    return min(1.0, 2 * min(distances, places))


def dependence_p(rows: Float) -> float:
    """Return the p-value of what is new in each row of ``rows`` (N, D), or in each column where N > D.

    The squared distance of the k-th of N ≤ D independent rows from the space of those before it has a chi-squared
    law with D − k + 1 degrees of freedom, and these distances are independent (Bartlett 1933).
    """
    vectors = rows if len(rows) <= rows.shape[1] else rows.T
    count, size = vectors.shape
    if not count:
        return 1.0
    new = np.square(np.diagonal(np.linalg.qr(vectors.T, mode="r")))
    low = stats.chi2.cdf(new, size - np.arange(count))
    together = float(stats.chi2.sf(-2 * np.log(np.maximum(low, 1e-300)).sum(), 2 * count))
    return float(min(1.0, 2 * min(together, count * float(low.min()))))


def ratio_p(values: Float) -> float:
    """Return the p-value of Geary's ratio: mean magnitude over root mean square, which differs for other shapes.

    Its mean and variance are exact; its skewness, −1.764/√n, is allowed for (Cornish and Fisher).
    """
    if not values.any():
        return 0.0
    ratio = float(np.abs(values).mean() / math.sqrt(float(np.square(values).mean())))
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
