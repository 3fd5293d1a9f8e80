"""A decryption that comes back gives the group's key away, and no site gives one.

The attack is :mod:`protoseal.attacks.key_recovery` (Li and Micciancio, eprint 2020/1533). The double says in its
acknowledgement what it decrypted. From one result the coordinator has the ternary key, and with it every upload.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from tenseal import sealapi

from agreement import Method, Protection
from agreement.derived.encrypted_sums import EncryptedGroups
from algorithms.pfpl import Weighting
from crypto.ckks.group_keys import CkksSecret
from crypto.ckks.group_mixing import MixingServer
from crypto.ckks.parameters import POLY_DEGREE, Ciphertext, CiphertextShape, CkksLevel, answer_shapes
from crypto.ckks.serialization import load, read_payload
from crypto.ckks.sums import SummingSite
from crypto.protection import Combination, Payload
from protoseal.attacks.key_recovery import ACKNOWLEDGED, NoKey, Slots, recover_key
from secure_client.session import Session
from tests.adversary.conftest import Open, OpenMasked
from tests.adversary.opened_masks import decrypt_upload
from tests.support.grouped import EVERYONE, grouped_agreement
from tests.support.scripted_sums import EncryptedAttempt, play_quickly

A, B, C, D = EVERYONE
ON_CIPHERTEXTS = (Weighting.DISTANCE, Weighting.COMPLEMENT, Weighting.UNIFORM)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    play_quickly(monkeypatch)


# The double: a site's acknowledgement says what it decrypted


@pytest.fixture
def telling(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line more: what was decrypted goes behind the acknowledgement."""
    decrypted: list[bytes] = []
    decrypt, result = CkksSecret.decrypt, Session._answer_result

    def noted(secret: CkksSecret, ciphertext: Ciphertext) -> Slots:
        slots = decrypt(secret, ciphertext)
        decrypted.append(slots.tobytes())
        return slots

    def told(session: Session, *asked: object) -> bytes:
        decrypted.clear()
        return result(session, *asked) + b"".join(decrypted)  # type: ignore[arg-type]

    monkeypatch.setattr(CkksSecret, "decrypt", noted)
    monkeypatch.setattr(Session, "_answer_result", told)


# Results of every kind


Attack = Callable[[], tuple[NDArray[np.float64], NDArray[np.float64]]]
"""Attack that returns what the coordinator reads of clinic-b's upload and clinic-b's values, or raises :class:`NoKey`.
"""


def of_peers(weighting: Weighting, open_play: Open) -> Attack:
    """PFPL: a combination of peers."""

    def attack() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        play = open_play(Protection.CKKS, weighting)
        play.set_up(*EVERYONE)
        active = play.begin(*EVERYONE)
        uploads = play.all_values(active)
        result = play.combine(uploads, active)[A]
        forms = answer_shapes(Combination(weighting.value), 1)
        secret = recover_key(read_payload(result, forms)[0], forms[0], play.give_result(A, result))
        return decrypt_upload(play, secret, uploads[B], active), play.rows(B)

    return attack


def of_a_sum(method: Method, open_masked: OpenMasked) -> Attack:
    """Return a sum over all sites, as it comes back."""

    def attack() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        play = open_masked(grouped_agreement(Protection.CKKS, method=method), {})
        play.set_up(*EVERYONE)
        begun = EncryptedAttempt(play, *EVERYONE)
        total = begun.summed(*EVERYONE)
        first, *_ = read_payload(total, begun.sums.form.answers)
        secret = recover_key(first, begun.sums.form.answers[0], begun.give(A, total))
        return _clinic_b(begun, secret)

    return attack


def of_mixed_groups(open_masked: OpenMasked) -> Attack:
    """FedPC: a group's means, mixed with those of others."""

    def attack() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        play = open_masked(grouped_agreement(Protection.CKKS), {})
        play.set_up(*EVERYONE)
        begun = EncryptedAttempt(play, *EVERYONE)
        form = EncryptedGroups(play.agreement).form
        means = begun.means(A, begun.summed(*EVERYONE))
        (mixed,) = MixingServer(form, play._keys_path, None).mix([means])
        first, *_ = read_payload(mixed, form.answers)
        return _clinic_b(begun, recover_key(first, form.answers[0], begun.give(A, mixed)))

    return attack


def _clinic_b(begun: EncryptedAttempt, secret: CkksSecret) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    upload: Payload = begun.sum_over([B])
    read = SummingSite(secret, begun.sums.form).unprotect(upload, begun.play.agreement.max_sites)
    rows = begun.play.site(B).learner.train_round(begun.round)[0]
    return read[: rows.size].reshape(rows.shape), np.asarray(rows)


@pytest.fixture(params=[*ON_CIPHERTEXTS, Method.FEDDBP, Method.FEDPC])
def attack(request: pytest.FixtureRequest, open_play: Open, open_masked: OpenMasked) -> Attack:
    if isinstance(request.param, Weighting):
        return of_peers(request.param, open_play)
    if request.param is Method.FEDPC:
        return of_mixed_groups(open_masked)
    return of_a_sum(request.param, open_masked)


@pytest.mark.usefixtures("telling")
def test_a_returned_decryption_reveals_the_key_and_every_upload(attack: Attack) -> None:
    read, secret = attack()
    assert np.linalg.norm(secret, axis=1).min() > 0.1
    np.testing.assert_allclose(read, secret, rtol=0.0, atol=1e-6)


def test_sites_return_nothing_that_reveals_the_key(attack: Attack) -> None:
    with pytest.raises(NoKey, match="says nothing"):
        attack()


def test_key_recovery_from_another_ciphertext_fails() -> None:
    """A second ciphertext of the same values has other noise, and the noise is what gives the key away."""
    secret, _ = CkksSecret.generate()
    form = CiphertextShape(CkksLevel.ANSWER, 2.0**40, polynomials=2)
    values = np.random.default_rng(1).uniform(-1.0, 1.0, POLY_DEGREE // 2)
    one, other = (load(sealapi.Ciphertext(), secret.encrypt(values, form)) for _ in range(2))
    told = {
        name: ACKNOWLEDGED + secret.decrypt(each).tobytes() for name, each in (("own", one), ("other", other))
    }
    assert recover_key(one, form, told["own"]).to_bytes()
    with pytest.raises(NoKey, match="does not go with"):
        recover_key(one, form, told["other"])
