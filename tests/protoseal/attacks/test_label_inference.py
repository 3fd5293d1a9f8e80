"""Inference of classes, frequencies and domains on real digits: it succeeds, it is at chance, and a double."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from protoseal.attacks import label_inference
from protoseal.attacks.cases import Case, Measurement, Verdict, judge, measure_over_clusters, share_interval
from protoseal.attacks.label_inference import ClassFrequencies, Domains, Presence
from protoseal.attacks.readings import Adversary, LearnedRows, readings
from protoseal.attacks.recorded_run import RecordedRun
from tests.protoseal.attacks.recorded import record_anew, recorded

Rotations = Sequence[NDArray[np.float64]]

DOMAINS, SKEWED = "mixed:n=6.5,max=25", "dirichlet:0.5,per=120"


@cache
def run_on(split: str, method: str = "pfpl", protection: str = "plain") -> RecordedRun:
    return record_anew(method, protection, split=split, sites=5)


def verdict(case: Case, measured: Measurement, undefended: Measurement) -> Verdict:
    return judge(measured, undefended, chance=case.chance, margin=case.margin)


@pytest.mark.parametrize("adversary", [Adversary.COORDINATOR, Adversary.PEER])
def test_classes_are_stated_in_the_clear_under_every_protection(adversary: Adversary) -> None:
    (measured,) = Presence().measure(run_on(DOMAINS, protection="masked"), adversary)
    assert measured.value == 1.0
    assert verdict(Presence(), measured, measured) is Verdict.NOT_DEFENDED


def test_nothing_is_to_be_inferred_where_all_sites_are_alike() -> None:
    alike = recorded("pfpl")
    assert not Presence().measure(alike, Adversary.COORDINATOR)
    assert not Domains().measure(alike, Adversary.COORDINATOR)


def test_a_rotation_does_not_hide_which_classes_are_frequent() -> None:
    (undefended,) = ClassFrequencies().measure(run_on(SKEWED), Adversary.COORDINATOR)
    (rotated,) = ClassFrequencies().measure(run_on(SKEWED, protection="masked"), Adversary.COORDINATOR)
    assert undefended.value > 0.5
    assert rotated.value == pytest.approx(undefended.value, abs=0.02)
    assert verdict(ClassFrequencies(), rotated, undefended) is Verdict.NOT_DEFENDED


def test_sample_counts_are_in_the_clear_in_plain_runs_of_fedplcc() -> None:
    results = ClassFrequencies().measure(run_on(SKEWED, "fedplcc"), Adversary.COORDINATOR)
    by_basis = {each.basis: each.value for each in results}
    assert by_basis["its sample counts, in the clear"] > 0.99
    assert by_basis["the biases of its classifier"] > 0.5


@pytest.mark.full
def test_domains_are_at_chance_over_many_rotations(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_rotation_hides_no_domain_from_a_coordinator_with_a_site() -> None:
    (undefended,) = Domains().measure(run_on(DOMAINS), Adversary.COORDINATOR)
    (colluding,) = Domains().measure(run_on(DOMAINS, protection="masked"), Adversary.COLLUSION)
    assert verdict(Domains(), colluding, undefended) is Verdict.NOT_DEFENDED


def test_a_rotation_that_is_left_out_shows_domains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crypto.rotation.rotate", unrotated)
    double = record_anew("pfpl", "masked", split=DOMAINS, sites=5)
    as_they_are, _ = Domains().measure(double, Adversary.COORDINATOR)
    (undefended,) = Domains().measure(run_on(DOMAINS), Adversary.COORDINATOR)
    assert verdict(Domains(), as_they_are, undefended) is Verdict.NOT_DEFENDED


def unrotated(key: bytes, vectors: NDArray[np.float64], inverse: bool = False) -> NDArray[np.float64]:
    return vectors


def test_ties_are_exactly_chance() -> None:
    measured = measure_over_clusters([np.full(3, 0.5)], "the same for every site")
    assert (measured.low, measured.value, measured.high) == (0.5, 0.5, 0.5)


def test_the_exact_interval_of_a_share() -> None:
    none = share_interval(np.zeros(8, dtype=np.bool_))
    assert none == pytest.approx((0.0, 0.0, 1.0 - 0.025 ** (1 / 8)))
    half = share_interval(np.arange(10) < 5)
    assert half == pytest.approx((0.5, 0.1871, 0.8129), abs=1e-4)
