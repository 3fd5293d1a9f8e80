"""Losses over one prototype of each class (PFPL, FedPC, FedProto) and cross entropy alone, against loops.

FedDBP's loss is in ``test_feddbp_loss.py``, those over clusters of prototypes in ``test_cluster_losses.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vmap

from algorithms.losses import Outputs, distance_of_means, mean_square
from algorithms.method_losses import CrossEntropyLoss, FedpcLoss, FedprotoLoss, PfplLoss
from algorithms.prototypes import Clusters, Guide, Targets
from tests.algorithms import fedpc_reference as reference
from tests.algorithms.target_cases import CLASSES, DIM, MIX, Case, cases, gradient

Align = Callable[[Tensor, Tensor, Targets], Tensor]


@dataclass(frozen=True)
class LossRow:
    """A loss with weights of its own, and the reference of its alignment.

    ``field`` is the weight's name, and ``entropy_weight`` the weight of cross entropy where a class has a target.
    """

    loss: Any
    field: str
    entropy_weight: float
    alignment_weight: float
    by_loops: Callable[..., float]
    known: float


MEAN_SQUARE, PRINTED = 29 / 6, 4.0
"""Alignment of the samples in :func:`test_loss_known_samples_give_the_value_by_hand`, by default and as printed."""
LOSSES = {
    "fedproto": LossRow(
        FedprotoLoss(3.0), "alignment_weight", 1.0, 3.0, reference.mean_square_loss, MEAN_SQUARE
    ),
    "pfpl": LossRow(PfplLoss(3.0), "alignment_weight", 1.0, 3.0, reference.mean_square_loss, MEAN_SQUARE),
    "pfpl unweighted": LossRow(
        PfplLoss(0.0), "alignment_weight", 1.0, 0.0, reference.mean_square_loss, MEAN_SQUARE
    ),
    "pfpl printed": LossRow(
        PfplLoss(3.0, literal=True), "alignment_weight", 1.0, 3.0, reference.prototype_loss, PRINTED
    ),
    "fedpc": LossRow(FedpcLoss(0.4), "alignment", 0.6, 0.4, reference.mean_square_loss, MEAN_SQUARE),
    "fedpc printed": LossRow(
        FedpcLoss(0.4, literal=True), "alignment", 0.6, 0.4, reference.prototype_loss, PRINTED
    ),
}
by_loss = pytest.mark.parametrize("name", LOSSES)
ALIGNMENTS = {mean_square: reference.mean_square_loss, distance_of_means: reference.prototype_loss}
by_alignment = pytest.mark.parametrize("align", ALIGNMENTS)
EVERY_CLASS = np.ones(CLASSES, dtype=np.bool_)
NOBODY = Targets.of(np.full((CLASSES, DIM), np.nan), ~EVERY_CLASS)


def lists(case: Case) -> tuple[Any, ...]:
    features, labels, targets = case
    return features.tolist(), labels.tolist(), targets.rows.tolist(), targets.present.tolist()


@by_loss
@given(case=cases())
def test_loss_is_the_weighted_sum_of_its_equation(name: str, case: Case) -> None:
    row = LOSSES[name]
    features, labels, targets = case
    terms = row.loss(Outputs(features, features @ MIX), labels, targets)
    entropy = reference.cross_entropy((features @ MIX).tolist(), labels.tolist())
    aligned = row.by_loops(*lists(case))
    entropy_weight = row.entropy_weight if targets.present.any() else 1.0
    assert terms.classification.item() == pytest.approx(entropy, rel=1e-12)
    assert terms.alignment.item() == pytest.approx(aligned, rel=1e-12)
    expected = entropy_weight * entropy + row.alignment_weight * aligned
    assert terms.total.item() == pytest.approx(expected, rel=1e-12)


@by_loss
def test_loss_known_samples_give_the_value_by_hand(name: str) -> None:
    """Class 0 has (3, 4) and (1, 0), mean (2, 2), and the target (2, −1): distance 3, squares 26 and 2.

    Class 2 has (1, 1) and the target (0, 1): distance 1. Class 1 has no target.
    """
    row = LOSSES[name]
    features = torch.tensor([[3.0, 4.0], [1.0, 0.0], [7.0, 7.0], [1.0, 1.0]])
    labels = torch.tensor([0, 0, 1, 2])
    targets = Targets.of(np.array([[2.0, -1.0], [0.0, 0.0], [0.0, 1.0]]), np.array([True, False, True]))
    terms = row.loss(Outputs(features, torch.zeros(4, 3)), labels, targets)
    assert terms.alignment.item() == pytest.approx(row.known)
    expected = row.entropy_weight * np.log(3) + row.alignment_weight * row.known
    assert terms.total.item() == pytest.approx(expected)


@by_loss
@pytest.mark.parametrize("targets", [None, NOBODY])
def test_loss_without_targets_is_cross_entropy_alone(name: str, targets: Targets | None) -> None:
    loss = LOSSES[name].loss
    features, labels = torch.ones(2, DIM, dtype=torch.float64), torch.tensor([0, 1])
    terms = loss(Outputs(features, features @ MIX), labels, targets)
    assert terms.alignment.item() == 0.0
    assert terms.total.item() == terms.classification.item()
    moved = gradient(lambda z: loss(Outputs(z, z @ MIX), labels, targets).total, features)
    alone = gradient(lambda z: torch.nn.functional.cross_entropy(z @ MIX, labels), features)
    torch.testing.assert_close(moved, alone, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["fedproto", "pfpl", "fedpc"])
def test_loss_batches_can_be_stacked(name: str) -> None:
    loss = LOSSES[name].loss
    rng = np.random.default_rng(0)
    features, rows = (torch.tensor(rng.normal(size=(2, count, DIM))) for count in (5, CLASSES))
    labels = torch.tensor(rng.integers(0, CLASSES, size=(2, 5)))
    present = torch.tensor([[True, False, True, True], [False, True, True, False]])

    def total(z: Tensor, y: Tensor, p: Tensor, has: Tensor) -> Tensor:
        terms: Tensor = loss(Outputs(z, z @ MIX), y, Targets(p, has)).total
        return terms

    for function in (total, grad(total)):
        alone = [function(*site) for site in zip(features, labels, rows, present, strict=True)]
        torch.testing.assert_close(vmap(function)(features, labels, rows, present), torch.stack(alone))


@by_loss
@pytest.mark.parametrize("weight", [-0.1, float("nan"), float("inf")])
def test_loss_weight_out_of_range_is_refused(name: str, weight: float) -> None:
    row = LOSSES[name]
    with pytest.raises(ValueError, match=row.field):
        replace(row.loss, **{row.field: weight})


@pytest.mark.parametrize("weight", [1.0, 2.0])
def test_fedpc_loss_without_cross_entropy_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="alignment"):
        FedpcLoss(weight)


def test_fedpc_loss_defaults_weigh_both_terms_the_same() -> None:
    assert FedpcLoss() == FedpcLoss(alignment=0.5, literal=False)


def test_fedpc_loss_batch_of_withheld_classes_keeps_the_weight_of_cross_entropy() -> None:
    targets = Targets.of(np.zeros((CLASSES, DIM)), np.array([True, False, False, False]))
    features = torch.ones(2, DIM, dtype=torch.float64)
    terms = FedpcLoss(0.3)(Outputs(features, features @ MIX), torch.tensor([1, 3]), targets)
    assert terms.alignment.item() == 0.0
    assert terms.total.item() == pytest.approx(0.7 * terms.classification.item(), rel=1e-12)


def test_fedpc_loss_of_weight_zero_is_cross_entropy_alone() -> None:
    features = torch.ones(2, DIM, dtype=torch.float64)
    targets = Targets.of(np.zeros((CLASSES, DIM)), EVERY_CLASS)
    terms = FedpcLoss(0.0)(Outputs(features, features @ MIX), torch.tensor([1, 3]), targets)
    assert terms.total.item() == terms.classification.item()
    assert terms.alignment.item() > 0.0


@by_alignment
@given(case=cases(torch.float32))
def test_alignment_in_float32_is_the_formula(align: Align, case: Case) -> None:
    expected = ALIGNMENTS[align](*lists(case))  # type: ignore[index]  # the two keys are such functions
    assert align(*case).item() == pytest.approx(expected, rel=1e-4, abs=1e-6)


@by_alignment
@given(case=cases())
def test_alignment_gradient_is_finite_differences(align: Align, case: Case) -> None:
    features, labels, targets = case
    found = gradient(lambda z: align(z, labels, targets), features)
    step = 1e-6
    for b, j in np.ndindex(*features.shape):
        move = torch.zeros_like(features)
        move[b, j] = step
        above, below = (align(z, labels, targets).item() for z in (features + move, features - move))
        assert found[b, j].item() == pytest.approx((above - below) / (2 * step), rel=1e-4, abs=1e-6)


def loops_in_torch(features: Tensor, labels: Tensor, targets: Targets) -> Tensor:
    """Compute equation 3 for autograd: one class, one norm at a time."""
    total = features.new_zeros(())
    for k in sorted(set(labels.tolist())):
        if targets.present[k]:
            total = total + (features[labels == k].mean(dim=0) - targets.rows[k]).norm()
    return total


@given(cases())
def test_distance_of_means_gradient_is_autograds_on_the_loops(case: Case) -> None:
    features, labels, targets = case
    found = gradient(lambda z: distance_of_means(z, labels, targets), features)
    if not any(bool(targets.present[k]) for k in labels.tolist()):
        assert not found.any()
        return
    expected = gradient(lambda z: loops_in_torch(z, labels, targets), features)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def detached(features: Tensor, labels: Tensor, targets: Targets) -> Tensor:
    return distance_of_means(features.detach(), labels, targets) + 0.0 * features.sum()


def test_distance_of_means_class_means_get_the_gradient() -> None:
    """A double that takes the means as constants has none."""
    features, labels = torch.ones(2, DIM, dtype=torch.float64), torch.tensor([0, 1])
    targets = Targets.of(np.zeros((CLASSES, DIM)), EVERY_CLASS)
    assert gradient(lambda z: distance_of_means(z, labels, targets), features).all()
    assert not gradient(lambda z: detached(z, labels, targets), features).any()


def plain_root(features: Tensor, labels: Tensor, targets: Targets) -> Tensor:
    """Return the norm without its guard."""
    total = features.new_zeros(())
    for k in set(labels.tolist()):
        total = total + (features[labels == k].mean(dim=0) - targets.rows[k]).square().sum().sqrt()
    return total


def gradient_at_the_target(align: Align, dtype: torch.dtype) -> Tensor:
    """Return the gradient where class 0 is exactly at its target and class 1 is not."""
    rows = np.array([[1.0, 2.0, 3.0]] * CLASSES)
    features = torch.tensor(np.array([rows[0], rows[0], rows[0] + 1.0]), dtype=dtype)
    return gradient(lambda z: align(z, torch.tensor([0, 0, 1]), Targets.of(rows, EVERY_CLASS)), features)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_alignment_gradient_at_the_target_is_zero_and_not_nan(dtype: torch.dtype) -> None:
    found = gradient_at_the_target(distance_of_means, dtype)
    assert not found[:2].any()
    torch.testing.assert_close(found[2], torch.full((DIM,), 3**-0.5, dtype=dtype))
    assert not gradient_at_the_target(mean_square, dtype)[:2].any()
    assert gradient_at_the_target(plain_root, dtype).isnan().any()


@pytest.mark.parametrize("name", ["fedpc", "fedpc printed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(
    scale=st.floats(1e-60, 1e15),
    offset=st.sampled_from([0.0, 1.0]),
    labels=st.lists(st.integers(0, 3), min_size=1),
)
def test_loss_gradient_is_never_nan(
    dtype: torch.dtype, name: str, scale: float, offset: float, labels: list[int]
) -> None:
    """Distances range from ones whose squares underflow up to large ones, and absent rows are not numbers."""
    rows = np.array([[offset] * DIM, [np.nan] * DIM, [scale] * DIM, [0.0] * DIM])
    targets = Targets.of(rows, np.isfinite(rows).all(axis=1))
    features = torch.full((len(labels), DIM), offset, dtype=dtype)
    features += scale * torch.arange(len(labels)).to(dtype).unsqueeze(1)
    leaf = features.requires_grad_()
    terms = LOSSES[name].loss(Outputs(leaf, leaf @ MIX.to(dtype)), torch.tensor(labels), targets)
    torch.autograd.backward(terms.total)
    assert leaf.grad is not None
    assert leaf.grad.isfinite().all()
    assert torch.stack(terms).isfinite().all()


@by_alignment
def test_alignment_step_against_the_gradient_comes_nearer_to_the_target(align: Align) -> None:
    features = torch.tensor([[1.0, -1.0, 2.0], [0.0, 0.5, 1.0]])
    targets = Targets.of(np.full((CLASSES, DIM), 0.25), EVERY_CLASS)
    labels = torch.tensor([2, 2])
    step = gradient(lambda z: align(z, labels, targets), features)
    assert align(features - 0.1 * step, labels, targets) < align(features, labels, targets)


LOGITS = 3.0 * torch.arange(20, dtype=torch.float64).reshape(4, 5).cos()
LABELS = torch.tensor([0, 4, 1, 1])
GUIDES = (
    None,
    Targets.of(np.ones((5, 3)), np.ones(5, dtype=np.bool_)),
    Clusters.of(np.ones((2, 3)), np.array([0, 1]), np.ones(2)),
)


@pytest.mark.parametrize("guide", GUIDES)
def test_cross_entropy_loss_ignores_whatever_is_received(guide: Guide | None) -> None:
    terms = CrossEntropyLoss()(Outputs(torch.ones(4, 3), LOGITS), LABELS, guide)
    expected = reference.cross_entropy(LOGITS.tolist(), LABELS.tolist())
    assert terms.total.item() == terms.classification.item() == pytest.approx(expected, rel=1e-12)
    assert terms.alignment.item() == 0.0


def test_cross_entropy_loss_batches_can_be_stacked() -> None:
    logits, labels = torch.stack([LOGITS, -LOGITS]), torch.stack([LABELS, LABELS.flip(0)])

    def total(x: Tensor, y: Tensor) -> Tensor:
        return CrossEntropyLoss()(Outputs(torch.ones(4, 3), x), y, None).total

    alone = [total(x, y) for x, y in zip(logits, labels, strict=True)]
    torch.testing.assert_close(vmap(total)(logits, labels), torch.stack(alone))
