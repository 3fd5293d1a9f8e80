"""Audit of a privacy mechanism: run it once on canaries, guess which were in, and give a verdict on its claim.

A mechanism is audited in two steps::

    plan = plan_audit(mechanism, canaries=20_000, level=0.05)
    result = audit_mechanism(mechanism, plan)  # result.verdict is refuted, stands, or too weak to tell

The plan fixes the number of guesses and the power to detect half of the claimed noise before the run, by simulating
the canaries' scores from public numbers alone. The number of guesses is then independent of the run, as the theorem
demands.

**The theorem** is that of Mahloujifar, Melis and Chaudhuri 2025, "Auditing f-differential privacy in one run". Each of
m canaries is in the data by a fair coin. Whoever sees the output guesses r of the coins and abstains from the others; r
is fixed before the run. Let p_i be the probability of i right guesses, t_k = Σ_{i>=k} i·p_i/m and
s_k = Σ_{i>=k} (r - i)·p_i/m. Flip one coin: outputs with that guess right, and k or more right in all, then have it
wrong, and k - 1 or more right. So the trade-off bounds the one probability by the other; averaged over coins and
outcomes (g is convex)

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
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from protoseal.audit.trade_off import TradeOff

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]
Simulations = Sequence[tuple[Float, Bool]]
"""Simulated scores (m,) of canaries and the coins (m,) that say which are in, for each simulation."""

LEAST_P = 1e-30
"""Least p-value: smaller p-values are reported as this."""
_ROUNDING = 1e-9
_HALVINGS = 40
"""Number of halvings in the search of a p-value's logarithm."""
HALF = 0.5
MOST_MISSED = 0.05
"""A claim stands only if half the noise passes with at most this probability, whatever the level of the test."""
STEPS = 64
"""Number of steps by which the noise doubles: bounds use noise times a power of 2^(1/64)."""
_FARTHEST_STEP = 6 * STEPS
_SIMULATIONS = 3
_GUESSED_SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64)
"""Shares of the canaries that an audit may guess."""
_FEWEST_GUESSES = 10
_RARE = math.log(1e20)
"""Right guesses that the claimed noise gives less often than this leave a doubt. The bound counts coins alone; the
scores that are guessed by stray as well, which is why the number is so small."""


class AuditedMechanism(Protocol):
    """A mechanism that takes canaries, each of which reveals nothing about the others.

    ``noise`` is a factor of the claimed noise.
    """

    def epsilon(self, canaries: int, delta: float, noise: float = 1.0) -> float:
        """Return the ε that the accountant gives."""
        ...

    def curve(self, canaries: int, noise: float = 1.0) -> TradeOff:
        """Return the trade-off curve that the accountant's ε follows from."""
        ...

    def simulated_scores(self, coins: Bool, noise: float = 1.0) -> Float:
        """Draw scores (m,) for ``coins`` (m,) without running the mechanism."""
        ...

    def scores(self, coins: Bool) -> Float:
        """Run the mechanism once with the canaries whose coin is true. A higher score (m,) means likelier in."""
        ...


class AuditVerdict(StrEnum):
    """The outcome of an audit.

    ``REFUTED``: the run has more right guesses than the claim allows. ``STANDS``: the run has no more, half the noise
    would have been refuted, and the claimed noise explains the number. ``TOO_WEAK``: half the noise might have passed,
    or the run has more right guesses than the claimed noise gives and fewer than refute.
    """

    REFUTED = "refuted"
    STANDS = "stands"
    TOO_WEAK = "too weak to tell"


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


@dataclass(frozen=True)
class CanaryAudit:
    """One run's ``guesses`` under a ``plan``."""

    plan: AuditPlan
    guesses: Guesses

    @property
    def is_doubtful(self) -> bool:
        """True if the claimed noise cannot explain the number of right guesses."""
        return self.guesses.right >= self.plan.doubtful

    @property
    def verdict(self) -> AuditVerdict:
        """Verdict; if the claim is not refuted, the plan's power decides."""
        if self.guesses.right >= self.plan.refuting:
            return AuditVerdict.REFUTED
        weak = self.is_doubtful or self.plan.missed > min(self.plan.level, MOST_MISSED)
        return AuditVerdict.TOO_WEAK if weak else AuditVerdict.STANDS


def plan_audit(
    mechanism: AuditedMechanism, canaries: int, level: float, guesses: int | None = None
) -> AuditPlan:
    """Plan an audit, without running the mechanism.

    ``guesses`` is the number of guesses; by default the number that detects half the noise best.
    """
    curve = mechanism.curve(canaries)
    made = guesses or _choose_guesses(canaries, curve, level, _simulate(mechanism, canaries, HALF, 1))
    # Scores are simulated again, since the best number of guesses for some scores is worse for others.
    half, whole = (_simulate(mechanism, canaries, noise, _SIMULATIONS) for noise in (HALF, 1.0))
    refuting = fewest_refuting(canaries, made, curve, level)
    wrong = _mean_wrong(made, whole)
    right = made - max(0.0, wrong - _count_error(wrong, len(whole)))
    doubtful = next(
        (count for count in range(math.ceil(right), made + 1) if _tail_exponent(made, right, count) > _RARE),
        made + 1,
    )
    return AuditPlan(canaries, made, level, refuting, _bound_missed(made, refuting, half), doubtful)


def audit_mechanism(mechanism: AuditedMechanism, plan: AuditPlan) -> CanaryAudit:
    """Run the mechanism once, and guess as planned. A plan serves any number of runs."""
    coins = fair_coins(plan.canaries)
    return CanaryAudit(plan, guess_coins(mechanism.scores(coins), coins, plan.made))


def claim_p_value(mechanism: AuditedMechanism, audit: CanaryAudit) -> float:
    """Return the p-value of the claim."""
    return p_value(audit.guesses, mechanism.curve(audit.guesses.canaries))


def lower_bound(mechanism: AuditedMechanism, guesses: Guesses, delta: float, level: float) -> float:
    """Return an ε at ``delta`` that the mechanism exceeds: that of the least noise multiplier that is refuted.

    The claim is taken with its noise multiplied by 2^(j/64), for j from -384 to 384. If the mechanism really is the
    claimed one with some other noise, the bound is above its ε with a probability of at most ``level``. 0 where
    nothing is refuted. The bound is at least the claimed ε where the claim is refuted, and below it otherwise.
    """
    low, high = -_FARTHEST_STEP - 1, _FARTHEST_STEP + 1
    # The accountant's claim is monotone in the noise, so bisection over its factor finds the least that is refuted.
    middle = 0  # the search begins at the claim itself, so that bound and verdict agree
    while high - low > 1:
        factor = _noise_factor(middle)
        # Without a finite ε of the accountant there is no claim to refute.
        has_claim = math.isfinite(mechanism.epsilon(guesses.canaries, delta, factor))
        refuted = has_claim and not is_possible(guesses, mechanism.curve(guesses.canaries, factor), level)
        low, high = (middle, high) if refuted else (low, middle)
        middle = (low + high) // 2
    return 0.0 if low < -_FARTHEST_STEP else mechanism.epsilon(guesses.canaries, delta, _noise_factor(low))


def expected_bound(mechanism: AuditedMechanism, audit: CanaryAudit, delta: float, noise: float) -> float:
    """Return the bound of the same audit where there is ``noise`` times the claimed noise, by one simulation."""
    ((scores, coins),) = _simulate(mechanism, audit.plan.canaries, noise, 1)
    return lower_bound(mechanism, guess_coins(scores, coins, audit.plan.made), delta, audit.plan.level)


def _noise_factor(step: int) -> float:
    """Return the factor of the noise: smaller steps are more noise."""
    return float(2.0 ** (-step / STEPS))


def fresh_generator() -> np.random.Generator:
    """Return a generator of simulations, from the operating system's entropy."""
    return np.random.default_rng()


# Power, by simulation


def _simulate(mechanism: AuditedMechanism, canaries: int, noise: float, times: int) -> Simulations:
    flips = [fair_coins(canaries) for _ in range(times)]
    return [(mechanism.simulated_scores(coins, noise), coins) for coins in flips]


def _choose_guesses(canaries: int, curve: TradeOff, level: float, half: Simulations) -> int:
    """Return the number of guesses that misses ``half`` the noise least often, out of a few shares of the canaries."""
    fewest = min(_FEWEST_GUESSES, canaries)
    choices = sorted({max(fewest, 2 * math.floor(share * canaries / 2)) for share in _GUESSED_SHARES})

    def weakness(made: int) -> tuple[float, float]:
        refuting = fewest_refuting(canaries, made, curve, level)
        # The second value decides if half the noise is always missed: the mean number of wrong guesses.
        return _bound_missed(made, refuting, half), (_mean_wrong(made, half) + 1) / max(
            1e-9, made - refuting + 1
        )

    return min(choices, key=weakness)


def _bound_missed(made: int, refuting: int, half: Simulations) -> float:
    """Bound the probability that half the noise gives fewer than ``refuting`` right guesses."""
    wrong = _mean_wrong(made, half)
    return math.exp(-_tail_exponent(made, wrong + _count_error(wrong, len(half)), made - refuting + 1))


def _mean_wrong(made: int, simulations: Simulations) -> float:
    return made - sum(guess_coins(*scored, made).right for scored in simulations) / len(simulations)


def _count_error(count: float, simulations: int) -> float:
    """Return two deviations, and a little more for counts near 0, of a mean of such counts."""
    return (2 * math.sqrt(count * simulations + 1) + 1) / simulations


def _tail_exponent(made: int, usual: float, count: int) -> float:
    """Bound -log P[``count`` or more of ``made`` independent events], of which ``usual`` are expected.

    Hoeffding 1963, theorem 1. 0 where that many are not unusual.
    """
    if not usual < count <= made:
        return 0.0
    exponent = count * math.log(count / usual)
    if count < made:
        exponent += (made - count) * math.log((made - count) / (made - usual))
    return exponent


# The theorem


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
    # From the constraint at k = v downwards: ``right`` is t_k, ``wrong`` is s_k, and each step adds the least p_{k-1}.
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
    # A stable order breaks ties by position, which is independent of the coins, as every guess has to be.
    order = np.argsort(scores, kind="stable")
    lowest, highest = order[: made // 2], order[order.size - (made - made // 2) :]
    right = int(coins[highest].sum()) + int((~coins[lowest]).sum())
    return Guesses(scores.size, made, right)
