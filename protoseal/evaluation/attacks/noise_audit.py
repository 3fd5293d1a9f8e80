"""Audit of the noise mechanism at a run's parameters: the lower bound of ε that canaries show, beside the claimed ε.

The mechanism is played anew with canaries. Limit: the recorded messages are not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

from privacy.mechanisms.prototype_query import PrototypeQuery
from protoseal.evaluation.attacks.adversaries import Adversary
from protoseal.evaluation.attacks.case import Case
from protoseal.evaluation.attacks.recorded_run import RecordedRun
from protoseal.evaluation.attacks.verdicts import Measured
from protoseal.evaluation.privacy_audit.audit import (
    HALF,
    Audit,
    Verdict,
    audit,
    expected_bound,
    lower_bound,
    plan_of,
)
from protoseal.evaluation.privacy_audit.prototype_query import QueryUnderAudit
from secure_client.privacy.run_cost import SIMULATED_DELTA

CANARIES, DIM = 100_000, 4
"""Canaries of an audit, and the dimension of their features."""
LEVEL = 0.01
_NO_POWER = 1.5
"""Upper end of the interval of an audit that half the noise might have passed."""


class NoiseAudit(Case):
    """Case of an audit of a run's releases with each site's own noise; see :mod:`protoseal.evaluation.privacy_audit`.

    The undefended mechanism has half the claimed noise.
    """

    attack = "audit of the noise"
    metric = "lower bound of ε ÷ claimed ε"
    chance, margin = 0.0, 1.0
    question = "Does the noise mechanism lose more privacy than it claims?"
    ability = "learn more from noisy values than the claimed ε allows"
    not_covered = (
        "Noise that the recorded run left out, training by DP-SGD (`protoseal budget audit training`), noise shared"
        " among sites, and losses below the bound."
    )
    adversaries: Sequence[Adversary] = (Adversary.COORDINATOR,)

    def measure(self, run: RecordedRun, adversary: Adversary) -> Sequence[Measured]:  # noqa: ARG002 (all see releases)
        """Audit the agreed query over all releases of the run; nothing without noise of a site's own."""
        audited = _audited(run)
        if audited is None:
            return ()
        done = audit(audited, plan_of(audited, CANARIES, LEVEL))
        claimed = audited.epsilon(CANARIES, SIMULATED_DELTA)
        bound = lower_bound(audited, done.guesses, SIMULATED_DELTA, LEVEL)
        return (_measured(done, bound / claimed, claimed),)

    def reference(self, run: RecordedRun) -> Measured | None:
        """Return the audit that half the claimed noise would have."""
        audited = _audited(run)
        if audited is None:
            return None
        done = audit(audited, plan_of(audited, CANARIES, LEVEL))
        claimed = audited.epsilon(CANARIES, SIMULATED_DELTA)
        value = expected_bound(audited, done, SIMULATED_DELTA, HALF) / claimed
        return Measured(value, value, value, trials=CANARIES, basis="half the claimed noise")


def _audited(run: RecordedRun) -> QueryUnderAudit | None:
    agreement, privacy = run.agreement, run.agreement.privacy
    if privacy is None or privacy.distributed:
        return None
    query = PrototypeQuery(
        privacy.clip, privacy.weight(agreement.dim), privacy.noise_multiplier, min_count=1.0
    )
    return QueryUnderAudit(query, agreement.releases, DIM, privacy.unit)


def _measured(done: Audit, ratio: float, claimed: float) -> Measured:
    refuted, weak = (done.verdict is each for each in (Verdict.REFUTED, Verdict.TOO_WEAK))
    return Measured(
        value=ratio,
        low=ratio if refuted else 0.0,
        high=max(ratio, _NO_POWER) if weak else ratio,
        trials=CANARIES,
        basis="the mechanism at the agreed noise, played with canaries, and no round's messages",
        details={
            "claimed ε": claimed,
            "lower bound of ε": ratio * claimed,
            "guesses": float(done.guesses.made),
            "right guesses": float(done.guesses.right),
        },
    )
