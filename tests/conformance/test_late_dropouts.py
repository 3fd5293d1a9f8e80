"""PFPL under `ckks`: a site that is lost after the others sent their values takes a class below the minimum with it.

Nothing is flooded then, and no coordinator trusted to do so: the attempt is given up and sites encrypt again, zeros for
the class.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from agreement import Agreement, Protection
from agreement.derived.payload_forms import limits_of, values_form
from algorithms.pfpl import Weighting
from crypto.ckks.packing import Packing
from crypto.ckks.parameters import PROTOTYPE
from crypto.ckks.serialization import read_ciphertexts
from protoseal_wire import codec
from protoseal_wire.messages import Phase
from tests.conformance.plain_answers import excess_over, inputs_from
from tests.conformance.runs import Record, agreement_for, data_for, recording_federation
from tests.conformance.stepped_federation import Clock, Loss, play, set_deadlines

SITES, DIM, RARE, LOST = 5, 8, 2, "site-3"
HOLDS = np.ones((SITES, 3), dtype=np.bool_)
HOLDS[3:, RARE] = False  # sites 1 to 3 have it, and no others
STAYING = tuple(f"site-{i}" for i in (1, 2, 4, 5))
Blobs = dict[tuple[int, str], tuple[bytes, ...]]


@dataclass
class Run:
    """A round whose first attempt is given up: uploads by (attempt, site), and the prototypes in them."""

    agreement: Agreement
    uploads: Blobs
    rows: dict[tuple[int, str], NDArray[np.float64]]
    record: Record
    attempt: int


def run(folder: Path) -> Run:
    agreement = agreement_for(Protection.CKKS, Weighting.DISTANCE, classes=3, dim=DIM, rounds=1)
    data, clock = data_for(agreement, HOLDS), Clock()
    record: Record = {}
    with recording_federation(agreement, data, folder, record, keep=True) as federation:
        set_deadlines(federation, folder / "keys.bin", clock)
        session = federation.sites[0].session
        session.__dict__["finish"] = session.end  # a site that finishes erases the key
        play(federation, clock, [Loss(LOST, 1, Phase.VALUES)])
        secret = session._setup.ckks_key()
        form, limits = values_form(agreement, 1), limits_of(agreement)
        uploads = {
            (each.key.attempt, each.site): codec.decode_payload(each.content, limits, form).blobs
            for each in federation.store.received()
            if each.key is not None and each.key.phase is Phase.VALUES
        }
        packing, (last,) = Packing(3, DIM), federation.rounds
    rows = {
        key: packing.unpack(
            [secret.decrypt(each) for each in read_ciphertexts(blobs[: packing.parts], [PROTOTYPE])]
        )
        for key, blobs in uploads.items()
    }
    return Run(agreement, uploads, rows, record, last.attempt)


def rare(found: Run, attempt: int) -> float:
    """Return the longest row of the rare class that anyone sent."""
    return max(
        float(np.linalg.norm(rows[RARE])) for (number, _), rows in found.rows.items() if number == attempt
    )


def test_survivors_encrypt_again_after_a_late_loss(tmp_path: Path) -> None:
    found = run(tmp_path)
    assert found.attempt == 2
    assert {site for attempt, site in found.uploads if attempt == 1} == set(STAYING)
    assert {site for attempt, site in found.uploads if attempt == 2} == set(STAYING)
    blobs = [blob for each in found.uploads.values() for blob in each]
    assert len(set(blobs)) == len(blobs)


def test_survivors_send_zeros_for_the_class_below_the_minimum(tmp_path: Path) -> None:
    found = run(tmp_path)
    assert rare(found, 1) > 0.1
    assert rare(found, 2) < 1e-6


def test_the_check_detects_a_class_that_is_not_zeroed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agreement.derived.cohorts.active_classes", lambda presence, _: presence.any(axis=0))
    assert rare(run(tmp_path), 2) > 0.1


def test_survivors_get_the_plain_result_without_the_lost_site(tmp_path: Path) -> None:
    found = run(tmp_path)
    assert {site for _, site in found.record} == set(STAYING)
    taken = {site: each for (_, site), each in found.record.items()}
    put = {site: (each.prototypes.local, each.prototypes.counts > 0) for site, each in taken.items()}
    inputs = inputs_from(found.agreement, put)
    assert not inputs.cohort.holds[:, RARE].any()
    assert excess_over(found.agreement, inputs, {site: each.targets for site, each in taken.items()}) <= 1.0
    assert not any(each.prototypes.has_personal[RARE] for each in taken.values())
