"""Audit of the noise in the recorded run: what the sites drew and sent, against their records.

The code is that of ``protoseal budget audit run`` (:mod:`protoseal.audit.run_audit`). No mechanism is
played anew, so that noise which the run left out is found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats  # type: ignore[import-untyped]  # it ships no types

from protoseal.attacks.cases import Case, Measurement
from protoseal.attacks.readings import Adversary
from protoseal.attacks.recorded_run import RecordedRun
from protoseal.audit.canary_audit import AuditVerdict
from protoseal.audit.exact_sums import Claim
from protoseal.audit.release_checks import check_deviation
from protoseal.audit.run_audit import audit_run
from protoseal.audit.run_checks import CheckOutcome
from protoseal.audit.sent_checks import gaussian_epsilon
from secure_client.privacy.cost import SIMULATED_DELTA

LEVEL = 0.01
"""Probability with which a run that keeps its claim has a weakness found."""
_NO_POWER = 1.5
"""Upper end of the interval of an audit that half the noise might have passed."""
_HALF = 0.5


class NoiseAudit(Case):
    """Case of the audit of a recorded run whose sites have noise of their own; the undefended run has half of it."""

    attack = "audit of the noise"
    metric = "weaknesses found in what sites drew and sent"
    chance, margin = 0.0, 1.0
    question = "Does the run lose more privacy than it claims?"
    ability = "learn more from noisy values than the claimed ε allows"
    not_covered = (
        "Noise that sites share, noise from a known seed, and what `protoseal budget audit run` lists as not"
        " covered."
    )
    adversaries: Sequence[Adversary] = (Adversary.COORDINATOR,)

    def measure(self, run: RecordedRun, adversary: Adversary) -> Sequence[Measurement]:  # noqa: ARG002 (all see releases)
        """Audit what the sites of the run kept; nothing without noise of a site's own."""
        noise = _list_own_noise(run)
        if not noise:
            return ()
        audit = audit_run(run.agreement.run, run.evidence, LEVEL)
        weaknesses = float(len({check.weakness for _, check in audit.checks_with(CheckOutcome.FOUND)}))
        high = _NO_POWER if audit.verdict is AuditVerdict.TOO_WEAK else weaknesses
        return (
            Measurement(
                value=weaknesses,
                low=weaknesses,
                high=max(weaknesses, high),
                trials=len(noise),
                reading="what the sites kept of all rounds, and their records",
                details=_estimate_epsilons(run),
            ),
        )

    def reference(self, run: RecordedRun) -> Measurement | None:
        """Return the audit of the same run with half of its noise."""
        noise = _list_own_noise(run)
        if not noise:
            return None
        # An audit that half the noise would pass could not find noise that is missing.
        half = check_deviation([_HALF * draw for draw in noise], LEVEL)
        value = float(half.outcome is CheckOutcome.FOUND)
        return Measurement(
            value=value, low=value, high=value, trials=len(noise), reading="half the noise of this run"
        )


def _list_own_noise(run: RecordedRun) -> list[np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    """Return the noise of all draws, in units of the claimed deviation; none where sites share it."""
    if run.agreement.privacy is None or run.agreement.distributed_noise:
        return []
    return [draw for evidence in run.evidence.values() for draw in evidence.noise]


def _estimate_epsilons(run: RecordedRun) -> dict[str, float]:
    """Return the claimed ε of a site's releases, and a lower bound by the noise that all sites drew together."""
    squares = np.concatenate([np.square(draw).ravel() for draw in _list_own_noise(run)])
    # The largest deviation that is not refuted gives the least ε.
    least, largest = (
        math.sqrt(float(squares.sum()) / float(stats.chi2.ppf(level, len(squares))))
        for level in (1 - LEVEL, LEVEL)
    )
    releases = max(len(evidence.draws) for evidence in run.evidence.values())
    one = Claim.of(run.agreement).multiplier / math.sqrt(releases)
    return {
        "privacy loss promised for the releases: ε at most": gaussian_epsilon(one, SIMULATED_DELTA),
        "privacy loss shown by their noise: ε at least": gaussian_epsilon(
            one * max(largest, 1e-3), SIMULATED_DELTA
        ),
        "measured noise ÷ claimed noise": math.sqrt(float(squares.mean())),
        "98 % interval of that ratio: least": least,
        "most": largest,
    }
