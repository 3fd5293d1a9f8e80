"""Means from sums, and classes with enough holders, against loops over the sites."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms.averaging import active_classes, prototype_means, weighted_mean
from tests.algorithms import feddbp_reference as reference


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 4))
def test_prototype_means_are_plain_means_over_holders(seed: int, sites: int, min_holders: int) -> None:
    rng = np.random.default_rng(seed)
    stack, holds = rng.normal(size=(sites, 4, 3)), rng.random((sites, 4)) < 0.6
    rows, has = prototype_means((stack * holds[:, :, None]).sum(axis=0), holds.sum(axis=0), min_holders)
    expected, known = reference.global_prototypes(stack.tolist(), holds.tolist(), min_holders)
    assert has.tolist() == known
    np.testing.assert_allclose(rows, expected, rtol=1e-9, atol=1e-12)


def test_prototype_means_check_sees_a_mean_over_all_sites() -> None:
    """Three sites, of which two hold the second class."""
    sums, holders = np.array([[3.0], [4.0]]), np.array([3, 2])
    assert prototype_means(sums, holders, 1)[0].tolist() == [[1.0], [2.0]]
    assert prototype_means(sums, np.array([3, 3]), 1)[0].tolist() != [[1.0], [2.0]]


def test_prototype_means_class_of_too_few_holders_is_withheld() -> None:
    """Nothing of a lone holder's row gets out, and what noise or masks left in an empty sum is not divided by 0."""
    sums = np.array([[[4.0, 8.0], [5.0, 5.0], [1e-9, -1e-9]], [[6.0, 0.0], [2.0, 2.0], [3.0, 3.0]]])
    rows, has = prototype_means(sums, np.array([[2, 1, 0], [3, 2, 1]]), 2)
    assert has.tolist() == [[True, False, False], [True, True, False]]
    assert rows.tolist() == [[[2, 4], [0, 0], [0, 0]], [[2, 0], [1, 1], [0, 0]]]


@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_weighted_mean_equals_a_loop(seed: int, sites: int) -> None:
    rng = np.random.default_rng(seed)
    vectors, counts = rng.normal(size=(sites, 3)), rng.integers(1, 50, size=sites)
    total = np.zeros(3)
    for vector, count in zip(vectors, counts, strict=True):
        total += count * vector
    expected = [sum(c * v[j] for v, c in zip(vectors, counts, strict=True)) / counts.sum() for j in range(3)]
    np.testing.assert_allclose(weighted_mean(total, int(counts.sum())), expected, rtol=1e-9, atol=1e-12)


def test_weighted_mean_divides_every_group_by_its_weight() -> None:
    assert weighted_mean(np.array([[2.0, 4.0], [3.0, 9.0]]), np.array([2, 3])).tolist() == [[1, 2], [1, 3]]


PRESENCE = np.array([[True, True, False, True], [False, True, False, True], [False, False, False, True]])


@pytest.mark.parametrize(
    ("minimum", "expected"),
    [
        (1, [True, True, False, True]),
        (2, [False, True, False, True]),
        (3, [False, False, False, True]),
        (4, [False, False, False, False]),
    ],
)
def test_active_classes_begin_at_min_holders(minimum: int, expected: list[bool]) -> None:
    assert active_classes(PRESENCE, minimum).tolist() == expected
