"""Packing of rows into slots, and the sums over slots that it makes possible."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tenseal import sealapi

from crypto.ckks.circuit import Circuit
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
from crypto.ckks.peer_combination import PackedSums
from crypto.ckks.serialization import load
from crypto.errors import PrecisionError
from tests.crypto.ckks_reference import group

PACKINGS = st.builds(Packing, st.integers(1, 70), st.integers(1, 600))


@given(PACKINGS, st.integers(0, 2**32))
def test_pack_unpack_round_trip(packing: Packing, seed: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(packing.classes, packing.dim))
    vectors = packing.pack(rows)
    assert len(vectors) == packing.parts
    assert {vector.shape for vector in vectors} == {(4096,)}
    assert (packing.unpack(vectors) == rows).all()
    assert np.count_nonzero(np.stack(vectors).view(np.float64)) == rows.size


@given(PACKINGS, st.integers(0, 2**32))
def test_rotations_sum_features_of_each_class(packing: Packing, seed: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(packing.classes, packing.dim))
    total = np.sum(packing.pack(rows), axis=0)
    for step in packing.rotations:
        total = total + np.roll(total, -step)
    sums = packing.replicas(total)
    halves = sums.real + sums.imag
    np.testing.assert_allclose(halves, np.broadcast_to(rows.sum(axis=1)[:, None], sums.shape), atol=1e-9)


@given(PACKINGS, st.integers(0, 2**32))
def test_packed_squared_magnitudes_sum_to_norms(packing: Packing, seed: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(packing.classes, packing.dim))
    squares = [packing.replicas(vector * vector.conj()) for vector in packing.pack(rows)]
    np.testing.assert_allclose(np.sum(squares, axis=(0, 2)), np.square(rows).sum(axis=1), rtol=1e-9)


@given(PACKINGS)
def test_replicas_equal_replicated_value(packing: Packing) -> None:
    values = np.arange(1.0, packing.classes + 1.0)
    copies = packing.replicas(packing.replicate(values).astype(np.complex128))
    assert copies.shape == (packing.classes, packing.copies)
    assert (copies == values[:, None]).all()


@pytest.mark.parametrize(
    ("classes", "dim", "stride", "parts"),
    [(1, 4096, 2, 1), (2, 4097, 2, 2), (3, 5, 4, 1), (10, 64, 16, 1), (10, 512, 16, 1), (17, 257, 32, 2)],
)
def test_pack_known_layouts(classes: int, dim: int, stride: int, parts: int) -> None:
    packing = Packing(classes, dim)
    assert (packing.stride, packing.parts, packing.copies) == (stride, parts, 4096 // stride)
    rows = np.zeros((classes, dim))
    rows[-1, -1] = 1.0
    half, copy = divmod((dim - 1) % (2 * packing.copies), packing.copies)
    last = packing.pack(rows)[-1]
    assert np.flatnonzero(last).tolist() == [copy * stride + classes - 1]
    assert last.sum() == (1.0, 1j)[half]


@pytest.mark.parametrize("classes", [0, 4097])
def test_packing_too_many_classes_refused(classes: int) -> None:
    with pytest.raises(PrecisionError, match="4096"):
        Packing(classes, 1)


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
def test_packed_sums_give_each_products_sum(count: int, classes: int) -> None:
    packing = Packing(classes, 1)
    values = vectors(count, packing)
    for got, value in zip(sums(Circuit(group().keys.load()), packing, values), values, strict=True):
        by_class = (value * value).reshape(packing.copies, packing.stride).sum(axis=0)
        exact = np.tile(by_class, packing.copies)
        assert np.abs(got - exact).max() < 1e-7


@pytest.mark.parametrize(("count", "most"), [(1, 9), (2, 10), (32, 66), (64, 132)])
def test_packed_sums_two_key_switches_each(count: int, most: int) -> None:
    """A sum of 32 takes 66 key switches: 16 to relinearise, 15 to pack, 4 to sum, 31 to take apart."""
    circuit, packing = Counted(), Packing(10, 1)
    assert len(sums(circuit, packing, vectors(count, packing))) == count
    assert circuit.switches == most
    assert len(packing.rotations) == 8
    assert 1 << DOUBLINGS == 32


def test_packed_sums_compute_products_lazily() -> None:
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
