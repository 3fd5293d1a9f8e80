"""Noise in every slot of a sum or a mixing of groups beside the numbers that it is for, in both parts."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from crypto.ckks.group_mixing import COPIES, MixForm, MixingServer, MixingSite
from crypto.ckks.packing import BoundedVector, Complex
from crypto.ckks.parameters import SLOTS, Form
from crypto.ckks.serialization import read_payload
from crypto.ckks.sums import SumForm, SummingServer, SummingSite
from crypto.fixed_point import Segment
from crypto.protection import Payload
from tests.crypto.ckks_reference import group

Float = NDArray[np.float64]

LENGTH, TERMS, COMPONENTS = 9, 4, 6
"""An odd number of values, so that the last one's slot has an imaginary part that is nobody's."""


def decrypted(payload: Payload, forms: tuple[Form, ...]) -> Float:
    """Return every slot's both parts, those of values first: (2·4096 for each ciphertext,)."""
    slots: Float = np.concatenate([group().secret.decrypt(each) for each in read_payload(payload, forms)])
    return slots.view(np.float64)


# Sums


def summed() -> tuple[Float, Float, SumForm]:
    """Return all that decrypts of a sum of ``TERMS`` vectors of bound 2, and the vectors."""
    form = SumForm([Segment(LENGTH, 2.0)], terms=TERMS)
    vectors = np.random.default_rng(3).uniform(-2.0, 2.0, size=(TERMS, LENGTH))
    site = SummingSite(group().secret, form)
    total = SummingServer(form).add([site.protect(vector) for vector in vectors])
    return decrypted(total, form.answers), vectors, form


def test_a_sum_holds_its_values_and_noise() -> None:
    slots, vectors, form = summed()
    error = form.relative_error(TERMS)
    assert np.abs(slots[:LENGTH] - vectors.sum(axis=0) / 2.0).max() <= error
    assert np.abs(slots[LENGTH:]).max() <= error


def test_the_check_detects_values_left_in_padding(monkeypatch: pytest.MonkeyPatch) -> None:
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


def mixed() -> tuple[Float, MixForm]:
    """Return all that decrypts of the first of two groups' answers; each mixes a single 1."""
    form = MixForm(COMPONENTS, [Segment(1, 1.0)], groups=2)
    site, server = MixingSite(group().secret, form), MixingServer(form, group().keys_path, None)
    answers = server.mix([site.protect(direction, np.ones(1)) for direction in DIRECTIONS])
    return decrypted(answers[0], form.answers), form


def test_mixed_groups_hold_their_values_and_noise() -> None:
    slots, form = mixed()
    error = form.error(np.full(1, 2.0))[0]
    assert abs(slots[0] - 1.0 - DIRECTIONS[0] @ DIRECTIONS[1]) <= error
    assert np.abs(slots[1:]).max() <= error


def test_a_cosine_with_an_imaginary_part_would_tell_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Directions packed as prototypes are, two components in a slot, leave another product of the two groups there."""

    def as_prototypes(_form: MixForm, vector: Float) -> list[Complex]:
        slots = np.zeros(SLOTS, dtype=np.complex128)
        slots[: COPIES * COMPONENTS // 2] = np.repeat(
            vector[: COMPONENTS // 2] + 1j * vector[COMPONENTS // 2 :], COPIES
        )
        return [slots]

    monkeypatch.setattr(MixForm, "pack_direction", as_prototypes)
    slots, form = mixed()
    halves = DIRECTIONS.reshape(2, 2, COMPONENTS // 2)
    crossed = halves[0, 0] @ halves[1, 1] + halves[0, 1] @ halves[1, 0]
    assert abs(crossed) > 0.1
    assert abs(slots[1] - crossed) <= form.error(np.full(1, 2.0))[0]
