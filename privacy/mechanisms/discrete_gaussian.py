"""Discrete Gaussian noise for differentially private releases: integers, sampled exactly.

The sampler follows Canonne, Kamath and Steinke, *The discrete Gaussian for differential privacy* (2020), Algorithms 1
to 3, for many draws at once: Bernoulli trials of probability exp(-γ) from fractions, discrete Laplace draws from the
trials, discrete Gaussian draws from the Laplace draws. Every comparison is between integers and words from the
operating system; no float takes part, so the probabilities are exact. sigma is a power of two up to 2^20, which keeps
every number within 63 bits and allows sigma as the Laplace scale, where the paper takes the next integer above sigma.

:func:`discreteness` bounds the distance to the continuous noise that an accountant counts.

Limits: the duration of a call depends on the draws, so that timing a single draw reveals its magnitude (Jin, McMurtry,
Rubinstein and Ohrimenko 2022); draw all of a release's noise in one call. A draw of magnitude 2^31 or more would not
fit, but has a probability below e^-2047 at every sigma.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.mechanisms.grid import SIGMA

Ints = NDArray[np.int64]
Bool = NDArray[np.bool_]

MAX_SIGMA_LOG2 = 20
_AT_ONCE = 1 << 17
"""Number of attempts made together: enough to be fast, in a few megabytes."""


def discrete_gaussian(count: int, sigma_log2: int) -> Ints:
    """Return ``count`` independent draws of N_Z(0, sigma²) with sigma = 2^sigma_log2, int64 (count,).

    An integer x has probability exp(-x²/2sigma²) / Σ_y exp(-y²/2sigma²). The variance is sigma² or slightly less.
    Raises ``ValueError`` unless count ≥ 0 and 0 ≤ sigma_log2 ≤ 20.
    """
    _check(count, sigma_log2)
    return _collect(count, lambda attempts: _gaussian_attempts(attempts, sigma_log2))


def bernoulli_exp(numerators: Ints, denominator: int) -> Bool:
    """Run one trial of success probability exp(-n/denominator) for each numerator n ≥ 0 (m,); return bool (m,).

    Algorithm 1 runs a trial for the fractional part, and a trial of exp(-1) for each unit of the whole part, until one
    fails. Raises ``ValueError`` for a negative numerator, or unless 1 ≤ denominator ≤ 2^41.
    """
    if not 1 <= denominator <= 2 ** (2 * MAX_SIGMA_LOG2 + 1) or (numerators < 0).any():
        raise ValueError("numerators must be at least 0 and the denominator between 1 and 2^41")
    # exp(-(w + r)) = exp(-r)·exp(-1)^w: a number leaves the loop at its first trial that fails.
    whole, rest = np.divmod(numerators, denominator)
    succeeds = _exp_of_fraction(rest, denominator)
    going = np.flatnonzero(succeeds & (whole > 0))
    while going.size:
        whole[going] -= 1
        succeeds[going] = _exp_minus_one(going.size)
        going = going[succeeds[going] & (whole[going] > 0)]
    return succeeds


def _gaussian_attempts(attempts: int, sigma_log2: int) -> Ints:
    """Run Algorithm 3: keep a Laplace draw y of scale sigma with probability exp(-(|y| - sigma)²/2sigma²)."""
    # The paper has the scale t = ⌊sigma⌋ + 1 and the exponent (|y| - sigma²/t)²/2sigma². With t = sigma all is whole.
    sigma = 1 << sigma_log2
    drawn = _laplace_attempts(attempts, sigma_log2)
    return drawn[bernoulli_exp(np.square(np.abs(drawn) - sigma), 2 * sigma * sigma)]


def _laplace_attempts(attempts: int, scale_log2: int) -> Ints:
    """Run Algorithm 2: a magnitude u + scale·v, u < scale kept with probability exp(-u/scale), v geometric; a sign."""
    # P(u)·P(v) ∝ exp(-u/scale)·exp(-1)^v = exp(-(u + scale·v)/scale), the Laplace magnitude.
    scale = 1 << scale_log2
    low = _below(scale, attempts)
    low = low[bernoulli_exp(low, scale)]
    sizes = low + scale * _geometric(low.size)
    negative = _below(2, sizes.size) == 1
    return np.where(negative, -sizes, sizes)[~_second_zero(sizes, negative)]


def _second_zero(sizes: Ints, negative: Bool) -> Bool:
    """Return the mask of zeros with a minus sign, which would give zero twice its probability."""
    return np.asarray(negative & (sizes == 0))


def _geometric(count: int) -> Ints:
    """Return the numbers of trials of exp(-1) that succeed before one fails, int64 (count,)."""
    successes = np.zeros(count, dtype=np.int64)
    going = np.arange(count)
    while going.size:
        going = going[_exp_minus_one(going.size)]
        successes[going] += 1
    return successes


def _exp_minus_one(count: int) -> Bool:
    return _exp_of_fraction(np.ones(count, dtype=np.int64), 1)


def _exp_of_fraction(numerators: Ints, denominator: int) -> Bool:
    """Run trials of probability exp(-γ), γ = n/denominator ≤ 1: True if the first k whose trial γ/k fails is odd."""
    # The first failure is at k with probability γ^(k-1)/(k-1)! − γ^k/k!. Over odd k these add up to exp(-γ).
    odd = np.zeros(numerators.size, dtype=np.bool_)
    going, k = np.arange(numerators.size), 1
    while going.size:
        again = _below(denominator * k, going.size) < numerators[going]
        odd[going[~again]] = k % 2 == 1
        going, k = going[again], k + 1
    return odd


def _below(bound: int, count: int) -> Ints:
    """Draw uniformly from 0 … bound − 1 ≤ 2^63, int64 (count,); redraw words beyond the bound's last multiple."""
    if bound == 1:  # a word modulo 1 would do, at the price of a word
        return np.zeros(count, dtype=np.int64)
    width = next(width for width in (1, 2, 4, 8) if bound < 1 << 8 * width)
    # Words beyond the last multiple would make small remainders more probable than others.
    last = (1 << 8 * width) // bound * bound - 1
    words = _words(count, width)
    while (beyond := np.flatnonzero(words > last)).size:
        words[beyond] = _words(beyond.size, width)
    return (words % words.dtype.type(bound)).astype(np.int64)


def _words(count: int, width: int) -> NDArray[np.unsignedinteger[Any]]:
    """Return words of ``width`` bytes from the operating system."""
    # Never a seeded generator: whoever learns its seed subtracts the noise.
    return np.frombuffer(secrets.token_bytes(width * count), dtype=f"<u{width}").copy()


def _collect(count: int, attempt: Callable[[int], Ints]) -> Ints:
    """Return the first ``count`` successful draws; less than half of the attempts at a Gaussian draw succeed."""
    parts, missing = [np.zeros(0, dtype=np.int64)], count
    while missing:
        # Which attempts are rejected does not depend on the accepted values, so the first accepted ones are fair draws.
        parts.append(attempt(min(9 * missing // 4 + 16, _AT_ONCE))[:missing])
        missing -= parts[-1].size
    return np.concatenate(parts)


def _check(count: int, log2: int) -> None:
    if count < 0 or not 0 <= log2 <= MAX_SIGMA_LOG2:
        raise ValueError(
            f"count must be at least 0 and sigma_log2 0 to {MAX_SIGMA_LOG2}, not {count} and {log2}"
        )


RARE = 1000.0
"""Minus the natural logarithm of the probability of the set that :func:`discreteness` leaves out."""


def discreteness(coordinates: int, steps: float = SIGMA) -> tuple[float, float]:
    """Return bounds of log p/q and of log q/p, for discrete Gaussian noise p and rounded continuous noise q.

    p is the density of ``coordinates`` integers, each with noise N_Z(0, σ²), σ = ``steps`` ≥ 1, over all releases, even
    if releases were chosen after seeing earlier ones. q is that density with round(N(0, σ²)) instead. Sums are
    integers, so rounding the noise is rounding the noisy sum, which costs no privacy. The first bound always holds. The
    second bound holds outside a set of probability exp(−:data:`RARE`) under q, which is negligible in δ compared with
    float64's rounding.

    With φ the density of N(0, σ²), the ratio of rounded noise to φ at k is the mean over t in [−½, ½] of
    exp(−t²/2σ²)·cosh(kt/σ²), whose logarithm is at least −1/(24σ²) (Jensen's inequality) and at most k²/(24σ⁴)
    (sinh(x)/x ≤ exp(x²/6)). The discrete density is φ/Σφ, with Σφ − 1 in [0, 3·exp(−2π²σ²)] (Poisson summation). The
    sum of k²/σ² over coordinates is χ²-distributed up to rounding, and bounded by Laurent and Massart 2000, lemma 1.
    """
    if coordinates == 0:
        return 0.0, 0.0
    above = coordinates / (24 * steps**2)
    chi_square = coordinates + 2 * math.sqrt(coordinates * RARE) + 2 * RARE
    rounded = (1 + 1 / steps) * (chi_square + coordinates / (4 * steps))
    normalised = 3 * coordinates * math.exp(-2 * (math.pi * steps) ** 2)
    return above, rounded / (24 * steps**2) + normalised
