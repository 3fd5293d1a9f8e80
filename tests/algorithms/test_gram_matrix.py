"""Gram matrices, distances and combinations against loops, and where float64 is needed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from algorithms.gram_matrix import Float, combine, gram, squared_distances

SHAPES = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 6))
STACKS = SHAPES.flatmap(
    lambda shape: npst.arrays(np.float64, shape, elements=st.floats(-1, 1, allow_subnormal=False))
)


@given(STACKS)
def test_gram_is_every_inner_product(stack: Float) -> None:
    products = gram(stack)
    n, classes, _ = stack.shape
    assert products.shape == (classes, n, n)
    for k, i, m in np.ndindex(classes, n, n):
        assert products[k, i, m] == pytest.approx(sum(stack[i, k] * stack[m, k]), abs=1e-14)


@given(STACKS)
def test_squared_distances_follow_from_the_gram_matrix(stack: Float) -> None:
    distances = squared_distances(gram(stack))
    n, classes, _ = stack.shape
    assert (distances >= 0).all()
    for k, i, m in np.ndindex(classes, n, n):
        assert distances[k, i, m] == pytest.approx(((stack[i, k] - stack[m, k]) ** 2).sum(), abs=1e-13)
        assert distances[k, i, i] == 0.0


@given(STACKS, st.integers(0, 2**32 - 1))
def test_combine_is_the_weighted_sum(stack: Float, seed: int) -> None:
    n, classes, _ = stack.shape
    weights = np.random.default_rng(seed).normal(size=(classes, n, n))
    combined = combine(weights, stack)
    assert combined.shape == stack.shape
    for k, i in np.ndindex(classes, n):
        expected = sum(weights[k, i, m] * stack[m, k] for m in range(n))
        np.testing.assert_allclose(combined[i, k], expected, atol=1e-12)


def test_squared_distances_near_duplicates_need_float64() -> None:
    """A known failure of float32: two unit rows 2.2e-5 apart."""
    row = np.full(512, 512**-0.5)
    other = row.copy()
    other[0] += 2.2e-5
    stack = np.stack([row, other])[:, None]
    assert np.sqrt(squared_distances(gram(stack))[0, 0, 1]) == pytest.approx(2.2e-5, rel=1e-3)
    narrow = stack.astype(np.float32)[:, 0]
    products = (narrow @ narrow.T).astype(np.float64)[None]
    assert abs(np.sqrt(squared_distances(products)[0, 0, 1]) - 2.2e-5) > 1e-5
