"""Verdicts of the audit on mechanisms that are as they claim, and on doubles that are not.

Three quarters of the noise refute no claim, but give more right guesses than all of it: the verdict is "too weak to
tell". Where the claimed ε is small, so many canaries do not tell them from all of the noise.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agreement import DpSgdSection
from privacy.mechanisms.prototype_query import PrototypeQuery
from protoseal.audit.canary_audit import AuditedMechanism, Verdict, audit_mechanism, lower_bound, plan_audit
from protoseal.audit.prototype_canaries import AuditedQuery
from protoseal.audit.training_canaries import AuditedTraining
from tests.support.audit_doubles import DOUBLES, Double, weaken_query, weaken_training
from tests.support.marks import full_but

DELTA, LEVEL, FALSE_ALARM = 1e-5, 0.05, 1e-9
EXPECTED: dict[Double, Verdict] = {
    "as claimed": Verdict.STANDS,
    "three quarters": Verdict.TOO_WEAK,
    "half": Verdict.REFUTED,
    "none": Verdict.REFUTED,
    "no clipping": Verdict.REFUTED,
}
Weaken = Callable[[pytest.MonkeyPatch, Double], None]


def query(noise: float) -> AuditedQuery:
    return AuditedQuery(PrototypeQuery(3.0, 2.0, noise, 1.0), dim=2)


def training(noise: float, rate: float, epochs: int) -> AuditedTraining:
    settings = DpSgdSection(noise_multiplier=noise, clip=0.3, sampling_rate=rate)
    return AuditedTraining(settings, epochs)


MECHANISMS: list[tuple[Weaken, AuditedMechanism, int, int, int]] = [
    (weaken_query, query(3.731), 100_000, 12_000, 1),
    (weaken_query, query(1.081), 50_000, 12_000, 4),
    (weaken_query, query(0.6003), 50_000, 24_000, 8),
    (weaken_query, query(0.5), 50_000, 24_000, 10),
    (weaken_training, training(4.858, 0.9, 1), 60_000, 7200, 1),
    (weaken_training, training(1.458, 0.9, 1), 50_000, 12_000, 4),
    (weaken_training, training(0.849, 1.0, 2), 30_000, 14_400, 8),
    (weaken_training, training(0.707, 1.0, 2), 40_000, 19_200, 10),
]
"""Mechanisms with their weakening, numbers of canaries and guesses, and ε."""
UNDECIDED = {(weaken_query, 1), (weaken_training, 1)}
"""Cases in which three quarters of the noise have no certain verdict."""
NAMES = [f"{weaken.__name__.partition('_')[2]} at {epsilon}" for weaken, *_, epsilon in MECHANISMS]


@pytest.mark.parametrize(
    ("weaken", "audited", "canaries", "guesses", "epsilon"),
    full_but(MECHANISMS, MECHANISMS[2]),
    ids=NAMES,
)
def test_audit_mechanism_refutes_doubles_and_no_true_claim(
    weaken: Weaken, audited: AuditedMechanism, canaries: int, guesses: int, epsilon: int
) -> None:
    """Any other verdict has a probability below 1e-9: the thresholds are 8 deviations off, or more."""
    assert audited.epsilon(canaries, DELTA) == pytest.approx(epsilon, rel=0.002)
    plan = plan_audit(audited, canaries, LEVEL, guesses)
    assert plan.missed < FALSE_ALARM
    for double in DOUBLES:
        if double == "three quarters" and (weaken, epsilon) in UNDECIDED:
            continue
        with pytest.MonkeyPatch.context() as monkeypatch:
            weaken(monkeypatch, double)
            done = audit_mechanism(audited, plan)
        assert done.verdict is EXPECTED[double], (double, done)
        if double in {"as claimed", "half"}:
            bound = lower_bound(audited, done.guesses, DELTA, LEVEL)
            assert (bound >= audited.epsilon(canaries, DELTA)) is (double == "half")
