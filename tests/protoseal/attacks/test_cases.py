"""Verdicts on attacks, their intervals, and the case that audits a run's noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protoseal.attacks.cases import (
    Measurement,
    Verdict,
    clustered_interval,
    judge,
    measure_over_clusters,
    share_interval,
)
from protoseal.attacks.noise_audit import NoiseAudit
from protoseal.attacks.readings import Adversary
from tests.protoseal.attacks.recorded import record_anew, recorded
from tests.support.weakenings import RELEASE_DOUBLES


def measured(value: float, low: float, high: float) -> Measurement:
    return Measurement(value=value, low=low, high=high, trials=20)


@pytest.mark.parametrize(
    ("found", "undefended", "verdict"),
    [
        ((0.9, 0.8, 1.0), (0.9, 0.8, 1.0), Verdict.NOT_DEFENDED),
        ((0.5, 0.45, 0.55), (0.9, 0.8, 1.0), Verdict.DEFENDED),
        ((0.55, 0.51, 0.59), (0.9, 0.8, 1.0), Verdict.DEFENDED),
        ((0.55, 0.40, 0.70), (0.9, 0.8, 1.0), Verdict.TOO_WEAK),
        ((0.65, 0.48, 0.80), (0.9, 0.8, 1.0), Verdict.TOO_WEAK),
        ((0.5, 0.45, 0.55), (0.55, 0.51, 0.6), Verdict.TOO_WEAK),
        ((0.5, 0.45, 0.55), (0.9, 0.49, 1.0), Verdict.TOO_WEAK),
    ],
)
def test_judge_defence_needs_an_attack_that_succeeds_undefended(
    found: tuple[float, float, float], undefended: tuple[float, float, float], verdict: Verdict
) -> None:
    assert judge(measured(*found), measured(*undefended), chance=0.5, margin=0.1) is verdict


def test_measurement_value_outside_interval_is_refused() -> None:
    with pytest.raises(ValueError, match=r"0\.5"):
        measured(0.5, 0.6, 0.7)


def test_clustered_interval_few_clusters_is_students_or_the_bounds() -> None:
    values = np.array([0.2, 0.4, 0.3, 0.5])

    def mean(chosen: np.ndarray[Any, Any]) -> float:
        return float(values[chosen].mean())

    assert clustered_interval(mean, 2) == (0.0, 1.0)
    low, high = clustered_interval(mean, 4)
    assert (high - low) / 2 == pytest.approx(3.182 * values.std(ddof=1) / 2, rel=1e-3)


def test_clustered_interval_resamples_releases_not_records() -> None:
    """Ten records of a release that share its noise are one observation, not ten."""
    rng = np.random.default_rng(0)
    releases = np.repeat(rng.normal(size=30), 10).reshape(30, 10)
    low, high = clustered_interval(lambda chosen: float(releases[chosen].mean()), 30, bounds=(-9, 9))
    assert high - low > 2 * 1.96 * releases.std() / np.sqrt(300)


def test_measure_over_clusters_ties_are_exactly_chance() -> None:
    measured = measure_over_clusters([np.full(3, 0.5)], "the same for every site")
    assert (measured.low, measured.value, measured.high) == (0.5, 0.5, 0.5)


def test_share_interval_is_clopper_and_pearsons() -> None:
    none = share_interval(np.zeros(8, dtype=np.bool_))
    assert none == pytest.approx((0.0, 0.0, 1.0 - 0.025 ** (1 / 8)))
    half = share_interval(np.arange(10) < 5)
    assert half == pytest.approx((0.5, 0.1871, 0.8129), abs=1e-4)


NOISY = {"clip": 1.0, "noise_multiplier": 4.0, "min_count": 1.0}
AUDIT = NoiseAudit()


@pytest.mark.parametrize(
    ("double", "verdict"), [(None, Verdict.DEFENDED), ("a tenth of the noise", Verdict.NOT_DEFENDED)]
)
def test_noise_audit_is_defended_unless_the_run_is_weakened(
    monkeypatch: pytest.MonkeyPatch, double: str | None, verdict: Verdict
) -> None:
    """:mod:`tests.protoseal.audit.test_weakenings` plays all other doubles."""
    if double is not None:
        RELEASE_DOUBLES[double](monkeypatch)
    run = record_anew("pfpl", "masked", privacy=NOISY)
    (measured,) = AUDIT.measure(run, Adversary.COORDINATOR)
    reference = AUDIT.reference(run)
    assert reference is not None
    assert AUDIT.judge(measured, reference) is verdict


def test_noise_audit_run_without_noise_has_no_result() -> None:
    assert AUDIT.measure(recorded("pfpl"), Adversary.COORDINATOR) == ()
