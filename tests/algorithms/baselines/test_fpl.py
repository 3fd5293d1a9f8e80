"""FPL's loss against loops, value and gradient, and batches stacked by vmap."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from algorithms.baselines.fpl import Objective
from algorithms.contrastive_loss import class_centres
from tests.algorithms import finch_reference as reference
from tests.algorithms.cluster_cases import (
    CLASSES,
    DIM,
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


def loop(temperature: float, *, contrast: float = 1.0) -> Reference:
    """Return CPCL + UPCR of one sample."""

    def value(z: Vector, y: int, rows: list[Vector], labels: list[int], weights: list[float]) -> float:
        cpcl = reference.contrast(z, y, rows, labels, [1.0] * len(weights), 1.0, temperature)
        unbiased = reference.centre(y, rows, labels)
        upcr = 0.0
        for a, b in zip(z, unbiased, strict=True):
            upcr += (a - b) ** 2
        return contrast * cpcl + upcr / DIM

    return value


@given(cases())
def test_values_are_those_of_the_formulas(batch: Case) -> None:
    check_values(batch, Objective(0.1), loop(0.1))


def test_values_at_the_default_temperature() -> None:
    for seed in range(20):
        check_values(case(seed), Objective(), loop(0.02))


def test_gradients_are_those_of_the_formulas() -> None:
    for seed in range(5):
        check_gradient(case(seed), Objective(0.1), loop(0.1))


def test_the_check_of_values_sees_a_term_left_out() -> None:
    with pytest.raises(AssertionError):
        check_values(case(0), Objective(0.1), loop(0.1, contrast=0.0))


def test_sites_batches_can_be_stacked() -> None:
    check_stacked(Objective())


def test_without_clusters_there_is_cross_entropy_alone() -> None:
    check_without_clusters(Objective())


def test_a_class_without_clusters_contributes_nothing() -> None:
    check_mixed_batch(Objective())


def test_extreme_vectors_make_no_value_or_gradient_that_is_no_number() -> None:
    check_extremes(Objective())


def test_weights_of_clusters_are_not_read() -> None:
    check_weights_unread(Objective())


def test_the_unbiased_prototype_is_the_plain_mean_of_clusters() -> None:
    batch = case(0)
    found = class_centres(batch.clusters, CLASSES)
    rows, labels = batch.clusters.rows.tolist(), batch.clusters.labels.tolist()
    assert found.present.tolist() == [k in labels for k in range(CLASSES)]
    for k in range(CLASSES):
        expected = reference.centre(k, rows, labels) if k in labels else [0.0] * DIM
        assert found.rows[k].tolist() == pytest.approx(expected)
    assert found.rows.dtype == torch.float64


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_a_temperature_that_is_none_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature"):
        Objective(temperature)
