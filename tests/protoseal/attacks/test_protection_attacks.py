"""Attacks on masks, rotations and CKKS, on recorded runs of real digits, and doubles that each lack a defence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from crypto.protection import Words
from protoseal.attacks import dependent_messages
from protoseal.attacks.cases import Case, Measurement, Verdict, judge
from protoseal.attacks.dependent_messages import DependentMessages, record_neighbour
from protoseal.attacks.key_recovery import KeyRecovery
from protoseal.attacks.protected_values import Comparison, KnownRows, Values, solve_unknown_row
from protoseal.attacks.readings import Adversary
from protoseal.attacks.recorded_run import RecordedRun
from protoseal_wire.messages import Phase
from secure_server.storage.store import Received
from tests.protoseal.attacks.recorded import record_anew

COORDINATOR = Adversary.COORDINATOR
SMALL = "iid:per=40"


@cache
def run_of(method: str, protection: str, split: str = SMALL) -> RecordedRun:
    return record_anew(method, protection, split=split, rounds=2)


def verdict(case: Case, measured: Measurement, undefended: Measurement) -> Verdict:
    return judge(measured, undefended, chance=case.chance, margin=case.margin)


@pytest.mark.parametrize("case", [Values(), Comparison()])
@pytest.mark.parametrize("method", ["pfpl", "feddbp"])
def test_a_protected_upload_says_nothing_as_it_is(case: Case, method: str) -> None:
    undefended, *_ = case.measure(run_of(method, "plain"), COORDINATOR)
    upload, *_ = case.measure(run_of(method, "masked"), COORDINATOR)
    assert undefended.value == 1.0
    # A random rotation or mask makes the interval of a comparison too wide in a few runs of a hundred.
    assert verdict(case, upload, undefended) is not Verdict.NOT_DEFENDED
    assert upload.value < case.chance + case.margin


@pytest.mark.parametrize("case", [Values(), Comparison()])
@pytest.mark.parametrize("method", ["pfpl", "feddbp"])
def test_masks_or_a_rotation_that_are_left_out(
    case: Case, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crypto.rotation.rotate", unrotated)
    for module in ("masks", "unmask"):
        monkeypatch.setattr(f"crypto.pairwise.{module}.add_streams", unmasked)
    upload, *_ = case.measure(record_anew(method, "masked", split=SMALL), COORDINATOR)
    assert verdict(case, upload, upload) is Verdict.NOT_DEFENDED


def unrotated(key: bytes, vectors: NDArray[np.float64], inverse: bool = False) -> NDArray[np.float64]:
    return vectors


def unmasked(words: Words, plus: Sequence[bytes], minus: Sequence[bytes]) -> Words:
    return words.copy()


def test_a_rotation_keeps_lengths_and_inner_products() -> None:
    _, lengths = Comparison().measure(run_of("pfpl", "masked"), COORDINATOR)
    (error,) = lengths.details.values()
    assert lengths.value == 1.0
    assert error < 1e-14


def test_the_mean_of_all_sites_is_exactly_as_near_to_each() -> None:
    _, mean = Comparison().measure(run_of("feddbp", "masked"), COORDINATOR)
    assert (mean.low, mean.value, mean.high) == (0.5, 0.5, 0.5)


def test_one_site_gives_the_rotation_away() -> None:
    (measured,) = Values().measure(run_of("pfpl", "masked"), Adversary.COLLUSION)
    assert measured.value == 1.0


def test_known_rows_show_the_unknown_one_on_their_span_alone() -> None:
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


def test_few_known_prototypes_of_many_features_leave_the_rest_open() -> None:
    (undefended,) = KnownRows().measure(run_of("pfpl", "plain"), COORDINATOR)
    (rotated,) = KnownRows().measure(run_of("pfpl", "masked"), COORDINATOR)
    few_features = record_anew("pfpl", "masked", split=SMALL, sites=5, dim=3)
    (solved,) = KnownRows().measure(few_features, COORDINATOR)
    assert verdict(KnownRows(), rotated, undefended) is Verdict.DEFENDED
    assert verdict(KnownRows(), solved, undefended) is Verdict.NOT_DEFENDED


@pytest.mark.parametrize(("method", "split"), [("feddbp", SMALL), ("pfpl", "dirichlet:0.3")])
def test_acknowledgements_give_no_key_unless_they_hold_a_decryption(method: str, split: str) -> None:
    """Noise floods the slots of classes that a site lacks; the polynomial gives the key even then."""
    encrypted = run_of(method, "ckks", split)
    (measured,) = KeyRecovery().measure(encrypted, COORDINATOR)
    weakened = KeyRecovery().reference(encrypted)
    assert weakened is not None
    assert weakened.value == 1.0
    assert verdict(KeyRecovery(), measured, weakened) is Verdict.DEFENDED


def test_one_record_shows_in_plain_messages_and_in_no_masked_one() -> None:
    (plain,) = DependentMessages().measure(run_of("pfpl", "plain"), COORDINATOR)
    (masked,) = DependentMessages().measure(run_of("feddbp", "masked"), COORDINATOR)
    assert verdict(DependentMessages(), masked, plain) is Verdict.DEFENDED


def test_a_site_whose_messages_are_as_long_as_its_data_are_bright(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependent_messages, "record_neighbour", lambda run: lengthened(record_neighbour(run)))
    double = lengthened(run_of("feddbp", "masked"))
    (measured,) = DependentMessages().measure(double, COORDINATOR)
    assert verdict(DependentMessages(), measured, measured) is Verdict.NOT_DEFENDED


def lengthened(run: RecordedRun) -> RecordedRun:
    """Return the run with a byte behind each site's released shares for each unit of its training samples' sum."""

    def longer(received: Received) -> Received:
        if received.key is None or received.key.phase is not Phase.UNMASK:
            return received
        brightness = int(run.sites[received.site].train.inputs.sum().abs())
        return replace(received, content=received.content + bytes(brightness))

    return replace(run, received=[longer(each) for each in run.received])
