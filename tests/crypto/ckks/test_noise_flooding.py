"""Noise in answers: unused slots, and classes that the receiving site lacks, tell it nothing about its peers.

A site may claim to lack a class and encrypt a row of it that no honest site sends. That row multiplies the peers'
values, so noise of a fixed size would not hide them, nor would noise times the squared norm of the row, which is
computed modulo q. Doubles show both.
"""

from __future__ import annotations

import cmath
import math
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray
from tenseal import sealapi

from crypto.ckks import noise_flooding
from crypto.ckks.circuit import IMAGINARY_UNIT, Circuit, KeysFile, load_circuit
from crypto.ckks.group_mixing import COPIES, MixingServer, MixingSite, MixLayout
from crypto.ckks.noise_flooding import Receiver
from crypto.ckks.packing import BoundedVector, Complex, Packing
from crypto.ckks.parameters import (
    DOUBLINGS,
    PROTOTYPE,
    SCALE,
    SCHEME,
    SLOTS,
    Ciphertext,
    CiphertextShape,
    answer_shapes,
    context,
    upload_shapes,
)
from crypto.ckks.peer_combination import Combining
from crypto.ckks.peer_server import CkksServer
from crypto.ckks.serialization import read_ciphertext, read_payload
from crypto.ckks.sums import SumLayout, SummingServer, SummingSite
from crypto.fixed_point import Segment
from crypto.protection import Combination, Payload
from tests.crypto.ckks_reference import cohort_of, group, random_stack, uploads
from tests.support.inline_pool import InlinePool

Float = NDArray[np.float64]

LENGTH, TERMS, COMPONENTS = 9, 4, 6
"""An odd number of values, so that the last one's slot has an imaginary part that is nobody's."""


def decrypted(payload: Payload, forms: tuple[CiphertextShape, ...]) -> Float:
    """Return every slot's both parts, those of values first: (2·4096 for each ciphertext,)."""
    slots: Float = np.concatenate([group().secret.decrypt(each) for each in read_payload(payload, forms)])
    return slots.view(np.float64)


# Sums


def summed() -> tuple[Float, Float, SumLayout]:
    """Return all that decrypts of a sum of ``TERMS`` vectors of bound 2, and the vectors."""
    form = SumLayout([Segment(LENGTH, 2.0)], terms=TERMS)
    vectors = np.random.default_rng(3).uniform(-2.0, 2.0, size=(TERMS, LENGTH))
    site = SummingSite(group().secret, form)
    total = SummingServer(form).add([site.protect(vector) for vector in vectors])
    return decrypted(total, form.answers), vectors, form


def test_sum_unused_slots_hold_noise() -> None:
    slots, vectors, form = summed()
    error = form.relative_error(TERMS)
    assert np.abs(slots[:LENGTH] - vectors.sum(axis=0) / 2.0).max() <= error
    assert np.abs(slots[LENGTH:]).max() <= error


def test_unused_slot_check_finds_leftover_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """A double that leaves there what stood in memory: its vector, say, before withheld classes were made zeros."""
    pack = BoundedVector.pack

    def left(vector: BoundedVector, values: Float) -> list[Complex]:
        (slots,) = pack(vector, values)
        parts = slots.view(np.float64)
        parts[LENGTH : 2 * LENGTH] = parts[:LENGTH]
        return [slots]

    monkeypatch.setattr(BoundedVector, "pack", left)
    slots, vectors, form = summed()
    read = 2.0 * slots[LENGTH : 2 * LENGTH]
    assert np.abs(read - vectors.sum(axis=0)).max() <= 2.0 * form.relative_error(TERMS)


# Groups


DIRECTIONS = np.abs(np.random.default_rng(4).normal(size=(2, COMPONENTS)))
DIRECTIONS /= np.linalg.norm(DIRECTIONS, axis=1, keepdims=True)


def mixed() -> tuple[Float, MixLayout]:
    """Return all that decrypts of the first of two groups' answers; each mixes a single 1."""
    form = MixLayout(COMPONENTS, [Segment(1, 1.0)], groups=2)
    site, server = MixingSite(group().secret, form), MixingServer(form, group().keys_path, None)
    answers = server.mix([site.protect(direction, np.ones(1)) for direction in DIRECTIONS])
    return decrypted(answers[0], form.answers), form


def test_mix_unused_slots_hold_noise() -> None:
    slots, form = mixed()
    error = form.error(np.full(1, 2.0))[0]
    assert abs(slots[0] - 1.0 - DIRECTIONS[0] @ DIRECTIONS[1]) <= error
    assert np.abs(slots[1:]).max() <= error


def test_mix_imaginary_cosine_double_leaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Directions packed as prototypes are, two components in a slot, leave another product of the two groups there."""

    def as_prototypes(_form: MixLayout, vector: Float) -> list[Complex]:
        slots = np.zeros(SLOTS, dtype=np.complex128)
        slots[: COPIES * COMPONENTS // 2] = np.repeat(
            vector[: COMPONENTS // 2] + 1j * vector[COMPONENTS // 2 :], COPIES
        )
        return [slots]

    monkeypatch.setattr(MixLayout, "pack_direction", as_prototypes)
    slots, form = mixed()
    halves = DIRECTIONS.reshape(2, 2, COMPONENTS // 2)
    crossed = halves[0, 0] @ halves[1, 1] + halves[0, 1] @ halves[1, 0]
    assert abs(crossed) > 0.1
    assert abs(slots[1] - crossed) <= form.error(np.full(1, 2.0))[0]


SITES, CLASSES, DIM = 4, 2, 1024
LACKED = 0
HOLDS = np.ones((SITES, CLASSES), dtype=np.bool_)
HOLDS[0, LACKED] = False
COHORT, PACKING = cohort_of(HOLDS, DIM), Packing(CLASSES, DIM)
STACK = random_stack((SITES, CLASSES, DIM), 0.5, seed=7)
PEERS = STACK[1:, LACKED].sum(axis=0)
CHANCE = 0.22
"""Above the cosine of two random directions but for a chance of 1e-11: seven times 1/√1024."""


@dataclass(frozen=True)
class Lie:
    """Row of this norm, and this correction, that a site encrypts of a class that it claims to lack."""

    norm: float = 0.0
    correction: float = 0.0


def own_direction() -> Float:
    """Return a row (d,) of norm 1."""
    direction = np.random.default_rng(3).normal(size=DIM)
    return np.asarray(direction / np.linalg.norm(direction))


def payload(lie: Lie, combination: Combination) -> Payload:
    """Return the first site's upload: honest in every other class."""
    rows = np.where(HOLDS[0][:, None], STACK[0], 0.0)
    rows[LACKED] = lie.norm * own_direction()
    correction = np.zeros(CLASSES)
    correction[LACKED] = lie.correction
    vectors: list[Complex | Float] = [*PACKING.pack(rows)]
    if combination is Combination.COMPLEMENT:
        vectors.append(PACKING.replicate(correction))
    pairs = zip(vectors, upload_shapes(combination, PACKING.parts), strict=True)
    return Payload(SCHEME, blobs=tuple(group().secret.encrypt(vector, form) for vector, form in pairs))


def answered(lie: Lie, combination: Combination, pool: InlinePool | None = None) -> list[Float]:
    """Return all slots of the class in the first site's answer, decrypted: of each ciphertext, (F,)."""
    server = CkksServer(combination, group().keys_path, pool)
    sent = {**uploads(STACK, COHORT, combination), COHORT.sites[0]: payload(lie, combination)}
    for site, each in sent.items():
        server.validate(each, site, COHORT)
    answer = server.combine(sent, COHORT)[COHORT.sites[0]]
    ciphertexts = read_payload(answer, answer_shapes(combination, PACKING.parts))
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
def test_answer_to_row_of_absent_class_reveals_nothing(combination: Combination, lie: Lie) -> None:
    assert likeness(Lie(), combination) < CHANCE
    assert likeness(lie, combination) < CHANCE


@pytest.mark.parametrize(("combination", "lie"), POWERFUL)
@pytest.mark.parametrize("workers", [0, 2])
def test_fixed_noise_double_reveals_peers(
    combination: Combination,
    lie: Lie,
    workers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = InlinePool(workers) if workers else None
    assert likeness(lie, combination, pool) < CHANCE
    monkeypatch.setattr(noise_flooding, "AMPLIFIED", 1e-9)  # 0 would make ciphertexts without randomness
    assert likeness(lie, combination, pool) > 0.9


@dataclass(frozen=True)
class Wrapping:
    """A row of one number x in all slots, whose squared norm is q: to the coordinator, who computes modulo q, it is 0.

    ``plain`` and ``turned`` are encryptions of zeros: key switching errs by their random part, and so always alike.
    """

    circuit: Circuit
    plain: Ciphertext
    turned: Ciphertext

    def row(self, real: int, imaginary: int) -> Ciphertext:
        """x = (real + i·imaginary)/SCALE, exactly: float64 has too few digits for it."""
        turned = self.circuit.multiply_by_monomial(plus(self.turned, imaginary), IMAGINARY_UNIT)
        return self.circuit.add(plus(self.plain, real), turned)

    def found(self) -> tuple[Ciphertext, complex]:
        """Find x for which the computed square is next to 0, whatever key switching adds to it: (the row, x)."""
        primes = context().first_context_data().parms().coeff_modulus()
        copies, modulus = PACKING.copies, math.prod(each.value() for each in primes)
        wanted = modulus // (copies << DOUBLINGS)  # x², which relinearising and taking apart multiply
        real, imaginary = math.isqrt(wanted), 0
        for _ in range(4):
            x = complex(real, imaginary) / SCALE
            off = complex(self.computed_square(self.row(real, imaginary)))
            exact = float((real**2 + imaginary**2 - wanted) * copies) / SCALE**2
            angle = -cmath.phase((off - exact) / x)
            length = math.isqrt(wanted - int(abs(off - exact) / copies * SCALE**2))
            imaginary = int(length * math.sin(angle))
            real = math.isqrt(length**2 - imaginary**2) * (1 if math.cos(angle) > 0.0 else -1)
        assert abs(self.computed_square(self.row(real, imaginary))) < 0.5
        return self.row(real, imaginary), complex(real, imaginary) / SCALE

    def computed_square(self, row: Ciphertext) -> complex:
        combining = Combining(self.circuit, Combination.DISTANCE, PACKING)
        square, _ = combining.lengths({0: combining.prepare([row])}, {0: ~HOLDS[0]})[0]
        return complex(PACKING.replicas(group().secret.decrypt(square))[LACKED].mean())


def plus(ciphertext: Ciphertext, constant: int) -> Ciphertext:
    """Add a whole number to the first coefficient, in pieces that float64 holds."""
    evaluator, encoder = sealapi.Evaluator(context()), sealapi.CKKSEncoder(context())
    low = constant % 2**40
    for piece in (float(constant - low), float(low)):
        plaintext, result = sealapi.Plaintext(), sealapi.Ciphertext()
        encoder.encode(piece / SCALE, ciphertext.parms_id(), SCALE, plaintext)
        evaluator.add_plain(ciphertext, plaintext, result)
        ciphertext = result
    return ciphertext


@pytest.mark.parametrize("projected", [True, False])
def test_answer_to_row_with_square_of_modulus_reveals_nothing(
    projected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its inner products with the peers' rows are as large as ever: noise times its squared norm alone is no noise."""
    secret, circuit = group().secret, load_circuit(KeysFile.at(group().keys_path))
    zeros = [read_ciphertext(secret.encrypt(np.zeros(4096), PROTOTYPE), PROTOTYPE) for _ in range(2)]
    row, x = Wrapping(circuit, *zeros).found()
    if not projected:
        lengths = Combining.lengths
        monkeypatch.setattr(
            Combining, "lengths", lambda *each: {i: parts[:1] for i, parts in lengths(*each).items()}
        )
    peers = uploads(STACK, COHORT, Combination.DISTANCE)
    prototypes = [[row], *(read_payload(peers[site], [PROTOTYPE]) for site in COHORT.sites[1:])]
    receivers = [Receiver(circuit, PACKING, lacks, None) for lacks in ~COHORT.holds]
    answer = next(Combining(circuit, Combination.DISTANCE, PACKING).answers(prototypes, receivers))
    slots = PACKING.replicas(secret.decrypt(answer[0]))[LACKED]
    found = np.concatenate([slots.real, slots.imag])[:DIM]
    packed = [PACKING.replicas(PACKING.pack(STACK[m])[0])[LACKED].sum() for m in range(1, SITES)]
    read = np.array([(np.conj(x) * each).real for each in packed]) @ STACK[1:, LACKED]
    likeness = abs(found @ read) / np.linalg.norm(found) / np.linalg.norm(read)
    assert likeness < CHANCE if projected else likeness > 0.9


@pytest.mark.parametrize("combination", [Combination.DISTANCE, Combination.COMPLEMENT])
def test_noise_grows_with_receivers_upload(combination: Combination, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each draw replaced by 1, and by 2: what it is multiplied by shows, in numerators and denominator."""
    direction = np.where(HOLDS[0][:, None], 0.0, own_direction())
    lie = Lie(norm=3.0, correction=2.0 if combination is Combination.COMPLEMENT else 0.0)

    def drawn(value: float) -> list[Float]:
        slots = PACKING.replicate(np.where(HOLDS[0], 0.0, value))
        monkeypatch.setattr(noise_flooding, "flood_rows", lambda packing, flooded: [slots * flooded.any()])
        monkeypatch.setattr(
            noise_flooding, "flood_replicated", lambda packing, flooded: slots * flooded.any()
        )
        monkeypatch.setattr(noise_flooding, "random_rows", lambda packing, flooded: packing.pack(direction))
        return answered(lie, combination)

    numerators, denominator = (with_ - without for with_, without in zip(drawn(2.0), drawn(1.0), strict=True))
    np.testing.assert_allclose(numerators, 1.0 + 16.0 * (9.0 + 6.0 + lie.correction), rtol=1e-5)
    np.testing.assert_allclose(denominator, 1.0 + 16.0 * (9.0 + 6.0), rtol=1e-5)


def test_complement_colluding_holder_limit() -> None:
    """Two dishonest sites: one has the class and sends a long row of it, the other lacks it and sends zeros."""
    rows = STACK.copy()
    rows[0, LACKED] = 0.0
    rows[1, LACKED] *= 2.0**12
    sent = uploads(STACK, COHORT, Combination.COMPLEMENT)
    vectors: list[Complex | Float] = [*PACKING.pack(rows[1]), PACKING.replicate(np.zeros(CLASSES))]
    forms = upload_shapes(Combination.COMPLEMENT, PACKING.parts)
    pairs = zip(vectors, forms, strict=True)
    blobs = tuple(group().secret.encrypt(vector, form) for vector, form in pairs)
    sent[COHORT.sites[1]] = Payload(SCHEME, blobs=blobs)
    server = CkksServer(Combination.COMPLEMENT, group().keys_path, None)
    answer = read_payload(
        server.combine(sent, COHORT)[COHORT.sites[0]], answer_shapes(Combination.COMPLEMENT, 1)
    )
    slots = PACKING.replicas(group().secret.decrypt(answer[0]))[LACKED]
    known = STACK[1, LACKED] / np.linalg.norm(STACK[1, LACKED])

    def beside(row: Float) -> Float:
        return np.asarray(row - (row @ known) * known)

    found = beside(np.concatenate([slots.real, slots.imag])[:DIM])
    others = beside(STACK[2:, LACKED].sum(axis=0))
    assert abs(found @ others) / np.linalg.norm(found) / np.linalg.norm(others) > 0.9
