"""Audit case of ``attack``: it looks at the recorded run, so that noise which the run left out is found."""

from __future__ import annotations

import pytest

from protoseal.attacks.cases import Verdict, judge
from protoseal.attacks.noise_audit import NoiseAudit
from protoseal.attacks.readings import Adversary
from tests.protoseal.attacks.recorded import record_anew, recorded
from tests.support.marks import full_but
from tests.support.run_doubles import WEAKENINGS

NOISE = {"clip": 1.0, "noise_multiplier": 4.0, "min_count": 1.0}
CASE = NoiseAudit()
DOUBLES = ("a tenth of the noise", "half of the noise", "division by exact counts", "no entry")


def verdict(double: str | None, patch: pytest.MonkeyPatch) -> Verdict:
    """Return the verdict on a run of the bundled digits, with a double in its path."""
    if double is not None:
        WEAKENINGS[double](patch)
    run = record_anew("pfpl", "masked", privacy=NOISE)
    (measured,) = CASE.measure(run, Adversary.COORDINATOR)
    reference = CASE.reference(run)
    assert reference is not None
    return judge(measured, reference, chance=CASE.chance, margin=CASE.margin)


def test_noise_as_claimed_is_defended(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdict(None, monkeypatch) is Verdict.DEFENDED


@pytest.mark.parametrize("double", full_but(DOUBLES, "a tenth of the noise"))
def test_weakened_run_is_not_defended(monkeypatch: pytest.MonkeyPatch, double: str) -> None:
    assert verdict(double, monkeypatch) is Verdict.NOT_DEFENDED


def test_run_without_noise_is_not_audited() -> None:
    assert CASE.measure(recorded("pfpl"), Adversary.COORDINATOR) == ()
