"""What is known of Gaussian noise in closed form: its exact (ε, δ), and how near the discrete one is to it."""

from __future__ import annotations

import math

from algorithms.grid import SIGMA

RARE = 1000.0
"""Minus the natural logarithm of the probability of what :func:`discreteness` leaves out."""

_FAR = 26.0
"""Beyond it erfc is near to underflow, and its asymptotic series has all of float64's digits."""


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The least δ such that Gaussian noise is (ε, δ)-private: Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ).

    ``mu`` is sensitivity over standard deviation, 0 or more; R independent releases with μ each are one with √R·μ
    (Balle and Wang 2018, theorem 8; Dong, Roth and Su 2022, corollary 3.3). The difference of two nearly equal
    numbers: right to 1e-15, not to a relative error.
    """
    if mu == 0:
        return 0.0
    near, far = mu / 2 - epsilon / mu, mu / 2 + epsilon / mu
    # e^ε·Φ(−far) without either factor, which overflow and underflow: ε − far²/2 = −near²/2.
    lost = _scaled_erfc(far / math.sqrt(2)) * math.exp(-(near**2) / 2) / 2
    return max(0.0, math.erfc(-near / math.sqrt(2)) / 2 - lost)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest μ whose noise is (ε, δ)-private, to 1e-15 of it, by bisection of :func:`gaussian_delta`."""
    low, high = 0.0, 1.0
    while gaussian_delta(high, epsilon) <= delta:
        low, high = high, 2 * high
    while high - low > 1e-15 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if gaussian_delta(middle, epsilon) <= delta else (low, middle)
    return low


def discreteness(coordinates: int, steps: float = SIGMA) -> tuple[float, float]:
    """How far discrete Gaussian noise is from continuous noise that is rounded: bounds of log p/q and of log q/p.

    p is the density of ``coordinates`` integers, each with noise N_Z(0, σ²), σ = ``steps`` ≥ 1, over all releases and
    whatever was chosen in view of earlier ones; q that with round(N(0, σ²)) instead. Sums are integers, so rounding the
    noise is rounding the noisy sum, which costs no privacy. The first bound always holds; the second but for a set of
    probability exp(−:data:`RARE`) under q, whose part in a δ is nothing beside float64's rounding.

    With φ the density of N(0, σ²), the ratio of rounded noise to φ at k is the mean over t in [−½, ½] of
    exp(−t²/2σ²)·cosh(kt/σ²), whose logarithm is at least −1/(24σ²) (Jensen's inequality) and at most k²/(24σ⁴)
    (sinh(x)/x ≤ exp(x²/6)). The discrete one is φ/Σφ, with Σφ − 1 in [0, 3·exp(−2π²σ²)] (Poisson summation). The sum
    of k²/σ² over coordinates is a χ² one but for the rounding, and bounded by Laurent and Massart 2000, lemma 1.
    """
    if coordinates == 0:
        return 0.0, 0.0
    above = coordinates / (24 * steps**2)
    chi_square = coordinates + 2 * math.sqrt(coordinates * RARE) + 2 * RARE
    rounded = (1 + 1 / steps) * (chi_square + coordinates / (4 * steps))
    normalised = 3 * coordinates * math.exp(-2 * (math.pi * steps) ** 2)
    return above, rounded / (24 * steps**2) + normalised


def _scaled_erfc(x: float) -> float:
    """exp(x²)·erfc(x) for x ≥ 0."""
    if x < _FAR:
        return math.exp(x * x) * math.erfc(x)
    inverse = 1 / (2 * x * x)
    return (1 - inverse * (1 - 3 * inverse * (1 - 5 * inverse))) / (x * math.sqrt(math.pi))
