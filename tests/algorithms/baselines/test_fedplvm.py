"""FedPLVM's loss against loops, value and gradient, and batches stacked by vmap."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given

from algorithms.baselines.fedplvm import Objective
from tests.algorithms import finch_reference as reference
from tests.algorithms.cluster_cases import (
    Case,
    Reference,
    Vector,
    case,
    cases,
    check_extremes,
    check_gradient,
    check_mixed_batch,
    check_stacked,
    check_values,
    check_weights_unread,
    check_without_clusters,
)

DEFAULT = Objective()


def loop(loss: Objective, *, sparse_correction: bool = False) -> Reference:
    """Return λ·(L_contra + L_corr) of one sample; the weakened form takes s_α in the correction too."""

    def value(z: Vector, y: int, rows: list[Vector], labels: list[int], weights: list[float]) -> float:
        contra = reference.contrast(z, y, rows, labels, [1.0] * len(weights), loss.alpha, loss.temperature)
        alpha = loss.alpha if sparse_correction else 1.0
        similar = reference.sparse(z, reference.centre(y, rows, labels), alpha)
        return loss.weight * (contra + 2.0 * (1.0 - similar) ** 2)

    return value


@given(cases())
def test_values_are_those_of_the_formulas(batch: Case) -> None:
    check_values(batch, DEFAULT, loop(DEFAULT))


def test_gradients_are_those_of_the_formulas() -> None:
    loss = Objective(3.0, 0.25, 0.07)
    for seed in range(5):
        check_gradient(case(seed), loss, loop(loss))


def test_the_check_of_values_sees_sparsity_in_the_correction() -> None:
    with pytest.raises(AssertionError):
        check_values(case(0), DEFAULT, loop(DEFAULT, sparse_correction=True))


def test_sites_batches_can_be_stacked() -> None:
    check_stacked(DEFAULT)


def test_without_clusters_there_is_cross_entropy_alone() -> None:
    check_without_clusters(DEFAULT)


def test_a_class_without_clusters_contributes_nothing() -> None:
    check_mixed_batch(DEFAULT)


def test_extreme_vectors_make_no_value_or_gradient_that_is_no_number() -> None:
    check_extremes(DEFAULT)


def test_weights_of_clusters_are_not_read() -> None:
    check_weights_unread(DEFAULT)


@pytest.mark.parametrize("change", [{"weight": -1.0}, {"alpha": 0.0}, {"temperature": float("nan")}])
def test_numbers_out_of_their_range_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        dataclasses.replace(DEFAULT, **change)
