"""Noise that may be released: integers of the discrete Gaussian distribution, drawn exactly.

Canonne, Kamath and Steinke, *The discrete Gaussian for differential privacy* (2020), Algorithms 1 to 3, for many draws
at once: trials exp(-γ) from fractions, discrete Laplace draws from those, discrete Gaussian draws from those. Every
comparison is one of integers, against words from the operating system, so the probabilities are what the formulas say:
no float takes part. sigma is a power of two up to 2^20, which keeps every number within 63 bits and lets the
Laplace distribution have the same scale, where the paper takes the next whole number above sigma.

The limits. How long a call takes follows from what is drawn: whoever can time a single draw learns of its magnitude
(Jin, McMurtry, Rubinstein and Ohrimenko 2022). Draw all of a release's noise in one call. And a draw of
magnitude 2^31 or more would not fit; it has a probability below e^-2047, at any of the sigmas.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bool = NDArray[np.bool_]

MAX_SIGMA_LOG2 = 20
_AT_ONCE = 1 << 17
"""Attempts that are made together: enough to be quick, and some megabytes."""


def discrete_gaussian(count: int, sigma_log2: int) -> Ints:
    """``count`` independent draws of N_Z(0, sigma²) with sigma = 2^sigma_log2, int64 (count,).

    An integer x has probability exp(-x²/2sigma²) / Σ_y exp(-y²/2sigma²). The variance is sigma² or a little less.
    Raises ``ValueError`` unless count ≥ 0 and 0 ≤ sigma_log2 ≤ 20.
    """
    _check(count, sigma_log2)
    return _collect(count, lambda attempts: _gaussian_attempts(attempts, sigma_log2))


def bernoulli_exp(numerators: Ints, denominator: int) -> Bool:
    """For each numerator n ≥ 0, shape (m,), whether a trial of probability exp(-n/denominator) succeeds, bool (m,).

    Algorithm 1: a trial for the fraction, and one of exp(-1) for each whole part, until one fails. Raises
    ``ValueError`` for a negative numerator, or unless 1 ≤ denominator ≤ 2^41.
    """
    if not 1 <= denominator <= 2 ** (2 * MAX_SIGMA_LOG2 + 1) or (numerators < 0).any():
        raise ValueError("numerators are 0 or more and the denominator is between 1 and 2^41")
    whole, rest = np.divmod(numerators, denominator)
    succeeds = _exp_of_fraction(rest, denominator)
    going = np.flatnonzero(succeeds & (whole > 0))
    while going.size:
        whole[going] -= 1
        succeeds[going] = _exp_minus_one(going.size)
        going = going[succeeds[going] & (whole[going] > 0)]
    return succeeds


def _gaussian_attempts(attempts: int, sigma_log2: int) -> Ints:
    """Algorithm 3: a Laplace draw y of scale sigma is kept with probability exp(-(|y| - sigma)²/2sigma²)."""
    sigma = 1 << sigma_log2
    drawn = _laplace_attempts(attempts, sigma_log2)
    return drawn[bernoulli_exp(np.square(np.abs(drawn) - sigma), 2 * sigma * sigma)]


def _laplace_attempts(attempts: int, scale_log2: int) -> Ints:
    """Algorithm 2: a magnitude u + scale·v, u < scale kept with probability exp(-u/scale), v geometric; then a sign."""
    scale = 1 << scale_log2
    low = _below(scale, attempts)
    low = low[bernoulli_exp(low, scale)]
    sizes = low + scale * _geometric(low.size)
    negative = _below(2, sizes.size) == 1
    return np.where(negative, -sizes, sizes)[~_second_zero(sizes, negative)]


def _second_zero(sizes: Ints, negative: Bool) -> Bool:
    """Zero with a minus sign: it would give zero twice its share."""
    return np.asarray(negative & (sizes == 0))


def _geometric(count: int) -> Ints:
    """How many trials of exp(-1) succeed before one fails, int64 (count,)."""
    successes = np.zeros(count, dtype=np.int64)
    going = np.arange(count)
    while going.size:
        going = going[_exp_minus_one(going.size)]
        successes[going] += 1
    return successes


def _exp_minus_one(count: int) -> Bool:
    return _exp_of_fraction(np.ones(count, dtype=np.int64), 1)


def _exp_of_fraction(numerators: Ints, denominator: int) -> Bool:
    """Trials of probability exp(-γ) with γ = n/denominator ≤ 1: the first k at which one of γ/k fails is odd."""
    odd = np.zeros(numerators.size, dtype=np.bool_)
    going, k = np.arange(numerators.size), 1
    while going.size:
        again = _below(denominator * k, going.size) < numerators[going]
        odd[going[~again]] = k % 2 == 1
        going, k = going[again], k + 1
    return odd


def _below(bound: int, count: int) -> Ints:
    """Uniform on 0 … bound − 1 for a bound up to 2^63, int64 (count,): words beyond its last multiple are redrawn."""
    if bound == 1:
        return np.zeros(count, dtype=np.int64)
    width = next(width for width in (1, 2, 4, 8) if bound < 1 << 8 * width)
    last = (1 << 8 * width) // bound * bound - 1
    words = _words(count, width)
    while (beyond := np.flatnonzero(words > last)).size:
        words[beyond] = _words(beyond.size, width)
    return (words % words.dtype.type(bound)).astype(np.int64)


def _words(count: int, width: int) -> NDArray[np.unsignedinteger[Any]]:
    """Words of ``width`` bytes from the operating system."""
    return np.frombuffer(secrets.token_bytes(width * count), dtype=f"<u{width}").copy()


def _collect(count: int, attempt: Callable[[int], Ints]) -> Ints:
    """The first ``count`` draws that attempts leave. Less than half of the attempts at a Gaussian draw succeed."""
    parts, missing = [np.zeros(0, dtype=np.int64)], count
    while missing:
        parts.append(attempt(min(9 * missing // 4 + 16, _AT_ONCE))[:missing])
        missing -= parts[-1].size
    return np.concatenate(parts)


def _check(count: int, log2: int) -> None:
    if count < 0 or not 0 <= log2 <= MAX_SIGMA_LOG2:
        raise ValueError(f"count is 0 or more and the exponent 0 to {MAX_SIGMA_LOG2}, not {count} and {log2}")
