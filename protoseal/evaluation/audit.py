"""A lower bound on ε from one run: which canaries were in it, guessed from what it released.

Steinke, Nasr and Jagielski 2023, "Privacy auditing with one (1) training run". Each of m canaries is in the data by a
fair coin. Whoever sees the output guesses some of the coins and abstains from the others; how many guesses are made is
fixed before the run. If the mechanism is (ε, δ)-private under adding or removing one record, v right guesses out of r,
or more, have a probability of at most (their theorem 5.2 and appendix D)

    P[W ≥ v] + 2·m·δ · max over i of P[v > W ≥ v − i]/i,      W ~ Binomial(r, 1/(1 + e^−ε)).

So many that this is tiny refute (ε, δ). A bound that lies below a claim confirms nothing: it is what this attack found.

**Where v is below the mean of W, a mechanism may exceed this**: one that is (2, 0.01)-private gets one or both of two
coins right with 0.98712, and the sum is 0.98636 (``tests/evaluation/test_audit_bound.py``, over all mechanisms). So few
right guesses refute nothing, and here they have a probability of 1.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]

GRID = 1000
"""Bounds are multiples of one over this."""
_FAR = 700 * GRID
"""No bound lies beyond it: e^ε has to fit a float."""


@dataclass(frozen=True)
class Guesses:
    """``made`` guesses of the coins of ``canaries``, ``right`` of them right. ``ValueError`` for other numbers."""

    canaries: int
    made: int
    right: int

    def __post_init__(self) -> None:
        if not 0 <= self.right <= self.made <= self.canaries:
            raise ValueError(f"{self.right} right of {self.made} guesses of {self.canaries} coins cannot be")


@dataclass(frozen=True)
class Audit:
    """What one run showed of a claim of (``claimed``, ``delta``).

    ``bound``: with a probability of at most ``level`` a mechanism whose ε at ``delta`` is not above it gets so many
    guesses right. ``p_value`` is that of the claim.
    """

    guesses: Guesses
    claimed: float
    delta: float
    level: float
    bound: float
    p_value: float

    @classmethod
    def of(cls, guesses: Guesses, claimed: float, delta: float, level: float) -> Audit:
        """See :func:`lower_bound` and :func:`p_value`."""
        bound = lower_bound(guesses, delta, level)
        return cls(guesses, claimed, delta, level, bound, p_value(guesses, claimed, delta))

    @property
    def refuted(self) -> bool:
        """Whether the bound is above the claim."""
        return self.bound > self.claimed


def p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """The probability of so many right guesses or more, at most, if the mechanism is (``epsilon``, ``delta``)-private.

    1 where no more are right than randomised response has on the average. ``ValueError`` unless ε is 0 or more and
    finite, and δ from 0 to 1.
    """
    if not (0 <= epsilon < math.inf and 0 <= delta <= 1):
        raise ValueError(f"ε is 0 or more and finite, and δ from 0 to 1, not {epsilon} and {delta}")
    return _p_value(guesses, _log_binomials(guesses.made), epsilon, delta)


def lower_bound(guesses: Guesses, delta: float, level: float) -> float:
    """The largest ε, on a grid of 1/:data:`GRID`, such that it and all below it there have p-values under ``level``.

    A mechanism that is (ε, δ)-private is so for the next ε of the grid too; for the bound to exceed ε, that one's
    p-value has to be below ``level``, which happens with a probability of at most ``level``. So it does not matter
    that nobody has shown the p-value to grow with ε. 0 where nothing is refuted.
    """
    logs = _log_binomials(guesses.made)
    for step in range(_FAR):
        if _p_value(guesses, logs, step / GRID, delta) >= level:
            return max(0, step - 1) / GRID
    return _FAR / GRID


def fair_coins(count: int) -> Bool:
    """``count`` coins from the operating system's entropy."""
    return (np.frombuffer(os.urandom(count), np.uint8) & 1).astype(np.bool_)


def guesses_of(scores: Float, coins: Bool, made: int) -> Guesses:
    """Guess the half of ``made`` with the highest ``scores`` (m,) to be in, that with the lowest to be out.

    ``coins`` (m,) tell who was. An odd number gives the one guess more to those in. ``ValueError`` for more guesses
    than canaries.
    """
    if not 0 <= made <= scores.size:
        raise ValueError(f"{made} guesses of {scores.size} coins")
    order = np.argsort(scores, kind="stable")
    lowest, highest = order[: made // 2], order[order.size - (made - made // 2) :]
    right = int(coins[highest].sum()) + int((~coins[lowest]).sum())
    return Guesses(scores.size, made, right)


def _p_value(guesses: Guesses, logs: Float, epsilon: float, delta: float) -> float:
    right, made = guesses.right, guesses.made
    wins = np.arange(made + 1)
    log_right = -math.log1p(math.exp(-epsilon))
    if right <= made * math.exp(log_right):
        return 1.0
    chances = np.exp(logs + made * log_right - (made - wins) * epsilon)
    windows = np.cumsum(chances[:right][::-1]) / np.arange(1, right + 1)
    return min(1.0, math.fsum(chances[right:]) + 2 * guesses.canaries * delta * float(windows.max()))


def _log_binomials(made: int) -> Float:
    """log C(r, k) for k from 0 to r."""
    factorials: Float = np.array([math.lgamma(k + 1) for k in range(made + 1)])
    binomials: Float = factorials[-1] - factorials - factorials[::-1]
    return binomials
