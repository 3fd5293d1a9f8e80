"""Losses over clusters of prototypes (FedPLCC, FPL, FedPLVM) against loops that read the formulas literally."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from algorithms.losses import Outputs, class_centres, largest, similarities
from algorithms.method_losses import FedplccLoss, FedplvmLoss, FplLoss
from algorithms.prototypes import Clusters
from tests.algorithms import finch_reference as reference
from tests.algorithms.cluster_cases import (
    CLASSES,
    DIM,
    Case,
    Loss,
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
    gradient,
)


def fedplcc_by_loop(loss: FedplccLoss) -> Reference:
    """Return λ1·L_contra + λ2·L_corr of one sample."""

    def value(z: Vector, y: int, rows: list[Vector], labels: list[int], weights: list[float]) -> float:
        if loss.weights_one:
            weights = [1.0] * len(weights)
        contra = reference.contrast(z, y, rows, labels, weights, loss.alpha, loss.temperature)
        corr = reference.correction(z, y, rows, labels, weights, loss.alpha, loss.share)
        return loss.contrast_weight * contra + loss.correction_weight * corr

    return value


def fpl_by_loop(loss: FplLoss, *, contrast: float = 1.0) -> Reference:
    """Return CPCL + UPCR of one sample."""

    def value(z: Vector, y: int, rows: list[Vector], labels: list[int], weights: list[float]) -> float:
        cpcl = reference.contrast(z, y, rows, labels, [1.0] * len(weights), 1.0, loss.temperature)
        unbiased = reference.centre(y, rows, labels)
        upcr = 0.0
        for a, b in zip(z, unbiased, strict=True):
            upcr += (a - b) ** 2
        return contrast * cpcl + upcr / DIM

    return value


def fedplvm_by_loop(loss: FedplvmLoss, *, sparse_correction: bool = False) -> Reference:
    """Return λ·(L_contra + L_corr) of one sample; the weakened form takes s_α in the correction too."""

    def value(z: Vector, y: int, rows: list[Vector], labels: list[int], weights: list[float]) -> float:
        contra = reference.contrast(z, y, rows, labels, [1.0] * len(weights), loss.alpha, loss.temperature)
        alpha = loss.alpha if sparse_correction else 1.0
        similar = reference.sparse(z, reference.centre(y, rows, labels), alpha)
        return loss.weight * (contra + 2.0 * (1.0 - similar) ** 2)

    return value


FEDPLCC, FPL, FEDPLVM = FedplccLoss(2.0, 20.0), FplLoss(), FedplvmLoss()
CONTRACTS: list[tuple[Loss, Reference]] = [
    *(
        (loss, fedplcc_by_loop(loss))
        for loss in (
            FEDPLCC,
            FedplccLoss(2.0, 0.0),
            FedplccLoss(0.0, 20.0),
            FedplccLoss(2.0, 20.0, share=1.0),
            FedplccLoss(2.0, 20.0, weights_one=True),
            FedplccLoss(1.0, 3.0, alpha=0.25, temperature=0.55, share=0.3),
            FedplccLoss(1.0, 3.0, alpha=1.0),
        )
    ),
    (FplLoss(0.1), fpl_by_loop(FplLoss(0.1))),
    (FEDPLVM, fedplvm_by_loop(FEDPLVM)),
]
"""Losses with their literal reading; FPL's default temperature has a test of its own, since its values are large."""
each_contract = pytest.mark.parametrize(("loss", "by_loop"), CONTRACTS)
each_method = pytest.mark.parametrize("loss", [FEDPLCC, FPL, FEDPLVM], ids=["fedplcc", "fpl", "fedplvm"])


@each_contract
@given(batch=cases())
def test_cluster_loss_values_are_those_of_the_formulas(loss: Loss, by_loop: Reference, batch: Case) -> None:
    check_values(batch, loss, by_loop)


def test_fpl_loss_default_temperature_values_are_those_of_the_formulas() -> None:
    for seed in range(20):
        check_values(case(seed), FPL, fpl_by_loop(FplLoss(0.02)))


@pytest.mark.parametrize(
    ("loss", "by_loop"), [*CONTRACTS[:-1], (FedplvmLoss(3.0), fedplvm_by_loop(FedplvmLoss(3.0)))]
)
def test_cluster_loss_gradients_are_those_of_the_formulas(loss: Loss, by_loop: Reference) -> None:
    for seed in range(5):
        check_gradient(case(seed), loss, by_loop)


@pytest.mark.parametrize(
    ("loss", "weakened"),
    [
        (FplLoss(0.1), fpl_by_loop(FplLoss(0.1), contrast=0.0)),
        (FEDPLVM, fedplvm_by_loop(FEDPLVM, sparse_correction=True)),
    ],
)
def test_check_of_values_weakened_loop_is_seen(loss: Loss, weakened: Reference) -> None:
    with pytest.raises(AssertionError):
        check_values(case(0), loss, weakened)


@pytest.mark.parametrize("loss", [FEDPLCC, FedplccLoss(2.0, 20.0, weights_one=True), FPL, FEDPLVM])
def test_cluster_loss_batches_of_sites_can_be_stacked(loss: Loss) -> None:
    check_stacked(loss)


@each_method
def test_cluster_loss_without_clusters_is_cross_entropy_alone(loss: Loss) -> None:
    check_without_clusters(loss)


@each_method
def test_cluster_loss_class_without_clusters_contributes_nothing(loss: Loss) -> None:
    check_mixed_batch(loss)


@pytest.mark.parametrize(
    "loss", [FedplccLoss(100.0, 1000.0, alpha=0.25), FedplccLoss(100.0, 1000.0, alpha=0.5), FPL, FEDPLVM]
)
def test_cluster_loss_extreme_vectors_stay_finite(loss: Loss) -> None:
    check_extremes(loss)


@pytest.mark.parametrize("loss", [FPL, FEDPLVM])
def test_unweighted_cluster_loss_reads_no_weights(loss: Loss) -> None:
    check_weights_unread(loss)


def test_class_centres_are_plain_means_of_clusters() -> None:
    batch = case(0)
    found = class_centres(batch.clusters, CLASSES)
    rows, labels = batch.clusters.rows.tolist(), batch.clusters.labels.tolist()
    assert found.present.tolist() == [k in labels for k in range(CLASSES)]
    for k in range(CLASSES):
        expected = reference.centre(k, rows, labels) if k in labels else [0.0] * DIM
        assert found.rows[k].tolist() == pytest.approx(expected)
    assert found.rows.dtype == torch.float64


def test_similarities_without_the_clamp_would_be_no_number() -> None:
    """The check of extremes would see a root that is not a number."""
    features = torch.tensor([[-1.0, 0.0]])
    rows = torch.tensor([[1.0, 0.0]])
    assert (torch.nn.functional.cosine_similarity(features, rows) ** 0.5).isnan().all()
    assert similarities(features, rows, 0.5).item() == pytest.approx(1e-3)


@given(st.integers(1, 40), st.integers(1, 100))
@example(25, 28)
def test_largest_share_is_rounded_up_as_in_exact_numbers(size: int, hundredths: int) -> None:
    """⌈0.28 · 25⌉ is 7, though 0.28 * 25 is above 7 in floating point."""
    values = torch.ones(1, size)
    taken = largest(values, torch.ones(1, size, dtype=torch.bool), hundredths / 100)
    assert taken.item() == -(-hundredths * size // 100)


def test_fedplcc_correction_takes_clusters_by_weighted_similarity() -> None:
    """Class 0 has a near cluster of little weight and a far one of much: φ = 0.5 takes one of the two.

    By s alone it would be the near one, by W alone never another than the heavy one.
    """
    near, far = torch.tensor([1.0, 0.1]), torch.tensor([0.5, 1.0])
    z = torch.tensor([[1.0, 0.0]])
    for weights, taken in ((torch.tensor([0.1, 0.9]), 1), (torch.tensor([0.45, 0.55]), 0)):
        clusters = Clusters(torch.stack([near, far]), torch.tensor([0, 0]), weights)
        similar = similarities(z, clusters.rows, 0.5)[0] * weights
        assert similar.argmax() == taken
        terms = FedplccLoss(0.0, 1.0)(Outputs(z, torch.zeros(1, 2)), torch.tensor([0]), clusters)
        assert terms.alignment.item() == pytest.approx(-similar[taken].item())


def test_fedplcc_correction_step_comes_nearer_to_the_taken_cluster_alone() -> None:
    rows = torch.tensor([[1.0, 0.2, 0.1], [0.1, 0.2, 1.0]])
    z = torch.tensor([[0.9, 1.0, 0.5]], requires_grad=True)
    clusters = Clusters(rows, torch.tensor([0, 0]), torch.tensor([0.5, 0.5]))
    terms = FedplccLoss(0.0, 1.0)(Outputs(z, torch.zeros(1, 2)), torch.tensor([0]), clusters)
    torch.autograd.backward(terms.total)
    assert z.grad is not None
    moved = similarities(z.detach() - 0.1 * z.grad, rows, 1.0)[0]
    before = similarities(z.detach(), rows, 1.0)[0]
    assert moved[0] > before[0]
    assert moved[1] < before[1]
    both = FedplccLoss(0.0, 1.0, share=1.0)(Outputs(z, torch.zeros(1, 2)), torch.tensor([0]), clusters)
    assert both.alignment < terms.alignment


def test_fedplcc_contrast_heavier_cluster_of_another_class_pushes_more() -> None:
    rows = torch.tensor([[1.0, 0.0, 0.1], [0.1, 1.0, 0.0], [0.0, 0.1, 1.0]])
    z = torch.tensor([[1.0, 0.9, 0.9]])
    grads = []
    for heavy in (0.9, 0.1):
        clusters = Clusters(rows, torch.tensor([0, 1, 1]), torch.tensor([1.0, heavy, 1.0 - heavy]))
        grads.append(gradient(Case(z, torch.zeros(1, 2), torch.tensor([0]), clusters), FedplccLoss(1.0, 0.0)))
    away = [similarities(z - 0.01 * grad, rows, 1.0)[0] for grad in grads]
    assert away[0][1] < away[1][1]
    assert away[0][2] > away[1][2]


def test_fedplcc_alignment_adds_up_with_its_weights() -> None:
    batch = case(3)
    contra, corr = batch.terms(FedplccLoss(1.0, 0.0)), batch.terms(FedplccLoss(0.0, 1.0))
    both = batch.terms(FedplccLoss(3.0, 7.0))
    assert both.alignment.item() == pytest.approx(3.0 * contra.alignment.item() + 7.0 * corr.alignment.item())
    assert contra.alignment.item() > 0.0 > corr.alignment.item()
    one = dataclasses.replace(FEDPLCC, weights_one=True)
    assert batch.terms(one).alignment.item() != pytest.approx(batch.terms(FEDPLCC).alignment.item(), rel=1e-2)


@pytest.mark.parametrize(
    ("loss", "field", "value"),
    [
        (FEDPLCC, "contrast_weight", -1.0),
        (FEDPLCC, "correction_weight", float("nan")),
        (FEDPLCC, "alpha", 0.0),
        (FEDPLCC, "alpha", 1.5),
        (FEDPLCC, "temperature", 0.0),
        (FEDPLCC, "share", 0.0),
        (FEDPLCC, "share", 1.1),
        (FEDPLVM, "weight", -1.0),
        (FEDPLVM, "alpha", 0.0),
        (FEDPLVM, "temperature", float("nan")),
        (FPL, "temperature", 0.0),
        (FPL, "temperature", -1.0),
        (FPL, "temperature", float("inf")),
    ],
)
def test_cluster_loss_number_out_of_its_range_is_refused(loss: Any, field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        dataclasses.replace(loss, **{field: value})
