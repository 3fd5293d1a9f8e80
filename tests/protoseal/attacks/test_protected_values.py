"""Attacks on masks, rotations and CKKS, on recorded runs of real digits, and doubles that each lack a defence."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from protoseal.attacks import dependent_messages
from protoseal.attacks.cases import Case, Verdict
from protoseal.attacks.dependent_messages import DependentMessages, record_neighbour
from protoseal.attacks.key_recovery import KeyRecovery
from protoseal.attacks.protected_values import KnownRows, PrototypeRecognition, Values, solve_unknown_row
from protoseal.attacks.readings import Adversary
from protoseal.attacks.recorded_run import RecordedRun
from protoseal_wire.messages import Phase
from secure_server.store import Received
from tests.protoseal.attacks.recorded import FEW_RECORDS, leave_out_masks, leave_out_rotations, record_anew
from tests.support.marks import full_but

COORDINATOR = Adversary.COORDINATOR


@cache
def run_of(method: str, protection: str, split: str = FEW_RECORDS) -> RecordedRun:
    return record_anew(method, protection, split=split, rounds=2)


@pytest.mark.parametrize("case", [Values(), PrototypeRecognition()])
@pytest.mark.parametrize("method", ["pfpl", "feddbp"])
def test_masked_upload_read_as_it_is_says_nothing(case: Case, method: str) -> None:
    undefended, *_ = case.measure(run_of(method, "plain"), COORDINATOR)
    upload, *_ = case.measure(run_of(method, "masked"), COORDINATOR)
    assert undefended.value == 1.0
    # A random rotation or mask makes the interval of a comparison too wide in a few runs of a hundred.
    assert case.judge(upload, undefended) is not Verdict.NOT_DEFENDED
    assert upload.value < case.chance + case.margin


@pytest.mark.parametrize("case", [Values(), pytest.param(PrototypeRecognition(), marks=pytest.mark.full)])
@pytest.mark.parametrize("method", ["pfpl", "feddbp"])
def test_missing_masks_or_rotation_are_found(
    case: Case, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out_rotations(monkeypatch)
    leave_out_masks(monkeypatch)
    upload, *_ = case.measure(record_anew(method, "masked", split=FEW_RECORDS), COORDINATOR)
    assert case.judge(upload, upload) is Verdict.NOT_DEFENDED


def test_comparison_rotation_keeps_lengths() -> None:
    _, lengths = PrototypeRecognition().measure(run_of("pfpl", "masked"), COORDINATOR)
    assert lengths.value == 1.0


def test_comparison_mean_of_all_sites_is_at_chance() -> None:
    _, mean = PrototypeRecognition().measure(run_of("feddbp", "masked"), COORDINATOR)
    assert (mean.low, mean.value, mean.high) == (0.5, 0.5, 0.5)


def test_values_colluding_site_gives_the_rotation_away() -> None:
    (measured,) = Values().measure(run_of("pfpl", "masked"), Adversary.COLLUSION)
    assert measured.value == 1.0


def test_solve_unknown_row_is_exact_on_the_known_rows_span_alone() -> None:
    rng = np.random.default_rng(1)
    rotation, _ = np.linalg.qr(rng.normal(size=(8, 8)))
    known, row = rng.normal(size=(8, 8)), rng.normal(size=8)
    for most in (3, 8):
        found = solve_unknown_row(known[:most], known[:most] @ rotation, row @ rotation)
        assert (np.linalg.norm(found - row) < 1e-9) == (most == 8)
    within = rng.normal(size=3) @ known[:3]
    np.testing.assert_allclose(
        solve_unknown_row(known[:3], known[:3] @ rotation, within @ rotation), within, atol=1e-9
    )


def test_known_rows_few_rows_of_many_features_leave_the_rest_open() -> None:
    (undefended,) = KnownRows().measure(run_of("pfpl", "plain"), COORDINATOR)
    (rotated,) = KnownRows().measure(run_of("pfpl", "masked"), COORDINATOR)
    few_features = record_anew("pfpl", "masked", split=FEW_RECORDS, sites=5, dim=3)
    (solved,) = KnownRows().measure(few_features, COORDINATOR)
    assert KnownRows().judge(rotated, undefended) is Verdict.DEFENDED
    assert KnownRows().judge(solved, undefended) is Verdict.NOT_DEFENDED


@pytest.mark.parametrize(
    ("method", "split"),
    full_but([("feddbp", FEW_RECORDS), ("pfpl", "dirichlet:0.3,per=60")], ("feddbp", FEW_RECORDS)),
)
def test_key_recovery_needs_a_decryption_in_the_acknowledgement(method: str, split: str) -> None:
    """Noise floods the slots of classes that a site lacks; the polynomial gives the key even then."""
    encrypted = run_of(method, "ckks", split)
    (measured,) = KeyRecovery().measure(encrypted, COORDINATOR)
    weakened = KeyRecovery().reference(encrypted)
    assert weakened is not None
    assert weakened.value == 1.0
    assert KeyRecovery().judge(measured, weakened) is Verdict.DEFENDED


def test_dependent_messages_plain_run_shows_one_record_masked_none() -> None:
    (plain,) = DependentMessages().measure(run_of("pfpl", "plain"), COORDINATOR)
    (masked,) = DependentMessages().measure(run_of("feddbp", "masked"), COORDINATOR)
    assert DependentMessages().judge(masked, plain) is Verdict.DEFENDED


def test_dependent_messages_size_that_follows_data_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependent_messages, "record_neighbour", lambda run: lengthened(record_neighbour(run)))
    double = lengthened(run_of("feddbp", "masked"))
    (measured,) = DependentMessages().measure(double, COORDINATOR)
    assert DependentMessages().judge(measured, measured) is Verdict.NOT_DEFENDED


def lengthened(run: RecordedRun) -> RecordedRun:
    """Return the run with a byte behind each site's released shares for each unit of its training samples' sum."""

    def longer(received: Received) -> Received:
        if received.key is None or received.key.phase is not Phase.UNMASK:
            return received
        brightness = int(run.sites[received.site].train.inputs.sum().abs())
        return replace(received, content=received.content + bytes(brightness))

    return replace(run, received=[longer(each) for each in run.received])
