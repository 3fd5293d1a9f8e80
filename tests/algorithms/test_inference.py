"""Prediction by prototype against loops, for each kind of what a site may have received."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from algorithms.inference import by_prototype
from algorithms.losses import Outputs
from algorithms.prototypes import Clusters, Targets
from tests.algorithms import feddbp_reference as reference

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
def test_one_prototype_a_class_is_the_nearest(seed: int) -> None:
    features, _, targets = drawn(seed)
    assert by_prototype(outputs(features), targets).tolist() == by_loops(features, targets, direction=False)


@given(st.integers(0, 2**32 - 1))
def test_a_decision_branch_goes_by_direction(seed: int) -> None:
    features, decision, targets = drawn(seed)
    found = by_prototype(outputs(features, decision), targets)
    assert found.tolist() == by_loops(decision, targets, direction=True)


def test_direction_and_distance_differ() -> None:
    """Towards the long prototype, but nearer to the short one; with a decision branch the features do not count."""
    targets = Targets.of(np.array([[10.0, 0.0], [0.0, 1.0]]), np.ones(2, dtype=np.bool_))
    at, other = torch.tensor([[1.0, 0.5]]), torch.tensor([[0.0, 1.0]])
    assert by_prototype(outputs(at), targets).tolist() == [1]
    assert by_prototype(outputs(other, at), targets).tolist() == [0]


@given(st.integers(0, 2**32 - 1))
def test_several_prototypes_a_class_are_that_of_the_largest_cosine(seed: int) -> None:
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


def test_clusters_go_by_cosine_and_not_by_distance_or_weight() -> None:
    clusters = Clusters.of(np.array([[10.0, 0.0], [0.0, 1.0]]), np.array([4, 2]), np.array([0.0, 1.0]))
    assert by_prototype(outputs(torch.tensor([[1.0, 0.5]])), clusters).tolist() == [4]


def test_ties_go_to_the_lower_class_or_the_earlier_cluster_and_zeros_are_no_error() -> None:
    zeros = torch.zeros(2, 2)
    targets = Targets.of(np.array([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]]), np.array([False, True, True]))
    assert by_prototype(outputs(zeros), targets).tolist() == [1, 1]
    assert by_prototype(outputs(zeros, zeros), targets).tolist() == [1, 1]
    clusters = Clusters.of(np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([3, 0]), np.ones(2))
    assert by_prototype(outputs(zeros), clusters).tolist() == [3, 3]


def test_without_any_prototype_there_is_nothing_to_predict_by() -> None:
    nobody = Targets.of(np.zeros((CLASSES, DIM)), np.zeros(CLASSES, dtype=np.bool_))
    empty = Clusters.of(np.zeros((0, DIM)), np.zeros(0, dtype=np.int64), np.zeros(0))
    features = torch.ones(1, DIM)
    for given_outputs, guide in (
        (outputs(features), nobody),
        (outputs(features, features), nobody),
        (outputs(features), empty),
    ):
        with pytest.raises(ValueError, match="no class has a prototype"):
            by_prototype(given_outputs, guide)
