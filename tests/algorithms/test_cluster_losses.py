"""Batches and clusters for the losses over them, and the checks that each of those losses must pass.

Losses over clusters of prototypes (FedPLCC, FPL, FedPLVM) against loops that read the formulas literally.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from algorithms.losses import Outputs, Terms, class_centres, similarities, sum_largest
from algorithms.method_losses import FedplccLoss, FedplvmLoss, FplLoss
from algorithms.prototypes import Clusters
from tests.algorithms import finch_reference as reference

CLASSES, DIM = 4, 5

Loss = Callable[[Outputs, Tensor, Clusters | None], Terms]
Vector = list[float]
Reference = Callable[[Vector, int, list[Vector], list[int], list[float]], float]
"""One sample's alignment from (z, y, rows, labels, weights), for a class with clusters."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A batch in float64 and clusters for some of the classes."""

    features: Tensor
    logits: Tensor
    labels: Tensor
    clusters: Clusters

    def terms(self, loss: Loss, features: Tensor | None = None) -> Terms:
        outputs = Outputs(self.features if features is None else features, self.logits)
        return loss(outputs, self.labels, self.clusters)


def case(seed: int, *, size: int = 7, number: int = 9, signs: bool = False, missing: int = 1) -> Case:
    """Draw features and clusters as after a ReLU, or with signs; the last ``missing`` classes have no cluster."""
    rng = np.random.default_rng(seed)

    def vectors(rows: int) -> Tensor:
        drawn = rng.normal(0.0 if signs else 0.3, 1.0, size=(rows, DIM))
        return torch.tensor(drawn if signs else np.maximum(drawn, 0.0) + 0.01)

    labels = rng.integers(0, CLASSES - missing, size=number)
    weights = rng.uniform(0.2, 1.0, size=number)
    weights /= np.bincount(labels, weights=weights, minlength=CLASSES)[labels]
    return Case(
        vectors(size),
        torch.tensor(rng.normal(size=(size, CLASSES))),
        torch.tensor(rng.integers(0, CLASSES, size=size)),
        Clusters(
            vectors(number),
            torch.tensor(labels),
            torch.tensor(weights),
        ),
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    return case(
        draw(st.integers(0, 2**32 - 1)),
        size=draw(st.integers(1, 8)),
        number=draw(st.integers(1, 12)),
        signs=draw(st.booleans()),
        missing=draw(st.integers(0, 3)),
    )


def alignment_by_loop(batch: Case, features: list[Vector], reference: Reference) -> float:
    """Return the mean over the samples whose class has a cluster."""
    rows, labels = batch.clusters.rows.tolist(), batch.clusters.labels.tolist()
    weights = batch.clusters.weights.tolist()
    total, used = 0.0, 0
    for z, y in zip(features, batch.labels.tolist(), strict=True):
        if y in labels:
            total += reference(z, y, rows, labels, weights)
            used += 1
    return total / used if used else 0.0


def entropy_by_loop(batch: Case) -> float:
    total = 0.0
    for row, y in zip(batch.logits.tolist(), batch.labels.tolist(), strict=True):
        total += math.log(sum(math.exp(value) for value in row)) - row[y]
    return total / len(batch.labels)


def check_values(batch: Case, loss: Loss, reference: Reference) -> None:
    terms = batch.terms(loss)
    aligned = alignment_by_loop(batch, batch.features.tolist(), reference)
    assert terms.classification.item() == pytest.approx(entropy_by_loop(batch), rel=1e-9)
    assert terms.alignment.item() == pytest.approx(aligned, rel=1e-9, abs=1e-9)
    assert terms.total.item() == pytest.approx(entropy_by_loop(batch) + aligned, rel=1e-9, abs=1e-9)


def gradient(batch: Case, loss: Loss) -> Tensor:
    features = batch.features.clone().requires_grad_()
    torch.autograd.backward(batch.terms(loss, features).total)
    assert features.grad is not None
    return features.grad


def check_gradient(batch: Case, loss: Loss, reference: Reference, step: float = 1e-6) -> None:
    """Check the gradient against central differences of the loop."""
    found = gradient(batch, loss)
    for i in range(len(batch.labels)):
        for j in range(DIM):
            sides = []
            for sign in (1.0, -1.0):
                moved = batch.features.tolist()
                moved[i][j] += sign * step
                sides.append(alignment_by_loop(batch, moved, reference))
            expected = (sides[0] - sides[1]) / (2 * step)
            assert found[i, j].item() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def check_stacked(loss: Loss) -> None:
    """Check that ``torch.vmap`` over sites' batches, with common and with own clusters, equals the loop over them."""
    batches = [case(seed) for seed in range(5)]
    features, logits, labels, rows, owners, weights = (
        torch.stack(each)
        for each in zip(
            *(
                (b.features, b.logits, b.labels, b.clusters.rows, b.clusters.labels, b.clusters.weights)
                for b in batches
            ),
            strict=True,
        )
    )

    def one(z: Tensor, g: Tensor, y: Tensor, r: Tensor, o: Tensor, w: Tensor) -> tuple[Tensor, Terms]:
        terms = loss(Outputs(z, g), y, Clusters(r, o, w))
        return terms.total, terms

    graded = torch.func.grad(one, has_aux=True)
    for common in (False, True):
        guides = (rows[0], owners[0], weights[0]) if common else (rows, owners, weights)
        axes = (0, 0, 0, None, None, None) if common else 0
        grads, terms = torch.vmap(graded, in_dims=axes)(features, logits, labels, *guides)
        for i, batch in enumerate(batches):
            alone = dataclasses.replace(batch, clusters=batches[0].clusters if common else batch.clusters)
            expected = alone.terms(loss)
            for found, value in zip(terms, expected, strict=True):
                assert found[i].item() == pytest.approx(value.item(), rel=1e-12, abs=1e-12)
            torch.testing.assert_close(grads[i], gradient(alone, loss))


def check_without_clusters(loss: Loss) -> None:
    """Check for cross entropy alone and a gradient of 0 without a guide, without clusters, or without any for the
    batch's classes.
    """
    batch = case(1)
    outputs = Outputs(batch.features, batch.logits)
    first = loss(outputs, batch.labels, None)
    empty = Clusters(torch.zeros(0, DIM), torch.zeros(0, dtype=torch.int64), torch.zeros(0))
    for terms in (first, dataclasses.replace(batch, clusters=_double(empty)).terms(loss)):
        assert terms.alignment.item() == 0.0
        assert terms.total.item() == terms.classification.item() == pytest.approx(entropy_by_loop(batch))
    others = dataclasses.replace(batch, labels=torch.full_like(batch.labels, CLASSES - 1))
    for each in (others, dataclasses.replace(batch, clusters=_double(empty))):
        assert each.terms(loss).alignment.item() == 0.0
        assert not gradient(each, loss).any()


def check_mixed_batch(loss: Loss) -> None:
    """Check that samples of a class without clusters change neither the value nor the gradient of the others."""
    batch = case(2, size=8)
    kept = batch.labels != CLASSES - 1
    assert 0 < kept.sum() < len(kept)
    rest = Case(batch.features[kept], batch.logits[kept], batch.labels[kept], batch.clusters)
    assert batch.terms(loss).alignment.item() == pytest.approx(rest.terms(loss).alignment.item(), rel=1e-12)
    torch.testing.assert_close(gradient(batch, loss)[kept], gradient(rest, loss))
    assert not gradient(batch, loss)[~kept].any()


def check_weights_unread(loss: Loss) -> None:
    """Check that other weights of the clusters, the same ones in another order, change nothing."""
    batch = case(0)
    other = Clusters(batch.clusters.rows, batch.clusters.labels, batch.clusters.weights.flip(0))
    assert (batch.clusters.weights != other.weights).any()
    found = dataclasses.replace(batch, clusters=other).terms(loss)
    assert found.total.item() == batch.terms(loss).total.item()


def check_extremes(loss: Loss) -> None:
    """Check for finite values and gradients in float32, with clusters that are zero, opposite or equal, or weights of
    0.
    """
    rows = torch.tensor([[1.0, 0, 0, 0, 0], [-1.0, 0, 0, 0, 0], [0.0, 0, 0, 0, 0], [0, 1e-15, 0, 0, 0]])
    features = torch.tensor(
        [[1.0, 0, 0, 0, 0], [0.0] * 5, [-30.0, 0, 0, 0, 0], [0, 0, 1.0, 0, 0], [1e-15] * 5]
    )
    for weights in (torch.tensor([0.5, 0.5, 1.0, 1.0]), torch.tensor([1.0, 0.0, 1.0, 1.0])):
        for owner in range(2):
            clusters = Clusters(rows, torch.tensor([0, 0, 1, 2]), weights)
            batch = Case(features, torch.zeros(5, CLASSES), torch.full((5,), owner), clusters)
            assert all(term.isfinite() for term in batch.terms(loss))
            assert gradient(batch, loss).isfinite().all()


def _double(clusters: Clusters) -> Clusters:
    return Clusters(clusters.rows.double(), clusters.labels, clusters.weights.double())


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
    taken = sum_largest(values, torch.ones(1, size, dtype=torch.bool), hundredths / 100)
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
