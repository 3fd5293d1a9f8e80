"""FINCH against a literal reading on the vectors; ties, zero vectors, and what must not matter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms import finch as module
from algorithms.finch import cosines_of_means, finch, finch_rows
from algorithms.gram_matrix import Float
from tests.algorithms import finch_reference as reference

SEEDS = range(80)


def gram_of(rows: Float) -> Float:
    return np.asarray(rows @ rows.T)


def features(seed: int) -> Float:
    """Draw 2 to 60 vectors without ties: like features after a ReLU, with signs, or around a few directions."""
    rng = np.random.default_rng(seed)
    n, dim = int(rng.integers(2, 61)), int(rng.integers(3, 25))
    rows = rng.normal(size=(n, dim))
    if seed % 3 == 0:
        rows = np.maximum(rows, 0.0) + 0.01
    if seed % 3 == 1:
        rows = 0.3 * rows + rng.normal(size=(4, dim))[rng.integers(0, 4, n)]
    return rows * rng.uniform(0.1, 10.0, size=(n, 1))


@pytest.mark.parametrize("literal", [False, True])
def test_finch_keeps_the_coarsest_level_with_two_clusters(literal: bool) -> None:
    depths = set()
    for seed in SEEDS:
        rows = features(seed)
        levels = reference.levels(rows.tolist(), literal=literal)
        depths.add(len(levels))
        expected = reference.coarsest(levels)
        for found in (finch(gram_of(rows), literal=literal), finch_rows(rows, literal=literal)):
            assert found.tolist() == expected, seed
            assert found.dtype == np.int64
    assert len(depths) >= 3


def test_finch_check_sees_lengths_and_a_level_too_many() -> None:
    data = [features(seed) for seed in SEEDS]
    chosen = [finch(gram_of(rows)).tolist() for rows in data]
    assert any(
        finch(gram_of(rows), literal=True).tolist() != each for rows, each in zip(data, chosen, strict=True)
    )
    last = [reference.levels(rows.tolist())[-1] for rows in data]
    assert sum(each != level for each, level in zip(chosen, last, strict=True)) > len(data) / 2
    assert all(max(level) == 0 for level in last)


def test_finch_shared_neighbour_adds_no_component() -> None:
    """Why the code links i with κ_i only."""
    for seed in SEEDS:
        rows = features(seed).tolist()
        edges: list[set[int]] = [set() for _ in rows]
        for i in range(len(rows)):
            edges[i].add(reference.nearest(rows, i))
            edges[reference.nearest(rows, i)].add(i)
        assert reference.components(edges) == reference.components(reference.first_neighbour_graph(rows))


@given(st.integers(0, 2**32 - 1))
def test_finch_rotation_and_lengths_change_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = features(seed % 1000)
    turn, _ = np.linalg.qr(rng.normal(size=(rows.shape[1],) * 2))
    expected = finch(gram_of(rows)).tolist()
    assert finch(gram_of(rows @ turn)).tolist() == expected
    assert finch(gram_of(rows * rng.uniform(1e-3, 1e3, size=(len(rows), 1)))).tolist() == expected


def test_finch_equal_distances_give_the_lowest_index() -> None:
    """0 is at 60 degrees of both 1 and 2, and each of those has a nearer one, so the tie decides who takes 0."""
    angles = np.radians([0.0, 60.0, -60.0, 61.0, -61.0])
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    assert finch(gram_of(rows)).tolist() == [0, 0, 1, 0, 1]
    swapped = rows[[0, 2, 1, 4, 3]]
    assert finch(gram_of(swapped)).tolist() == [0, 0, 1, 0, 1]
    assert finch_rows(rows).tolist() == [0, 0, 1, 0, 1]


@pytest.mark.parametrize(("turned", "expected"), [(1e-8, [0, 0, 1, 0, 1]), (-1e-8, [0, 0, 1, 0, 1])])
def test_finch_distances_within_the_step_are_equal(turned: float, expected: list[int]) -> None:
    angles = np.radians([0.0, 60.0, -60.0, 61.0, -61.0]) + np.array([turned, 0, 0, 0, 0])
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    assert finch(gram_of(rows)).tolist() == expected


def test_finch_without_the_step_the_difference_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DISTANCE_STEP", 1e-13)
    angles = np.radians([0.0, 60.0, -60.0, 61.0, -61.0]) + np.array([-1e-8, 0, 0, 0, 0])
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    assert finch(gram_of(rows)).tolist() == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("literal", [False, True])
def test_finch_zero_vectors_stand_alone(literal: bool) -> None:
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        rows = features(seed)
        at = np.sort(rng.integers(0, len(rows) + 1, size=3))
        mixed = np.insert(rows, at, 0.0, axis=0)
        zero = ~mixed.any(axis=1)
        for found in (finch(gram_of(mixed), literal=literal), finch_rows(mixed, literal=literal)):
            assert all((found == found[i]).sum() == 1 for i in np.flatnonzero(zero))
            alone = finch(gram_of(rows), literal=literal)
            assert (found[~zero][:, None] == found[~zero]).tolist() == (alone[:, None] == alone).tolist()
            assert list(dict.fromkeys(found.tolist())) == list(range(found.max() + 1))


def test_finch_zeros_one_vector_and_none_have_an_answer() -> None:
    assert finch(np.zeros((3, 3))).tolist() == [0, 1, 2]
    assert finch_rows(np.zeros((3, 5))).tolist() == [0, 1, 2]
    assert finch(np.array([[4.0]])).tolist() == [0]
    assert finch_rows(np.array([[0.0, 2.0]])).tolist() == [0]
    assert finch_rows(np.array([[0.0, 0.0], [0.0, 2.0]])).tolist() == [0, 1]
    assert finch(np.zeros((0, 0))).tolist() == []
    assert finch_rows(np.zeros((0, 4))).tolist() == []


def test_finch_two_vectors_are_one_cluster() -> None:
    """The first partition is kept when it has one cluster: there is no coarser one to look for."""
    assert finch_rows(np.array([[1.0, 0.0], [-1.0, 0.0]])).tolist() == [0, 0]
    assert finch_rows(np.array([[1.0, 0.0], [0.0, 1.0]])).tolist() == [0, 0]


def ring_and_poles() -> Float:
    """Return five directions around a circle, a cluster of mean 0, and two pairs at its opposite poles."""
    angles = np.radians(np.arange(5) * 72.0)
    ring = np.stack([np.cos(angles), np.sin(angles), np.zeros(5)], axis=1)
    return np.concatenate(
        [ring, np.array([[0, 0, 1], [0, 0.02, 1], [0, 0, -1], [0, 0.02, -1]], dtype=np.float64)]
    )


@pytest.mark.parametrize("literal", [False, True])
def test_finch_cluster_that_cancels_links_with_nobody(literal: bool) -> None:
    """A cluster of cosine 0 to all others would be nearer to the poles than the poles are to each other."""
    rows = ring_and_poles()
    fine, coarse = [0] * 5 + [1, 1, 2, 2], [0] * 5 + [1, 1, 1, 1]
    for found in (finch(gram_of(rows), literal=literal), finch_rows(rows, literal=literal)):
        assert found.tolist() == coarse
    cosines, directed = cosines_of_means(gram_of(rows), np.array(fine), literal=literal)
    assert directed.tolist() == [False, True, True]
    assert cosines[0].tolist() == [0.0, 0.0, 0.0]
    assert cosines[1, 2] < -0.99


@given(st.integers(0, 2**32 - 1))
def test_cosines_of_means_are_those_of_the_vectors(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = features(seed % 1000)
    labels = rng.integers(0, 3, len(rows))
    labels = np.unique(labels, return_inverse=True)[1]
    for literal in (False, True):
        points = rows if literal else rows / np.linalg.norm(rows, axis=1, keepdims=True)
        means = np.stack([points[labels == g].mean(axis=0) for g in range(labels.max() + 1)])
        units = means / np.linalg.norm(means, axis=1, keepdims=True)
        found, _ = cosines_of_means(gram_of(rows), labels, literal=literal)
        np.testing.assert_allclose(found, units @ units.T, atol=1e-9)


def test_finch_rows_blocks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.concatenate([features(seed)[:, :3] for seed in range(6)])
    whole = finch_rows(rows).tolist()
    monkeypatch.setattr(module, "_BLOCK", 7)
    assert finch_rows(rows).tolist() == whole
    assert finch(gram_of(rows)).tolist() == whole
