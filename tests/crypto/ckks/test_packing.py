"""Packing: every value comes back, and rotations add up what belongs together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crypto.ckks.packing import Packing
from crypto.errors import PrecisionError

PACKINGS = st.builds(Packing, st.integers(1, 70), st.integers(1, 600))


@given(PACKINGS, st.integers(0, 2**32))
def test_rows_come_back(packing: Packing, seed: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(packing.classes, packing.dim))
    vectors = packing.pack(rows)
    assert len(vectors) == packing.parts
    assert {vector.shape for vector in vectors} == {(4096,)}
    assert (packing.unpack(vectors) == rows).all()
    assert np.count_nonzero(np.stack(vectors).view(np.float64)) == rows.size


@given(PACKINGS, st.integers(0, 2**32))
def test_rotations_sum_each_class_over_its_features(packing: Packing, seed: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(packing.classes, packing.dim))
    total = np.sum(packing.pack(rows), axis=0)
    for step in packing.rotations:
        total = total + np.roll(total, -step)
    sums = packing.replicas(total)
    halves = sums.real + sums.imag
    np.testing.assert_allclose(halves, np.broadcast_to(rows.sum(axis=1)[:, None], sums.shape), atol=1e-9)


@given(PACKINGS, st.integers(0, 2**32))
def test_squared_magnitudes_add_up_to_squared_norms(packing: Packing, seed: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(packing.classes, packing.dim))
    squares = [packing.replicas(vector * vector.conj()) for vector in packing.pack(rows)]
    np.testing.assert_allclose(np.sum(squares, axis=(0, 2)), np.square(rows).sum(axis=1), rtol=1e-9)


@given(PACKINGS)
def test_replicas_of_a_replicated_value_are_that_value(packing: Packing) -> None:
    values = np.arange(1.0, packing.classes + 1.0)
    copies = packing.replicas(packing.replicate(values).astype(np.complex128))
    assert copies.shape == (packing.classes, packing.copies)
    assert (copies == values[:, None]).all()


@pytest.mark.parametrize(
    ("classes", "dim", "stride", "parts"),
    [(1, 4096, 2, 1), (2, 4097, 2, 2), (3, 5, 4, 1), (10, 64, 16, 1), (10, 512, 16, 1), (17, 257, 32, 2)],
)
def test_known_layouts(classes: int, dim: int, stride: int, parts: int) -> None:
    packing = Packing(classes, dim)
    assert (packing.stride, packing.parts, packing.copies) == (stride, parts, 4096 // stride)
    rows = np.zeros((classes, dim))
    rows[-1, -1] = 1.0
    half, copy = divmod((dim - 1) % (2 * packing.copies), packing.copies)
    last = packing.pack(rows)[-1]
    assert np.flatnonzero(last).tolist() == [copy * stride + classes - 1]
    assert last.sum() == (1.0, 1j)[half]


@pytest.mark.parametrize("classes", [0, 4097])
def test_packing_refuses_more_classes_than_slots(classes: int) -> None:
    with pytest.raises(PrecisionError, match="1 to 4096 classes"):
        Packing(classes, 1)
