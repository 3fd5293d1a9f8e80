"""Packed sums: each product's own sum over the slots of each class, at the stated number of key switches."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray
from tenseal import sealapi

from crypto.ckks.circuit import Circuit
from crypto.ckks.packed_sums import PackedSums
from crypto.ckks.packing import Packing
from crypto.ckks.parameters import (
    DENOMINATOR,
    DOUBLINGS,
    PROTOTYPE,
    UNIT_SCALE,
    Ciphertext,
    CkksLevel,
    level_id,
)
from crypto.ckks.serialization import load
from tests.crypto.ckks_reference import group

Array = NDArray[np.float64]

CLASSES = [1, 2, 10, 300, 2048, 4096]


class Counted(Circuit):
    """Counts key switches."""

    def __init__(self) -> None:
        super().__init__(group().keys.load())
        self.switches = 0

    def relinearise(self, ciphertext: Ciphertext) -> Ciphertext:
        self.switches += 1
        return super().relinearise(ciphertext)

    def rotate(self, ciphertext: Ciphertext, step: int) -> Ciphertext:
        self.switches += 1
        return super().rotate(ciphertext, step)

    def conjugate(self, ciphertext: Ciphertext) -> Ciphertext:
        self.switches += 1
        return super().conjugate(ciphertext)


def sums(circuit: Circuit, packing: Packing, values: Sequence[Array]) -> list[NDArray[np.complex128]]:
    """Packed sums of squares of vectors (4096,), decrypted."""
    fresh = [load(sealapi.Ciphertext(), group().secret.encrypt(each, PROTOTYPE)) for each in values]
    products = [partial(circuit.multiply, each, each) for each in fresh]
    totals = list(PackedSums(circuit, packing).sums(products))
    for total in totals:
        assert list(total.parms_id()) == level_id(CkksLevel.PRODUCT)
        assert circuit.rescale(circuit.scale_up(total, UNIT_SCALE)).scale == DENOMINATOR.scale
    return [group().secret.decrypt(total) for total in totals]


def vectors(count: int, packing: Packing) -> list[Array]:
    rng = np.random.default_rng(count)
    return list(rng.normal(size=(count, 4096)) / np.sqrt(packing.copies))


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("count", [1, 2, 3, 21, 33])
def test_each_sum_is_its_own_products(count: int, classes: int) -> None:
    packing = Packing(classes, 1)
    values = vectors(count, packing)
    for got, value in zip(sums(Circuit(group().keys.load()), packing, values), values, strict=True):
        by_class = (value * value).reshape(packing.copies, packing.stride).sum(axis=0)
        exact = np.tile(by_class, packing.copies)
        assert np.abs(got - exact).max() < 1e-7


@pytest.mark.parametrize(("count", "most"), [(1, 9), (2, 10), (32, 66), (64, 132)])
def test_a_sum_takes_two_key_switches_not_one_for_each_rotation(count: int, most: int) -> None:
    """A sum of 32 takes 66 key switches: 16 to relinearise, 15 to pack, 4 to sum, 31 to take apart."""
    circuit, packing = Counted(), Packing(10, 1)
    assert len(sums(circuit, packing, vectors(count, packing))) == count
    assert circuit.switches == most
    assert len(packing.rotations) == 8
    assert 1 << DOUBLINGS == 32


def test_products_are_made_when_they_are_packed() -> None:
    """The circuit holds as many products at a time as there are levels, and not one for each pair of sites."""
    circuit, packing, made = Circuit(group().keys.load()), Packing(10, 1), []
    one = load(sealapi.Ciphertext(), group().secret.encrypt(np.ones(4096), PROTOTYPE))

    def product(number: int) -> Ciphertext:
        made.append(number)
        return circuit.multiply(one, one)

    totals = PackedSums(circuit, packing).sums([partial(product, number) for number in range(40)])
    next(totals)
    assert made == list(range(32))
    assert len(list(totals)) == 39
    assert made == list(range(40))
