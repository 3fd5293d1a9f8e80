"""Batches and clusters for the losses over them, and the checks that each of those losses must pass."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from algorithms.losses import Outputs, Terms
from algorithms.prototypes import Clusters

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
