"""Tests of random draws, each of which fails a right sample with a probability below 1e-9."""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]  # it ships no types

_FALSE_ALARM = 1e-9
_LOG_FALSE_ALARM = math.log(4.0 / _FALSE_ALARM)
"""A test has up to four one-sided bounds."""

_cdf = np.vectorize(lambda x: 0.5 * (1.0 + math.erf(x / math.sqrt(2.0))), otypes=[np.float64])


class WrongNoiseError(AssertionError):
    """The sample is not what it should be."""


def check_sigma(draws: NDArray[np.float64], sigma: float) -> None:
    """Mean 0 and standard deviation sigma, by the tail of chi squared of Laurent and Massart (2000, lemma 1)."""
    n, x = draws.size, _LOG_FALSE_ALARM
    energy = float(np.square(draws / sigma).sum())
    if not n - 2.0 * math.sqrt(n * x) <= energy <= n + 2.0 * math.sqrt(n * x) + 2.0 * x:
        raise WrongNoiseError(f"{n} draws of sigma {math.sqrt(energy / n) * sigma}, not {sigma}")
    if abs(float(draws.mean())) > sigma * math.sqrt(2.0 * x / n):
        raise WrongNoiseError(f"the mean of {n} draws is {draws.mean()}")


def check_shape(draws: NDArray[np.float64], sigma: float) -> None:
    """Distributed as N(0, sigma²), by the inequality of Dvoretzky, Kiefer and Wolfowitz."""
    n = draws.size
    expected = _cdf(np.sort(draws) / sigma)
    steps = np.arange(n + 1) / n
    distance = max(float(np.abs(expected - steps[1:]).max()), float(np.abs(expected - steps[:-1]).max()))
    if distance > math.sqrt(_LOG_FALSE_ALARM / (2.0 * n)):
        raise WrongNoiseError(f"{n} draws are {distance} from the normal distribution")


def check_independent(left: NDArray[np.float64], right: NDArray[np.float64]) -> None:
    """Uncorrelated, also in how large they are; both are samples of one normal distribution of mean 0.

    Sizes by their ranks: of 400 draws, squares correlate by seven deviations once in 10^6 or 10^7 times.
    """
    sizes = stats.rankdata(np.abs(left)), stats.rankdata(np.abs(right))
    for x, y in ((left, right), sizes):
        correlation = float(np.corrcoef(x, y)[0, 1])
        if abs(correlation) > 7.0 / math.sqrt(left.size):
            raise WrongNoiseError(f"draws correlate: {correlation}")


def check_flooded(
    draws: NDArray[np.float64], bare: NDArray[np.float64] | float, error: float, sigma: float
) -> None:
    """Each of a few draws (n,) of N(0, sigma²) hides ``bare``, what would be there alone and is known within ``error``.

    One draw is as near as ``error`` to a given number with a probability below 2·error/(√(2π)·sigma); all n are below
    ``least`` with that of n draws as near to 0. Each of the two is half of a false alarm.
    """
    n, density = draws.size, 1.0 / (math.sqrt(2.0 * math.pi) * sigma)
    if 2.0 * error * density * n > _FALSE_ALARM / 2.0:
        raise ValueError(f"{n} right draws may be within {error} of what they hide")
    least = (_FALSE_ALARM / 2.0) ** (1.0 / n) / (2.0 * density)
    if (np.abs(draws - bare) <= error).any():
        raise WrongNoiseError(f"what is to be hidden is there: {draws}")
    if np.abs(draws).max() <= least:
        raise WrongNoiseError(f"{n} draws of sigma {sigma} are all within {least}: {draws}")
