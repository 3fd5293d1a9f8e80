"""Noise that several sites add to one sum: what is known of a sum of discrete Gaussian draws, and why it costs no more.

**What is added.** A sum that opens has the terms of at least t sites, t the threshold of those that its attempt lists.
If c of these help whoever looks at it, they can take their own noise away, and T = t − c draws or more of N_Z(0, σ²)
are left on each coordinate, independent of one another and of who survived: nobody sees anything of a masked term
before it is settled whose terms are summed. The rest of the sum is exact, and one record moves it by Δ at most
(:class:`~algorithms.grid.Grid`). The grid is such that T·σ² ≥ (noise_multiplier·Δ)². More than T draws are more noise.

**Theorem** (after Genise, Micciancio, Peikert and Walter 2020; Kairouz, Liu and Steinke 2021, theorem 12, has it with
another constant). Let S be the sum of T independent draws of N_Z(0, σ²), σ ≥ 1, and G one of N_Z(0, T·σ²). Then at
every integer x

    |log P(S = x)/P(G = x)| ≤ Σ_{k<T} log (1 + ρ_k)/(1 − ρ_k),   ρ_k = 2q/(1 − q),   q = exp(−2π²σ²·k/(k + 1)).

*Proof.* By induction P(S_k = x) = C_k·exp(−x²/2kσ²)·F_k(x) with F_k between Π_{j<k} (1 − ρ_j) and Π_{j<k} (1 + ρ_j);
for k = 1, F = 1. For k + 1, complete the square: −(x − y)²/2kσ² − y²/2σ² = −x²/2(k + 1)σ² − (y − x/(k + 1))²/2s² with
s² = σ²·k/(k + 1). So P(S_{k+1} = x) is C·exp(−x²/2(k + 1)σ²) times a mean of values of F_k, weighted by the Gaussian
of width s around x/(k + 1) at the integers, and times the sum of these weights. By Poisson summation that sum is
s·√(2π)·(1 + 2·Σ_{m≥1} exp(−2π²s²m²)·cos(2πm·x/(k + 1))), within s·√(2π)·(1 ± ρ_k) since m² ≥ m. Both P(S = ·) and
P(G = ·) add up to 1, so that the ratio of two such densities is within the ratio of the bounds of F. ∎ (For T > 2
it is generous: ripples of F are averaged away, and of order exp(−2π²σ²·(T − 1)/T) alone is left.)

**What follows.** With p the density of the sum's noise on n coordinates and q that of continuous noise N(0, T·σ²),
rounded, |log p/q| is bounded by :func:`~secure_client.privacy.gaussian.discreteness` at √T·σ steps and n times the
above; and for T ≥ 2 and σ ≥ 1 that is less than its bounds for one draw with σ steps, which fall with σ² while the
above falls with exp(−π²σ²). At σ = 2^20 the theorem's bound is below exp(−10^13). So a sum is accounted for as one
release with the agreed noise multiplier and as many coordinates, whatever T is: not one number changes.
"""

from __future__ import annotations

import math

from algorithms.grid import SIGMA


def summed_distance(terms: int, steps: float = SIGMA) -> float:
    """The theorem's bound of |log P(S = x)/P(G = x)|, for ``terms`` T ≥ 1 draws with σ = ``steps`` ≥ 1.

    0 with 2^20 steps, as far as float64 can tell. Raises ``ValueError`` for other arguments.
    """
    if terms < 1 or not steps >= 1:
        raise ValueError(
            f"it is of 1 draw or more with a deviation of 1 or more, not of {terms} with {steps}"
        )
    return math.fsum(2 * math.atanh(_ripple(steps, k)) for k in range(1, terms))


def _ripple(steps: float, draws: int) -> float:
    """ρ_k: by how much, at most, the sum of a Gaussian over the integers depends on where it is centred."""
    q = math.exp(-2 * (math.pi * steps) ** 2 * draws / (draws + 1))
    return 2 * q / (1 - q)
