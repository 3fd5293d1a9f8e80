"""A site that says it lacks a class, and encrypts what no honest site sends of it, reads no more than noise.

What it sends multiplies what its peers sent, so that noise of a fixed size would not hide it: the double shows that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from crypto.ckks import drowning
from crypto.ckks.packing import Complex, Packing
from crypto.ckks.parameters import SCHEME, answer_forms, upload_forms
from crypto.ckks.serialization import read_payload
from crypto.ckks.server import CkksServer
from crypto.protection import Combination, Payload
from tests.crypto.ckks_reference import cohort_of, group, random_stack, uploads
from tests.support.inline_pool import InlinePool

SITES, CLASSES, DIM = 4, 2, 1024
LACKED = 0
HOLDS = np.ones((SITES, CLASSES), dtype=np.bool_)
HOLDS[0, LACKED] = False
COHORT, PACKING = cohort_of(HOLDS, DIM), Packing(CLASSES, DIM)
STACK = random_stack((SITES, CLASSES, DIM), 0.5, seed=7)
PEERS = STACK[1:, LACKED].sum(axis=0)
CHANCE = 0.22
"""Above the cosine of two random directions but for a chance of 1e-11: seven times 1/√1024."""
Float = NDArray[np.float64]


@dataclass(frozen=True)
class Lie:
    """What a site encrypts of a class that it says it lacks: a row of this norm, and this correction."""

    norm: float = 0.0
    correction: float = 0.0


def payload(lie: Lie, combination: Combination) -> Payload:
    """The first site's upload: honest in every other class."""
    rows = np.where(HOLDS[0][:, None], STACK[0], 0.0)
    direction = np.random.default_rng(3).normal(size=DIM)
    rows[LACKED] = lie.norm * direction / np.linalg.norm(direction)
    correction = np.zeros(CLASSES)
    correction[LACKED] = lie.correction
    vectors: list[Complex | Float] = [*PACKING.pack(rows)]
    if combination is Combination.COMPLEMENT:
        vectors.append(PACKING.replicate(correction))
    pairs = zip(vectors, upload_forms(combination, PACKING.parts), strict=True)
    return Payload(SCHEME, blobs=tuple(group().secret.encrypt(vector, form) for vector, form in pairs))


def answered(lie: Lie, combination: Combination, pool: InlinePool | None = None) -> list[Float]:
    """All slots of the class in the first site's answer, decrypted: of each ciphertext, (F,)."""
    server = CkksServer(combination, group().keys_path, pool)
    sent = {**uploads(STACK, COHORT, combination), COHORT.sites[0]: payload(lie, combination)}
    for site, each in sent.items():
        server.validate(each, site, COHORT)
    answer = server.combine(sent, COHORT)[COHORT.sites[0]]
    ciphertexts = read_payload(answer, answer_forms(combination, PACKING.parts))
    return [PACKING.replicas(group().secret.decrypt(each))[LACKED] for each in ciphertexts]


def likeness(lie: Lie, combination: Combination, pool: InlinePool | None = None) -> float:
    """|cos| of what the site reads to the sum of its peers' prototypes."""
    (numerators, *_) = answered(lie, combination, pool)
    found = np.concatenate([numerators.real, numerators.imag])[:DIM]
    return float(abs(found @ PEERS) / np.linalg.norm(found) / np.linalg.norm(PEERS))


ATTACKS = [
    *((Combination.DISTANCE, Lie(norm=2.0**power)) for power in (8, 11, 12, 13, 20, 40)),
    *((Combination.COMPLEMENT, Lie(norm=2.0**power)) for power in (8, 11, 12, 13, 20, 40)),
    *((Combination.COMPLEMENT, Lie(correction=sign * 2.0**power)) for power in (22, 24) for sign in (-1, 1)),
    (Combination.COMPLEMENT, Lie(norm=2.0**11, correction=2.0**22)),
    (Combination.UNIFORM, Lie(norm=2.0**12)),
]
POWERFUL = [
    *((combination, Lie(norm=2.0**12)) for combination in (Combination.DISTANCE, Combination.COMPLEMENT)),
    (Combination.COMPLEMENT, Lie(correction=-(2.0**24))),
]


@pytest.mark.parametrize(("combination", "lie"), ATTACKS)
def test_what_a_site_sends_of_a_class_it_lacks_gains_nothing(combination: Combination, lie: Lie) -> None:
    assert likeness(Lie(), combination) < CHANCE
    assert likeness(lie, combination) < CHANCE


@pytest.mark.parametrize(("combination", "lie"), POWERFUL)
@pytest.mark.parametrize("workers", [0, 2])
def test_noise_of_a_fixed_size_alone_is_read_through(
    combination: Combination,
    lie: Lie,
    workers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = InlinePool(workers) if workers else None
    assert likeness(lie, combination, pool) < CHANCE
    monkeypatch.setattr(drowning, "AMPLIFIED", 1e-9)  # 0 would make ciphertexts without randomness
    assert likeness(lie, combination, pool) > 0.9


@pytest.mark.parametrize("combination", [Combination.DISTANCE, Combination.COMPLEMENT])
def test_noise_grows_with_all_that_the_site_sent(
    combination: Combination, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each draw replaced by 1, and by 2: what it is multiplied by shows, in numerators and denominator."""
    lie = Lie(norm=3.0, correction=2.0 if combination is Combination.COMPLEMENT else 0.0)

    def drawn(value: float) -> list[Float]:
        slots = PACKING.replicate(np.where(HOLDS[0], 0.0, value))
        monkeypatch.setattr(drowning, "drown_rows", lambda packing, drowned: [slots * drowned.any()])
        monkeypatch.setattr(drowning, "drown_replicated", lambda packing, drowned: slots * drowned.any())
        return answered(lie, combination)

    numerators, denominator = (with_ - without for with_, without in zip(drawn(2.0), drawn(1.0), strict=True))
    np.testing.assert_allclose(numerators, 1.0 + 16.0 * (9.0 + lie.correction), rtol=1e-5)
    np.testing.assert_allclose(denominator, 1.0 + 16.0 * 9.0, rtol=1e-5)


def test_the_limit_a_holder_that_helps_lifts_what_another_reads_with_complement() -> None:
    """Two dishonest sites: one has the class and sends a long row of it, the other lacks it and sends zeros."""
    rows = STACK.copy()
    rows[0, LACKED] = 0.0
    rows[1, LACKED] *= 2.0**12
    sent = uploads(STACK, COHORT, Combination.COMPLEMENT)
    vectors: list[Complex | Float] = [*PACKING.pack(rows[1]), PACKING.replicate(np.zeros(CLASSES))]
    forms = upload_forms(Combination.COMPLEMENT, PACKING.parts)
    pairs = zip(vectors, forms, strict=True)
    blobs = tuple(group().secret.encrypt(vector, form) for vector, form in pairs)
    sent[COHORT.sites[1]] = Payload(SCHEME, blobs=blobs)
    server = CkksServer(Combination.COMPLEMENT, group().keys_path, None)
    answer = read_payload(
        server.combine(sent, COHORT)[COHORT.sites[0]], answer_forms(Combination.COMPLEMENT, 1)
    )
    slots = PACKING.replicas(group().secret.decrypt(answer[0]))[LACKED]
    known = STACK[1, LACKED] / np.linalg.norm(STACK[1, LACKED])

    def beside(row: Float) -> Float:
        return np.asarray(row - (row @ known) * known)

    found = beside(np.concatenate([slots.real, slots.imag])[:DIM])
    others = beside(STACK[2:, LACKED].sum(axis=0))
    assert abs(found @ others) / np.linalg.norm(found) / np.linalg.norm(others) > 0.9
