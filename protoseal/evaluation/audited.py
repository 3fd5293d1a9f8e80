"""What an audit needs of a mechanism, and the audit itself."""

from __future__ import annotations

from typing import Protocol

from protoseal.evaluation.audit import Audit, Bool, Float, fair_coins, guesses_of
from protoseal.evaluation.audit_power import Separation, best_guesses, expected_bound


class UnderAudit(Protocol):
    """A mechanism that takes canaries, each of which tells nothing of the others."""

    def claimed(self, canaries: int, delta: float) -> float:
        """The ε that the accountant tells."""
        ...

    def separation(self, noise: float = 1.0) -> Separation:
        """Of scores, if the noise were ``noise`` times as large as it is said to be."""
        ...

    def scores(self, coins: Bool) -> Float:
        """Run it once with the canaries (m,) whose coin says so; the higher a score (m,), the likelier it was one."""
        ...


def audit(
    audited: UnderAudit, canaries: int, delta: float, level: float, guesses: int | None = None
) -> Audit:
    """Run it once. ``level`` is the probability with which a right claim is refuted, at most.

    ``guesses`` are as many as find half the noise best, unless given.
    """
    claimed = audited.claimed(canaries, delta)
    made = guesses or best_guesses(canaries, audited.separation(0.5), claimed, delta)
    coins = fair_coins(canaries)
    return Audit.of(guesses_of(audited.scores(coins), coins, made), claimed, delta, level)


def expected(audited: UnderAudit, done: Audit, noise: float) -> float:
    """The bound that the same audit finds, about, where there is ``noise`` times the noise that is claimed."""
    guesses = done.guesses
    return expected_bound(guesses.canaries, guesses.made, audited.separation(noise), done.delta, done.level)
