"""Classes that too few sites hold, from the start or once a site is lost: they are withheld, and training goes on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from agreement import Method, Protection
from agreement.derived import cohorts
from agreement.derived.payload_shapes import limits_of, values_shape
from algorithms.pfpl import Weighting
from crypto.ckks.packing import Packing
from crypto.ckks.parameters import PROTOTYPE
from crypto.ckks.serialization import read_ciphertexts
from protoseal_wire import codec
from protoseal_wire.messages import Phase
from tests.conformance import equations
from tests.conformance.drop_outs import Clock, Loss, play, set_deadlines
from tests.conformance.federations import Bool, agreement_for, data_for, grouped_agreement
from tests.conformance.transcripts import (
    ClusterTranscript,
    Float,
    Tap,
    Transcript,
    record_cluster_run,
    recording_federation,
)
from tests.support.marks import full_but
from tests.support.served import protections_for

# Clusters of no class: models are averaged without prototypes

SITES = tuple(f"site-{i}" for i in range(1, 5))
ROUNDS, LOST = 3, 2
CLUSTERED = (Method.FEDPLCC, Method.FPL, Method.FEDPLVM)
each_protection = pytest.mark.parametrize("protection", protections_for(CLUSTERED))


def three_classes(holders: int) -> Bool:
    """Three classes, (4, 3), each of so many sites, the first of them among them."""
    has = np.zeros((len(SITES), 3), dtype=np.bool_)
    for k in range(3):
        has[[0, *(1 + np.arange(k, k + holders - 1) % 3)], k] = True
    return has


def run(
    method: Method, protection: Protection, holders: int, folder: Path, losses: tuple[Loss, ...] = ()
) -> ClusterTranscript:
    """Three sites have to have a class, and three to be there."""
    agreement = grouped_agreement(
        protection, method=method, classes=3, dim=12, rounds=ROUNDS, norm_bound=40.0, min_sites=3
    )
    return record_cluster_run(agreement, data_for(agreement, three_classes(holders)), folder, losses)


def check(transcript: ClusterTranscript, number: int, *, clusters: bool) -> None:
    """Check that all who are there have the round's result, as the equations give it for their inputs."""
    expected = equations.expected_clusters(transcript, number)
    assert bool(expected.labels) == clusters
    assert equations.excess(transcript, number) <= 1.0
    assert np.abs(expected.averaged).max() > 0.0


@pytest.mark.parametrize("method", full_but(CLUSTERED, Method.FEDPLCC))
@each_protection
def test_models_are_averaged_when_every_class_is_withheld(
    method: Method, protection: Protection, tmp_path: Path
) -> None:
    transcript = run(method, protection, 2, tmp_path)
    assert transcript.summary() == [(number, 1, False) for number in range(1, ROUNDS + 1)]
    assert set(transcript.results) == {(number, site) for number in range(1, ROUNDS + 1) for site in SITES}
    for number in range(1, ROUNDS + 1):
        check(transcript, number, clusters=False)


@pytest.mark.parametrize("protection", full_but(protections_for(CLUSTERED), Protection.MASKED))
@pytest.mark.parametrize("phase", [Phase.PRESENCE, Phase.VALUES])
def test_models_are_averaged_when_the_last_classes_are_lost_with_a_site(
    protection: Protection, phase: Phase, tmp_path: Path
) -> None:
    """The first site has every class; without it two are left of each."""
    transcript = run(Method.FEDPLCC, protection, 3, tmp_path, (Loss(SITES[0], LOST, phase),))
    assert [(number, abandoned) for number, _, abandoned in transcript.summary()] == [
        (number, False) for number in range(1, ROUNDS + 1)
    ]
    check(transcript, 1, clusters=True)
    assert {site for number, site in transcript.results if number == LOST} == set(SITES[1:])
    check(transcript, LOST, clusters=False)
    check(transcript, ROUNDS, clusters=True)
    assert {site for number, site in transcript.results if number == ROUNDS} == set(SITES)


# PFPL under ckks: a site that is lost after the others sent their values takes a class below the minimum with it.
# Nothing is flooded then, and no coordinator trusted to do so: sites encrypt again, zeros for the class.

RARE, DIM = 2, 8
HOLDS = np.ones((5, 3), dtype=np.bool_)
HOLDS[3:, RARE] = False  # sites 1 to 3 have it, and no others
STAYING = tuple(f"site-{i}" for i in (1, 2, 4, 5))


@dataclass
class RepeatedRound:
    """A round whose first attempt is given up: uploads by (attempt, site), and the prototypes (K, d) in them."""

    transcript: Transcript
    uploads: dict[tuple[int, str], tuple[bytes, ...]]
    rows: dict[tuple[int, str], Float]

    def longest_rare_row(self, attempt: int) -> float:
        """Return the longest row of the rare class that anyone sent."""
        return max(
            float(np.linalg.norm(rows[RARE])) for (number, _), rows in self.rows.items() if number == attempt
        )


def lose_after_values(folder: Path) -> RepeatedRound:
    """Lose the third site while its values are on their way."""
    agreement = agreement_for(Protection.CKKS, Weighting.DISTANCE, classes=3, dim=DIM, rounds=1)
    data, clock, transcript = data_for(agreement, HOLDS), Clock(), Transcript(agreement)
    with recording_federation(agreement, data, folder, transcript.taken, keep=True) as federation:
        set_deadlines(federation, folder / "keys.bin", clock)
        for site in federation.sites:
            site.transport = Tap(federation.coordinator, site, transcript)
        session = federation.sites[0].session
        session.__dict__["finish"] = session.end  # a site that finishes erases the key
        play(federation, clock, [Loss("site-3", 1, Phase.VALUES)])
        transcript.rounds, secret = federation.rounds, session._setup.ckks_key()
        form, limits = values_shape(agreement, 1), limits_of(agreement)
        uploads = {
            (received.key.attempt, received.site): codec.decode_payload(received.content, limits, form).blobs
            for received in federation.store.received()
            if received.key is not None and received.key.phase is Phase.VALUES
        }
    packing = Packing(3, DIM)
    rows = {
        key: packing.unpack(
            [secret.decrypt(text) for text in read_ciphertexts(blobs[: packing.parts], [PROTOTYPE])]
        )
        for key, blobs in uploads.items()
    }
    return RepeatedRound(transcript, uploads, rows)


@pytest.fixture(scope="module")
def repeated(tmp_path_factory: pytest.TempPathFactory) -> RepeatedRound:
    return lose_after_values(tmp_path_factory.mktemp("run"))


def test_pfpl_sites_encrypt_again_after_a_late_loss(repeated: RepeatedRound) -> None:
    assert repeated.transcript.summary() == [(1, 2, False)]
    for number in (1, 2):
        assert {site for attempt, site in repeated.uploads if attempt == number} == set(STAYING)
    blobs = [blob for upload in repeated.uploads.values() for blob in upload]
    assert len(set(blobs)) == len(blobs)


def test_pfpl_sites_send_zeros_for_a_class_below_the_minimum(repeated: RepeatedRound) -> None:
    assert repeated.longest_rare_row(1) > 0.1
    assert repeated.longest_rare_row(2) < 1e-6


def test_search_for_zeros_detects_a_class_that_is_not_zeroed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cohorts, "active_classes", lambda presence, _: presence.any(axis=0))
    assert lose_after_values(tmp_path).longest_rare_row(2) > 0.1


def test_pfpl_survivors_get_the_plain_result_without_the_rare_class(repeated: RepeatedRound) -> None:
    transcript = repeated.transcript
    assert {site for _, site in transcript.taken} == set(STAYING)
    assert equations.excess(transcript, 1) <= 1.0
    assert not any(taken.prototypes.has_personal[RARE] for taken in transcript.taken.values())
