"""A decryption that comes back gives the group's key away, and no site gives one.

The attack is :mod:`protoseal.attacks.key_recovery` (Li and Micciancio, eprint 2020/1533). The double says in its
acknowledgement what it decrypted. From one result the coordinator has the ternary key, and with it every upload.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from tenseal import sealapi

from agreement import Method, Protection
from agreement.derived.encrypted_sums import EncryptedGroups
from algorithms.pfpl import Weighting
from crypto.ckks.group_mixing import MixingServer
from crypto.ckks.parameters import POLY_DEGREE, Ciphertext, CiphertextShape, CkksLevel, answer_shapes
from crypto.ckks.secret_key import CkksSecret
from crypto.ckks.serialization import load, read_payload
from crypto.ckks.sums import SummingSite
from crypto.protection import Combination, Payload
from protoseal.attacks.key_recovery import ACKNOWLEDGED, NoKey, Slots, recover_key
from secure_client.session import Session
from tests.adversary.attack import Plays
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


Vectors = tuple[NDArray[np.float64], NDArray[np.float64]]
"""What the coordinator reads of clinic-b's upload, and clinic-b's values."""
RESULTS = (*ON_CIPHERTEXTS, Method.FEDDBP, Method.FEDPC)
"""Results of every kind: PFPL's by weights, a sum over all sites, and a group's means, mixed with others'."""


def read_with_returned_key(result: Weighting | Method, plays: Plays) -> Vectors:
    """Solve a result and its acknowledgement for the key, and read with it; raise :class:`NoKey` without one."""
    if isinstance(result, Weighting):
        play = plays.peers(Protection.CKKS, result)
        play.set_up(*EVERYONE)
        active = play.begin(*EVERYONE)
        uploads = play.all_values(active)
        answer = play.combine(uploads, active)[A]
        forms = answer_shapes(Combination(result.value), 1)
        secret = recover_key(read_payload(answer, forms)[0], forms[0], play.give_result(A, answer))
        return decrypt_upload(play, secret, uploads[B], active), play.rows(B)
    sums = plays.sums(grouped_agreement(Protection.CKKS, method=result))
    sums.set_up(*EVERYONE)
    begun = EncryptedAttempt(sums, *EVERYONE)
    total = begun.summed(*EVERYONE)
    forms = begun.sums.form.answers
    if result is Method.FEDPC:
        form = EncryptedGroups(sums.agreement).form
        (total,) = MixingServer(form, sums._keys_path, None).mix([begun.means(A, total)])
        forms = form.answers
    first, *_ = read_payload(total, forms)
    return _clinic_b(begun, recover_key(first, forms[0], begun.give(A, total)))


def _clinic_b(begun: EncryptedAttempt, secret: CkksSecret) -> Vectors:
    upload: Payload = begun.sum_over([B])
    read = SummingSite(secret, begun.sums.form).unprotect(upload, begun.play.agreement.max_sites)
    rows = begun.play.site(B).learner.train_round(begun.round)[0]
    return read[: rows.size].reshape(rows.shape), np.asarray(rows)


@pytest.mark.usefixtures("telling")
@pytest.mark.parametrize("result", RESULTS)
def test_a_returned_decryption_reveals_the_key_and_every_upload(
    result: Weighting | Method, plays: Plays
) -> None:
    read, secret = read_with_returned_key(result, plays)
    assert np.linalg.norm(secret, axis=1).min() > 0.1
    np.testing.assert_allclose(read, secret, rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("result", RESULTS)
def test_sites_return_nothing_that_reveals_the_key(result: Weighting | Method, plays: Plays) -> None:
    with pytest.raises(NoKey, match=r"nothing"):
        read_with_returned_key(result, plays)


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
    with pytest.raises(NoKey, match=r"go with"):
        recover_key(one, form, told["other"])
