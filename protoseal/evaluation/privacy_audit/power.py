"""Planning of an audit: the number of guesses, and the power to detect half the claimed noise, or less than claimed.

All of it is decided before the run, by simulating the canaries' scores from public numbers alone. The number of guesses
is then independent of the run, as the theorem in :mod:`protoseal.evaluation.privacy_audit.canary_bound` demands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from protoseal.evaluation.privacy_audit.canary_bound import Bool, Float, Guesses, fewest_refuting, guesses_of
from protoseal.evaluation.privacy_audit.trade_off import TradeOff

_SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64)
"""Shares of the canaries that an audit may guess."""
_FEWEST = 10
_RARE = math.log(1e20)
"""Right guesses that the claimed noise gives less often than this leave a doubt. The bound counts coins alone; the
scores that are guessed by stray as well, which is why the number is so small."""


@dataclass(frozen=True)
class Scored:
    """Simulated ``scores`` (m,) of canaries, of which ``coins`` (m,) are in."""

    scores: Float
    coins: Bool

    def guesses(self, made: int) -> Guesses:
        """Guess ``made`` of the coins."""
        return guesses_of(self.scores, self.coins, made)


@dataclass(frozen=True)
class AuditPlan:
    """An audit of ``canaries`` with ``made`` guesses, of which ``refuting`` or more right ones refute the claim.

    A true claim is refuted with a probability of at most ``level``. ``missed`` bounds the probability that a mechanism
    with half the noise is not refuted. ``doubtful`` or more right guesses are more than the claimed noise gives, but
    for a probability of 1e-20. Both rest on simulations.
    """

    canaries: int
    made: int
    level: float
    refuting: int
    missed: float
    doubtful: int


def best_guesses(canaries: int, curve: TradeOff, level: float, half: Sequence[Scored]) -> int:
    """Return the number of guesses that misses ``half`` the noise least often, out of a few shares of the canaries."""
    least = min(_FEWEST, canaries)
    choices = sorted({max(least, 2 * math.floor(share * canaries / 2)) for share in _SHARES})

    def quality(made: int) -> tuple[float, float]:
        refuting = fewest_refuting(canaries, made, curve, level)
        # The second value decides if half the noise is always missed: the mean number of wrong guesses.
        return _missed(made, refuting, half), (_wrong(made, half) + 1) / max(1e-9, made - refuting + 1)

    return min(choices, key=quality)


def planned(
    canaries: int, made: int, curve: TradeOff, level: float, half: Sequence[Scored], whole: Sequence[Scored]
) -> AuditPlan:
    """Return the plan for ``made`` guesses, by simulations with ``half`` and with all of the claimed noise."""
    refuting = fewest_refuting(canaries, made, curve, level)
    usual = _wrong(made, whole)
    right = made - max(0.0, usual - _error(usual, len(whole)))
    doubtful = next(
        (count for count in range(math.ceil(right), made + 1) if _rare(made, right, count)), made + 1
    )
    return AuditPlan(canaries, made, level, refuting, _missed(made, refuting, half), doubtful)


def _missed(made: int, refuting: int, half: Sequence[Scored]) -> float:
    """Bound the probability of fewer than ``refuting`` right guesses."""
    wrong = _wrong(made, half)
    return math.exp(-_exponent(made, wrong + _error(wrong, len(half)), made - refuting + 1))


def _wrong(made: int, simulated: Sequence[Scored]) -> float:
    """Return the mean number of wrong guesses."""
    return made - sum(each.guesses(made).right for each in simulated) / len(simulated)


def _error(count: float, simulations: int) -> float:
    """Return two deviations, and a little more for counts near 0, of a mean of such counts."""
    return (2 * math.sqrt(count * simulations + 1) + 1) / simulations


def _rare(made: int, usual: float, count: int) -> bool:
    return _exponent(made, usual, count) > _RARE


def _exponent(made: int, usual: float, count: int) -> float:
    """Bound -log P[``count`` or more of ``made`` independent events], of which ``usual`` are expected.

    Hoeffding 1963, theorem 1. 0 where that many are not unusual.
    """
    if not usual < count <= made:
        return 0.0
    exponent = count * math.log(count / usual)
    if count < made:
        exponent += (made - count) * math.log((made - count) / (made - usual))
    return exponent
