"""Class means, the norm bound, the nearest prototype, and prediction by prototype, against loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from torch import Tensor

from algorithms.gram_matrix import Float
from algorithms.inference import by_prototype, nearest_prototype
from algorithms.losses import Outputs
from algorithms.prototypes import Clusters, Targets, class_means, project_to_norm
from tests.algorithms import feddbp_reference as reference

ROWS = npst.arrays(np.float64, (4, 3), elements=st.floats(-1e3, 1e3))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.integers(1, 7))
def test_class_means_do_not_depend_on_batches(labels: list[int], size: int) -> None:
    features = torch.randn(len(labels), 5, generator=torch.Generator().manual_seed(len(labels)))
    target = torch.tensor(labels)
    means, counts = class_means(
        zip(torch.split(features, size), torch.split(target, size), strict=True), 4, 5
    )
    assert means.dtype == torch.float64
    for k in range(4):
        members = [features[b].double() for b, label in enumerate(labels) if label == k]
        assert counts[k] == len(members)
        expected = sum(members) / len(members) if members else torch.zeros(5, dtype=torch.float64)
        torch.testing.assert_close(means[k], expected)


def test_class_means_are_summed_in_float64() -> None:
    """A known failure of float32: 2^24 + 1 + 1 loses both ones."""
    features = torch.tensor([[2.0**24], [1.0], [1.0]])
    means, _ = class_means([(features, torch.zeros(3, dtype=torch.int64))], 1, 1)
    assert means.item() == (2.0**24 + 2) / 3


@given(ROWS, st.floats(0.1, 100))
def test_project_to_norm_keeps_direction_and_short_rows(rows: Float, bound: float) -> None:
    projected, shortened = project_to_norm(rows, bound)
    norms = np.linalg.norm(rows, axis=1)
    assert shortened == sum(norm > bound for norm in norms)
    for row, result, norm in zip(rows, projected, norms, strict=True):
        if norm <= bound:
            np.testing.assert_array_equal(result, row)
        else:
            np.testing.assert_allclose(result, row * bound / norm)
            assert np.linalg.norm(result) <= bound * (1 + 1e-12)


@pytest.mark.parametrize("dim", [1, 4, 512])
def test_project_to_norm_rounding_stays_within_the_bound(dim: int) -> None:
    """Fixed point has room for the bound and not for a digit more."""
    scaled_alone = 0
    for seed in range(500):
        rng = np.random.default_rng(seed)
        bound = rng.uniform(0.1, 100.0)
        rows = rng.random((4, dim)) * bound * 10.0
        rows[0] = 0.0
        rows[0, 0] = rng.uniform(bound, 1000.0 * bound)
        projected, _ = project_to_norm(rows, bound)
        assert np.abs(projected).max() <= bound
        assert np.linalg.norm(projected, axis=1).max() <= bound
        np.testing.assert_allclose(projected[0, 0], bound, rtol=1e-15)
        scaled_alone += rows[0, 0] * (bound / rows[0, 0]) > bound
    assert scaled_alone > 0, "no draw that scaling alone carries beyond it"


@given(st.integers(0, 2**32 - 1))
def test_nearest_prototype_among_those_present(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, present = rng.normal(size=(6, 3)), rng.random(6) < 0.6
    present[rng.integers(6)] = True
    features = torch.tensor(rng.normal(size=(9, 3)), dtype=torch.float32)
    chosen = nearest_prototype(features, Targets.of(rows, present))
    for z, label in zip(features.numpy(), chosen.tolist(), strict=True):
        distances = [np.linalg.norm(z - rows[k]) if present[k] else np.inf for k in range(6)]
        assert distances[label] == pytest.approx(min(distances), abs=1e-5)


def test_targets_and_clusters_are_float32_whatever_the_default_type() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        targets = Targets.of(np.ones((2, 3)), np.ones(2, dtype=np.bool_))
        clusters = Clusters.of(np.ones((2, 3)), np.arange(2), np.ones(2))
    finally:
        torch.set_default_dtype(torch.float32)
    assert {rows.dtype for rows in (targets.rows, clusters.rows, clusters.weights)} == {torch.float32}


def test_nearest_prototype_absent_row_is_never_read() -> None:
    targets = Targets.of(np.array([[np.nan, 0.0], [9.0, 9.0]]), np.array([False, True]))
    assert nearest_prototype(torch.zeros(2, 2), targets).tolist() == [1, 1]


CLASSES, DIM = 5, 3


def outputs(features: Tensor, decision: Tensor | None = None) -> Outputs:
    """Return outputs whose logits always say class 0, since inference by prototypes must not read them."""
    logits = torch.eye(CLASSES)[torch.zeros(len(features), dtype=torch.int64)]
    return Outputs(features, logits, decision, None if decision is None else logits)


def drawn(seed: int) -> tuple[Tensor, Tensor, Targets]:
    """Draw float32 features and decision features, and targets for some of the classes, one at least."""
    rng = np.random.default_rng(seed)
    present = rng.random(CLASSES) < 0.6
    present[rng.integers(CLASSES)] = True
    rows = np.where(
        present[:, None], rng.normal(size=(CLASSES, DIM)) * rng.uniform(0.2, 5.0, (CLASSES, 1)), np.nan
    )
    features, decision = (torch.tensor(rng.normal(size=(9, DIM)), dtype=torch.float32) for _ in range(2))
    return features, decision, Targets.of(rows, present)


def by_loops(vectors: Tensor, targets: Targets, *, direction: bool) -> list[int]:
    rows, present = targets.rows.tolist(), targets.present.tolist()
    return [reference.nearest(z, rows, present, direction=direction) for z in vectors.tolist()]


@given(st.integers(0, 2**32 - 1))
def test_by_prototype_one_a_class_is_the_nearest(seed: int) -> None:
    features, _, targets = drawn(seed)
    assert by_prototype(outputs(features), targets).tolist() == by_loops(features, targets, direction=False)


@given(st.integers(0, 2**32 - 1))
def test_by_prototype_decision_branch_goes_by_direction(seed: int) -> None:
    features, decision, targets = drawn(seed)
    found = by_prototype(outputs(features, decision), targets)
    assert found.tolist() == by_loops(decision, targets, direction=True)


def test_by_prototype_direction_and_distance_differ() -> None:
    """Towards the long prototype, but nearer to the short one; with a decision branch the features do not count."""
    targets = Targets.of(np.array([[10.0, 0.0], [0.0, 1.0]]), np.ones(2, dtype=np.bool_))
    at, other = torch.tensor([[1.0, 0.5]]), torch.tensor([[0.0, 1.0]])
    assert by_prototype(outputs(at), targets).tolist() == [1]
    assert by_prototype(outputs(other, at), targets).tolist() == [0]


@given(st.integers(0, 2**32 - 1))
def test_by_prototype_clusters_give_the_largest_cosine(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, labels = rng.normal(size=(7, DIM)), rng.integers(0, CLASSES, size=7)
    clusters = Clusters.of(rows, labels, np.ones(7))
    features = torch.tensor(rng.normal(size=(9, DIM)), dtype=torch.float32)
    expected = []
    for z in features.tolist():
        cosines = [
            sum(a * b for a, b in zip(reference.normalised(z), reference.normalised(row), strict=True))
            for row in clusters.rows.tolist()
        ]
        expected.append(int(labels[cosines.index(max(cosines))]))
    found = by_prototype(outputs(features, -features), clusters)
    assert found.dtype == torch.int64
    assert found.tolist() == expected


def test_by_prototype_clusters_ignore_distance_and_weight() -> None:
    clusters = Clusters.of(np.array([[10.0, 0.0], [0.0, 1.0]]), np.array([4, 2]), np.array([0.0, 1.0]))
    assert by_prototype(outputs(torch.tensor([[1.0, 0.5]])), clusters).tolist() == [4]


def test_by_prototype_ties_give_the_lower_class_or_earlier_cluster() -> None:
    zeros = torch.zeros(2, 2)
    targets = Targets.of(np.array([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]]), np.array([False, True, True]))
    assert by_prototype(outputs(zeros), targets).tolist() == [1, 1]
    assert by_prototype(outputs(zeros, zeros), targets).tolist() == [1, 1]
    clusters = Clusters.of(np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([3, 0]), np.ones(2))
    assert by_prototype(outputs(zeros), clusters).tolist() == [3, 3]
