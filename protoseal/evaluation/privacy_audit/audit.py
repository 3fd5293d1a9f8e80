"""Audit of a privacy mechanism: runs it once on canaries, guesses which were in, and gives a verdict on its claim."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from typing import Protocol

import numpy as np

from protoseal.evaluation.privacy_audit.canary_bound import (
    Bool,
    Float,
    Guesses,
    fair_coins,
    guesses_of,
    is_possible,
    p_value,
)
from protoseal.evaluation.privacy_audit.power import AuditPlan, Scored, best_guesses, planned
from protoseal.evaluation.privacy_audit.trade_off import TradeOff

HALF = 0.5
MOST_MISSED = 0.05
"""A claim stands only if half the noise passes with at most this probability, whatever the level of the test."""
STEPS = 64
"""Number of steps by which the noise doubles: bounds use noise times a power of 2^(1/64)."""
_SIMULATIONS = 3
_FARTHEST = 6 * STEPS


class UnderAudit(Protocol):
    """A mechanism that takes canaries, each of which reveals nothing about the others.

    ``noise`` is a factor of the claimed noise.
    """

    def epsilon(self, canaries: int, delta: float, noise: float = 1.0) -> float:
        """Return the ε that the accountant gives."""
        ...

    def curve(self, canaries: int, noise: float = 1.0) -> TradeOff:
        """Return the trade-off curve that the accountant's ε follows from."""
        ...

    def simulated(self, coins: Bool, noise: float = 1.0) -> Float:
        """Draw scores (m,) for ``coins`` (m,) without running the mechanism."""
        ...

    def scores(self, coins: Bool) -> Float:
        """Run the mechanism once with the canaries whose coin is true. A higher score (m,) means likelier in."""
        ...


class Verdict(StrEnum):
    """The outcome of an audit.

    ``REFUTED``: the run has more right guesses than the claim allows. ``STANDS``: the run has no more, half the noise
    would have been refuted, and the claimed noise explains the number. ``TOO_WEAK``: half the noise might have passed,
    or the run has more right guesses than the claimed noise gives and fewer than refute.
    """

    REFUTED = "refuted"
    STANDS = "stands"
    TOO_WEAK = "too weak to tell"


@dataclass(frozen=True)
class Audit:
    """One run's ``guesses`` under a ``plan``."""

    plan: AuditPlan
    guesses: Guesses

    @property
    def doubtful(self) -> bool:
        """Return True if the claimed noise cannot explain the number of right guesses."""
        return self.guesses.right >= self.plan.doubtful

    @property
    def verdict(self) -> Verdict:
        """Verdict; if the claim is not refuted, the plan's power decides."""
        if self.guesses.right >= self.plan.refuting:
            return Verdict.REFUTED
        weak = self.doubtful or self.plan.missed > min(self.plan.level, MOST_MISSED)
        return Verdict.TOO_WEAK if weak else Verdict.STANDS


def plan_of(audited: UnderAudit, canaries: int, level: float, guesses: int | None = None) -> AuditPlan:
    """Plan an audit, without running the mechanism.

    ``guesses`` is the number of guesses; by default the number that detects half the noise best.
    """
    curve = audited.curve(canaries)
    made = guesses or best_guesses(canaries, curve, level, _simulated(audited, canaries, HALF, 1))
    # Scores are simulated again, since the best number of guesses for some scores is worse for others.
    half, whole = (_simulated(audited, canaries, noise, _SIMULATIONS) for noise in (HALF, 1.0))
    return planned(canaries, made, curve, level, half, whole)


def audit(audited: UnderAudit, plan: AuditPlan) -> Audit:
    """Run the mechanism once, and guess as planned. A plan serves any number of runs."""
    coins = fair_coins(plan.canaries)
    return Audit(plan, guesses_of(audited.scores(coins), coins, plan.made))


def p_value_of(audited: UnderAudit, done: Audit) -> float:
    """Return the p-value of the claim."""
    return p_value(done.guesses, audited.curve(done.guesses.canaries))


def lower_bound(audited: UnderAudit, guesses: Guesses, delta: float, level: float) -> float:
    """Return an ε at ``delta`` that the mechanism exceeds: that of the least noise multiplier that is refuted.

    The claim is taken with its noise multiplied by 2^(j/64), for j from -384 to 384. If the mechanism really is the
    claimed one with some other noise, the bound is above its ε with a probability of at most ``level``. 0 where
    nothing is refuted. The bound is at least the claimed ε where the claim is refuted, and below it otherwise.
    """
    low, high = -_FARTHEST - 1, _FARTHEST + 1
    middle = 0  # includes the claim itself, so that bound and verdict agree
    while high - low > 1:
        refuted = _is_refuted(audited, guesses, _factor(middle), delta, level)
        low, high = (middle, high) if refuted else (low, middle)
        middle = (low + high) // 2
    return 0.0 if low < -_FARTHEST else audited.epsilon(guesses.canaries, delta, _factor(low))


def expected_bound(audited: UnderAudit, done: Audit, delta: float, noise: float) -> float:
    """Return the bound of the same audit where there is ``noise`` times the claimed noise, by one simulation."""
    (scored,) = _simulated(audited, done.plan.canaries, noise, 1)
    return lower_bound(audited, scored.guesses(done.plan.made), delta, done.plan.level)


def _is_refuted(audited: UnderAudit, guesses: Guesses, noise: float, delta: float, level: float) -> bool:
    """Return True if the claim is refuted; without a finite ε of the accountant there is no claim to refute."""
    if not isfinite(audited.epsilon(guesses.canaries, delta, noise)):
        return False
    return not is_possible(guesses, audited.curve(guesses.canaries, noise), level)


def _factor(step: int) -> float:
    """Return the factor of the noise: smaller steps are more noise."""
    return float(2.0 ** (-step / STEPS))


def _simulated(audited: UnderAudit, canaries: int, noise: float, times: int) -> list[Scored]:
    many = [fair_coins(canaries) for _ in range(times)]
    return [Scored(audited.simulated(coins, noise), coins) for coins in many]


def random() -> np.random.Generator:
    """Return a generator of simulations, from the operating system's entropy."""
    return np.random.default_rng()
