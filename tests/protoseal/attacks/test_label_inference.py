"""Inference of classes, frequencies and domains on real digits: it succeeds, it is at chance, and a double."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from protoseal.attacks import label_inference
from protoseal.attacks.cases import Verdict
from protoseal.attacks.label_inference import ClassFrequencies, Domains, Presence
from protoseal.attacks.readings import Adversary, LearnedRows, readings
from protoseal.attacks.recorded_run import RecordedRun
from tests.protoseal.attacks.recorded import leave_out_rotations, record_anew, recorded

Rotations = Sequence[NDArray[np.float64]]

DOMAINS, SKEWED = "mixed:n=6.5,max=25", "dirichlet:0.5,per=120"


@cache
def run_on(split: str, method: str = "pfpl", protection: str = "plain") -> RecordedRun:
    return record_anew(method, protection, split=split, sites=5)


@pytest.mark.parametrize("adversary", [Adversary.COORDINATOR, Adversary.PEER])
def test_presence_masked_run_tells_classes(adversary: Adversary) -> None:
    (measured,) = Presence().measure(run_on(DOMAINS, protection="masked"), adversary)
    assert measured.value == 1.0
    assert Presence().judge(measured, measured) is Verdict.NOT_DEFENDED


def test_label_inference_equal_sites_have_no_input() -> None:
    alike = recorded("pfpl")
    assert not Presence().measure(alike, Adversary.COORDINATOR)
    assert not Domains().measure(alike, Adversary.COORDINATOR)


def test_class_frequencies_rotation_hides_nothing() -> None:
    (undefended,) = ClassFrequencies().measure(run_on(SKEWED), Adversary.COORDINATOR)
    (rotated,) = ClassFrequencies().measure(run_on(SKEWED, protection="masked"), Adversary.COORDINATOR)
    assert undefended.value > 0.5
    assert rotated.value == pytest.approx(undefended.value, abs=0.02)
    assert ClassFrequencies().judge(rotated, undefended) is Verdict.NOT_DEFENDED


def test_class_frequencies_plain_fedplcc_has_sample_counts() -> None:
    results = ClassFrequencies().measure(run_on(SKEWED, "fedplcc"), Adversary.COORDINATOR)
    by_basis = {each.reading: each.value for each in results}
    assert by_basis["its sample counts, in the clear"] > 0.99
    assert by_basis["the biases of its classifier"] > 0.5


@pytest.mark.full
def test_domains_many_rotations_are_at_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rotation for each class leaves a single run's interval wide, so the mean over many is compared."""
    run, rng = run_on(DOMAINS), np.random.default_rng(0)
    values = []
    for _ in range(6):
        rotations = [np.linalg.qr(rng.normal(size=(64, 64)))[0] for _ in range(10)]

        def rotated(
            run: RecordedRun, adversary: Adversary, site: str, by: Rotations = rotations
        ) -> list[LearnedRows]:
            (plain,) = readings(run, adversary, site)
            rows = [row @ by[number] for row, number in zip(plain.rows, plain.labels, strict=True)]
            return [replace(plain, rows=np.array(rows))]

        monkeypatch.setattr(label_inference, "readings", rotated)
        (measured,) = Domains().measure(run, Adversary.COORDINATOR)
        values.append(measured.value)
    assert np.mean(values) == pytest.approx(0.5, abs=0.1)


def test_domains_colluding_site_undoes_the_rotation() -> None:
    (undefended,) = Domains().measure(run_on(DOMAINS), Adversary.COORDINATOR)
    (colluding,) = Domains().measure(run_on(DOMAINS, protection="masked"), Adversary.COLLUSION)
    assert Domains().judge(colluding, undefended) is Verdict.NOT_DEFENDED


@pytest.mark.full
def test_domains_missing_rotation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_rotations(monkeypatch)
    double = record_anew("pfpl", "masked", split=DOMAINS, sites=5)
    as_they_are, _ = Domains().measure(double, Adversary.COORDINATOR)
    (undefended,) = Domains().measure(run_on(DOMAINS), Adversary.COORDINATOR)
    assert Domains().judge(as_they_are, undefended) is Verdict.NOT_DEFENDED
