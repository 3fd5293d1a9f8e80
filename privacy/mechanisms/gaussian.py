"""Bounds of the distance between discrete Gaussian noise and the continuous noise of an accountant."""

from __future__ import annotations

import math

from privacy.mechanisms.grid import SIGMA

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
