"""A site that gives another site's upload as its own, with the coordinator's help: what it learns by that.

Under ``ckks`` the copier has the key that opens the copied bytes, so the copy tells it nothing that the bytes did not;
an honest coordinator hands no site another's upload. Under masks a copy spoils the sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tenseal import sealapi

from agreement import Method, Protection
from agreement.derived.cohorts import cohort_of
from algorithms.pfpl import Weighting
from crypto.ckks.packing import Packing
from crypto.ckks.parameters import context, upload_shapes
from crypto.ckks.serialization import dump, read_payload
from crypto.errors import MalformedError
from crypto.protection import Combination, Payload
from protoseal_wire.messages import Phase, PhaseKey
from tests.adversary.opened_masks import decrypt_upload
from tests.support.grouped import EVERYONE, grouped_agreement
from tests.support.scripted_coordinator import Cast, ScriptedCoordinator
from tests.support.scripted_sums import EncryptedAttempt, ScriptedSums, play_quickly
from tests.support.small import DIM, small_agreement

COPIER, VICTIM, THIRD = HOLDERS = ("clinic-a", "clinic-b", "clinic-d")
ERROR = 1e-4
ANSWERS = {
    Weighting.COMPLEMENT: (0.0, 1.0, 0.0),
    Weighting.DISTANCE: (0.0, 0.0, 1.0),
    Weighting.UNIFORM: (0, 0.5, 0.5),
}
"""Weights of the holders in the copier's answer: its own row is at distance 0 from its victim's."""


@pytest.fixture(params=ANSWERS)
def play(
    tmp_path: Path, cast: Cast, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ScriptedCoordinator]:
    play_quickly(monkeypatch)
    with ScriptedCoordinator(tmp_path, small_agreement(Protection.CKKS, request.param), cast) as opened:
        opened.set_up(*HOLDERS)
        yield opened


def test_a_copier_learns_what_its_key_opens_in_the_bytes_that_it_copies(play: ScriptedCoordinator) -> None:
    """The copier encrypts the victim's rows afresh. With three holders, distances then single out one peer."""
    active = play.begin(*HOLDERS)
    payloads = play.all_values(active)
    rows = {name: play.rows(name) for name in HOLDERS}
    copier = play.site(COPIER)
    opened = decrypt_upload(play, copier.session._setup.ckks_key(), payloads[VICTIM], active)
    assert np.abs(opened - rows[VICTIM]).max() < ERROR

    half = copier.session._exchange._half.for_attempt(play_key(play), cohort_of(active, play.agreement))  # type: ignore[attr-defined]
    copied = {**payloads, COPIER: half.protect(opened, COPIER, cohort_of(active, play.agreement))}
    play.give_result(COPIER, play.combine(copied, active)[COPIER])
    weights = ANSWERS[play.agreement.pfpl.weighting]
    expected = sum(weight * rows[name] for weight, name in zip(weights, HOLDERS, strict=True))
    assert np.abs(play.peers_received(COPIER) - expected).max() < ERROR


def test_copied_bytes_and_multiples_of_them_are_refused(play: ScriptedCoordinator) -> None:
    """The difference of equal ciphertexts has no ciphertext, and a multiple has lost its seed."""
    active = play.begin(*HOLDERS)
    payloads = play.all_values(active)
    copies = [doubled(play, payloads[VICTIM])]
    if play.agreement.pfpl.weighting is not Weighting.UNIFORM:  # sums have no differences
        copies.append(payloads[VICTIM])
    for copy in copies:
        with pytest.raises(MalformedError):
            play.combine({**payloads, COPIER: copy}, active)


def play_key(play: ScriptedCoordinator) -> PhaseKey:
    return PhaseKey(play.agreement.run, 1, 1, Phase.VALUES)


def doubled(play: ScriptedCoordinator, payload: Payload) -> Payload:
    """Return the upload of rows twice as long: a fresh ciphertext's seed does not survive the doubling."""
    packing = Packing(len(play.agreement.classes), DIM)
    forms = upload_shapes(Combination(play.agreement.pfpl.weighting.value), packing.parts)
    evaluator = sealapi.Evaluator(context())
    blobs = []
    for ciphertext in read_payload(payload, forms):
        evaluator.add_inplace(ciphertext, ciphertext)
        blobs.append(dump(ciphertext))
    return Payload(payload.scheme, blobs=tuple(blobs))


@pytest.mark.parametrize("weighting", [Weighting.COMPLEMENT, Weighting.DISTANCE])
def test_a_copy_of_rotated_rows_gives_the_copier_one_peers_prototype(
    tmp_path: Path, cast: Cast, weighting: Weighting
) -> None:
    """The copier's own seed undoes the rotation, so that the copied rows told it the victim's before."""
    with ScriptedCoordinator(tmp_path, small_agreement(Protection.MASKED, weighting), cast) as play:
        play.set_up(*HOLDERS)
        active = play.begin(*HOLDERS)
        payloads = play.all_values(active)
        copied = {**payloads, COPIER: payloads[VICTIM]}
        play.give_result(COPIER, play.combine(copied, active)[COPIER])
        singled_out = VICTIM if weighting is Weighting.COMPLEMENT else THIRD
        assert np.abs(play.peers_received(COPIER) - play.rows(singled_out)).max() < ERROR


def test_a_copy_of_masked_words_spoils_the_sum(tmp_path: Path, cast: Cast) -> None:
    """The copier's masks stay in the sum; the coordinator notices that, and not who did it."""
    with ScriptedSums(tmp_path, grouped_agreement(), cast) as play:
        play.set_up(*EVERYONE)
        begun = play.attempt(*EVERYONE)
        begun.share(*EVERYONE)
        begun.mask(*EVERYONE)
        begun.masked[COPIER] = begun.masked[VICTIM]
        with pytest.raises(MalformedError):
            begun.opened(EVERYONE)


def test_a_copy_in_an_encrypted_sum_counts_its_victim_twice(
    tmp_path: Path, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes are accepted as they are: two fresh ciphertexts differ, and a sum takes no difference of them."""
    play_quickly(monkeypatch)
    with ScriptedSums(tmp_path, grouped_agreement(Protection.CKKS, method=Method.FEDDBP), cast) as play:
        play.set_up(*EVERYONE)
        begun = EncryptedAttempt(play, *EVERYONE)
        honest = begun.read(begun.summed(*EVERYONE))
        own, victims = (begun.read(begun.sum_over([name])) for name in (COPIER, VICTIM))
        begun.uploads[COPIER] = begun.uploads[VICTIM]
        copied = begun.read(begun.sum_over(EVERYONE))
    assert np.abs(copied - (honest - own + victims)).max() < ERROR
