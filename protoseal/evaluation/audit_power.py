"""How many guesses an audit should make, and what it would then find if the noise were smaller than is said.

Scores of canaries that are out are N(0, 1), of those that are in N(shift, spread²). Everything here follows from public
numbers before the run, so that the number of guesses is fixed as the theorem demands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from protoseal.evaluation.audit import Guesses, lower_bound, p_value

_SHARES = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0)
"""Of all canaries, those that are guessed."""
_FEWEST = 10
_OUT = NormalDist()


@dataclass(frozen=True)
class Separation:
    """How far canaries that are in stand off, in standard deviations of those that are out. Both are positive."""

    shift: float
    spread: float = 1.0

    def right(self, canaries: int, made: int) -> float:
        """The number of right guesses that is expected of ``made``, half of them for the highest scores."""
        share = made / (2 * canaries)
        if share == 0:
            return 0.0
        inside = NormalDist(self.shift, self.spread)
        high, low = self._quantile(1 - share), self._quantile(share)
        return canaries * ((1 - inside.cdf(high)) + _OUT.cdf(low)) / 2

    def _quantile(self, share: float) -> float:
        """Of scores, half of which are in."""
        inside = NormalDist(self.shift, self.spread)
        least, most = -40.0, 40.0 + self.shift + 40.0 * self.spread
        for _ in range(100):
            middle = (least + most) / 2
            below = (inside.cdf(middle) + _OUT.cdf(middle)) / 2
            least, most = (middle, most) if below < share else (least, middle)
        return most


def best_guesses(canaries: int, wrong: Separation, claimed: float, delta: float) -> int:
    """The number of guesses with which a mechanism that is ``wrong`` is told from the claim best, on the average.

    Of a few shares of the canaries; 10, or all if there are fewer, at least.
    """
    least = min(_FEWEST, canaries)
    choices = sorted({max(least, 2 * math.floor(share * canaries / 2)) for share in _SHARES})
    return min(choices, key=lambda made: p_value(_expected(canaries, made, wrong), claimed, delta))


def expected_bound(canaries: int, made: int, true: Separation, delta: float, level: float) -> float:
    """The bound that an audit finds for the expected number of right guesses."""
    return lower_bound(_expected(canaries, made, true), delta, level)


def _expected(canaries: int, made: int, true: Separation) -> Guesses:
    return Guesses(canaries, made, min(made, math.floor(true.right(canaries, made))))
