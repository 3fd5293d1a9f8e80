"""Statistical test of an audit: how probable so many right guesses about canaries are if the claimed guarantee holds.

Mahloujifar, Melis and Chaudhuri 2025, "Auditing f-differential privacy in one run". Each of m canaries is in the data
by a fair coin. Whoever sees the output guesses r of the coins and abstains from the others; r is fixed before the run.

**The bound.** Let p_i be the probability of i right guesses, t_k = Σ_{i>=k} i·p_i/m and s_k = Σ_{i>=k} (r - i)·p_i/m.
Flip one coin: outputs with that guess right, and k or more right in all, then have it wrong, and k - 1 or more right.
So the trade-off bounds the one probability by the other; averaged over coins and outcomes (g is convex)

    s_{k-1} >= g(t_k)    for every k.

Suppose that v or more guesses are right with probability τ. Under these constraints the other guesses take the least
probability if all of τ is at v exactly, and every p_{k-1} below is no more than its constraint asks for: moving
probability to a smaller i lowers t and raises s, and eases every other constraint. If even that least adds up to more
than 1, then τ is impossible. The p-value of v right guesses is the largest τ that is possible.

**Limits.** The p-value is valid whatever the mechanism does with several canaries at once. It is not tight: the best
mechanism may reach less. A curve that is not refuted is not confirmed.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protoseal.audit.trade_off import TradeOff

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]

LEAST_P = 1e-30
"""Least p-value: smaller p-values are reported as this."""
_ROUNDING = 1e-9
_HALVINGS = 40
"""Number of halvings in the search of a p-value's logarithm."""


@dataclass(frozen=True)
class Guesses:
    """``made`` guesses of the coins of ``canaries``, ``right`` of them right. ``ValueError`` for other numbers."""

    canaries: int
    made: int
    right: int

    def __post_init__(self) -> None:
        if not 0 <= self.right <= self.made <= self.canaries:
            raise ValueError(
                f"{self.right} right of {self.made} guesses of {self.canaries} coins is impossible: need 0 <= right "
                "<= made <= canaries"
            )


def is_possible(guesses: Guesses, curve: TradeOff, probability: float) -> bool:
    """Return whether so many right guesses, or more, may have this ``probability`` where ``curve`` holds."""
    made, limit = guesses.made, guesses.made / guesses.canaries if guesses.canaries else 0.0
    right = probability * guesses.right / max(1, guesses.canaries)
    wrong = probability * (made - guesses.right) / max(1, guesses.canaries)
    for count in range(guesses.right - 1, -1, -1):
        needed = curve.least(right)
        if needed <= wrong:  # no later term changes
            return True
        right += count / (made - count) * (needed - wrong)
        wrong = needed
        if right + wrong > limit * (1 + _ROUNDING):
            return False
    return True


def p_value(guesses: Guesses, curve: TradeOff) -> float:
    """Return the largest probability of so many right guesses, or more, where ``curve`` holds.

    Never below :data:`LEAST_P`, and rounded up by a part in 10^9 at most.
    """
    if is_possible(guesses, curve, 1.0):
        return 1.0
    low, high = math.log(LEAST_P), 0.0
    if not is_possible(guesses, curve, LEAST_P):
        return LEAST_P
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_possible(guesses, curve, math.exp(middle)) else (low, middle)
    return math.exp(high)


def fewest_refuting(canaries: int, made: int, curve: TradeOff, level: float) -> int:
    """Return the fewest right guesses of ``made`` whose p-value is below ``level``; ``made`` + 1 if there are none."""
    low, high = -1, made + 1
    while high - low > 1:
        middle = (low + high) // 2
        possible = is_possible(Guesses(canaries, made, middle), curve, level)
        low, high = (middle, high) if possible else (low, middle)
    return high


def fair_coins(count: int) -> Bool:
    """Return ``count`` coins from the operating system's entropy."""
    return (np.frombuffer(os.urandom(count), np.uint8) & 1).astype(np.bool_)


def guess_coins(scores: Float, coins: Bool, made: int) -> Guesses:
    """Guess the half of ``made`` with the highest ``scores`` (m,) to be in, those with the lowest to be out.

    ``coins`` (m,) are the truth. If ``made`` is odd, one more is guessed to be in. ``ValueError`` for more guesses than
    canaries.
    """
    if not 0 <= made <= scores.size:
        raise ValueError(f"{made} guesses exceed the {scores.size} coins")
    order = np.argsort(scores, kind="stable")
    lowest, highest = order[: made // 2], order[order.size - (made - made // 2) :]
    right = int(coins[highest].sum()) + int((~coins[lowest]).sum())
    return Guesses(scores.size, made, right)
