"""A test of counts of draws against exact probabilities, which fails right draws with probability below 1e-9."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Ints = NDArray[np.int64]

_LOG_FALSE_ALARM = math.log(1e9)


class WrongDrawsError(AssertionError):
    """The draws are not of the distribution that they are held against."""


def check_counts(counts: Ints, chances: Float) -> None:
    """Counts (k,) are of draws with these chances, by the likelihood ratio form of the chi-squared test.

    The relative entropy D of counts to chances has P(D ≥ x) ≤ exp(-nx) (e n x/(k − 1))^(k − 1) once n·x ≥ k − 1,
    for every n: Agrawal, *Finite-sample concentration of the multinomial in relative entropy* (2020), theorem I.2.
    """
    n, freedom = int(counts.sum()), counts.size - 1
    seen = counts > 0
    if (chances[seen] <= 0.0).any():
        raise WrongDrawsError("a draw that cannot be")
    entropy = float((counts[seen] * np.log(counts[seen] / (n * chances[seen]))).sum())
    if entropy > freedom and entropy - freedom * math.log(math.e * entropy / freedom) > _LOG_FALSE_ALARM:
        raise WrongDrawsError(f"{n} draws in {counts.size} cells: {entropy} nats from what is expected")


def check_integers(draws: Ints, chances: Float) -> None:
    """Draws are of integers −r … r with these chances, (2r + 1,). The ends of the range have all beyond them."""
    reach = chances.size // 2
    near = np.clip(draws, -reach, reach) + reach
    check_counts(np.bincount(near, minlength=chances.size), chances)


def gaussian_chances(sigma: float, reach: int) -> Float:
    """Return the discrete Gaussian's probabilities of −reach … reach, with the tails at the ends."""
    return _folded(lambda x: -x * x / (2.0 * sigma * sigma), 40 * math.ceil(sigma), reach)


def _folded(log_mass: Callable[[Float], Float], far: int, reach: int) -> Float:
    far = max(far, reach + 1)
    mass = np.exp(log_mass(np.arange(-far, far + 1, dtype=np.float64)))
    mass /= mass.sum()
    inner = mass[far - reach : far + reach + 1].copy()
    inner[0] += mass[: far - reach].sum()
    inner[-1] += mass[far + reach + 1 :].sum()
    return inner
