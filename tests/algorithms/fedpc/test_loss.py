"""FedPC's loss against loops and finite differences: the formula, missing targets, and gradients that stay numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from algorithms.losses import Outputs, distance_of_means
from algorithms.method_losses import FedpcLoss
from algorithms.prototypes import Targets
from tests.algorithms import fedpc_reference as reference
from tests.algorithms.target_cases import CLASSES, DIM, MIX, Case, cases, gradient

Align = Callable[[Tensor, Tensor, Targets], Tensor]


def aligned_by_loops(features: Tensor, labels: Tensor, targets: Targets) -> float:
    return reference.prototype_loss(
        features.tolist(), labels.tolist(), targets.rows.tolist(), targets.present.tolist()
    )


@given(cases())
def test_alignment_is_equation_3(case: Case) -> None:
    assert distance_of_means(*case).item() == pytest.approx(aligned_by_loops(*case), rel=1e-12)


READINGS = {
    "mean square": (FedpcLoss(), reference.mean_square_loss, 29 / 6),
    "printed": (FedpcLoss(literal=True), reference.prototype_loss, 4.0),
}
"""Each reading of equation 3: the loss, its reference, and its value in :func:`test_known_answers`."""
each_reading = pytest.mark.parametrize("reading", READINGS)


@each_reading
@given(cases(), st.floats(0, 0.99))
def test_the_loss_is_equation_4(reading: str, case: Case, weight: float) -> None:
    objective, by_loops, _ = READINGS[reading]
    features, labels, targets = case
    terms = replace(objective, alignment=weight)(Outputs(features, features @ MIX), labels, targets)
    entropy = reference.cross_entropy((features @ MIX).tolist(), labels.tolist())
    aligned = by_loops(features.tolist(), labels.tolist(), targets.rows.tolist(), targets.present.tolist())
    share = weight if targets.present.any() else 0.0
    assert terms.classification.item() == pytest.approx(entropy, rel=1e-12)
    assert terms.alignment.item() == pytest.approx(aligned, rel=1e-12)
    assert terms.total.item() == pytest.approx((1 - share) * entropy + share * aligned, rel=1e-12)


@each_reading
def test_known_answers(reading: str) -> None:
    """Compute L_p by hand.

    Class 0 has (3, 4) and (1, 0), mean (2, 2), and the target (2, −1): distance 3, squares 26 and 2. Class 2 has
    (1, 1) and the target (0, 1): distance 1. Class 1 has no target.
    """
    features = torch.tensor([[3.0, 4.0], [1.0, 0.0], [7.0, 7.0], [1.0, 1.0]])
    labels = torch.tensor([0, 0, 1, 2])
    targets = Targets.of(np.array([[2.0, -1.0], [0.0, 0.0], [0.0, 1.0]]), np.array([True, False, True]))
    objective, _, aligned = READINGS[reading]
    terms = objective(Outputs(features, torch.zeros(4, 3)), labels, targets)
    assert terms.alignment.item() == pytest.approx(aligned)
    assert terms.total.item() == pytest.approx(0.5 * np.log(3) + 0.5 * aligned)


def test_both_terms_weigh_the_same_as_printed() -> None:
    assert FedpcLoss() == FedpcLoss(alignment=0.5, literal=False)


def test_without_targets_there_is_cross_entropy_alone() -> None:
    features, labels = torch.ones(2, DIM, dtype=torch.float64), torch.tensor([0, 1])
    nobody = Targets.of(np.full((CLASSES, DIM), np.nan), np.zeros(CLASSES, dtype=np.bool_))
    for targets in (None, nobody):
        terms = FedpcLoss()(Outputs(features, features @ MIX), labels, targets)
        assert terms.alignment.item() == 0.0
        assert terms.total.item() == terms.classification.item()
        found = gradient(lambda z, t=targets: FedpcLoss()(Outputs(z, z @ MIX), labels, t).total, features)  # type: ignore[misc]
        alone = gradient(lambda z: torch.nn.functional.cross_entropy(z @ MIX, labels), features)
        torch.testing.assert_close(found, alone, rtol=0, atol=0)


def test_a_batch_of_withheld_classes_keeps_the_weight_of_cross_entropy() -> None:
    targets = Targets.of(np.zeros((CLASSES, DIM)), np.array([True, False, False, False]))
    features = torch.ones(2, DIM, dtype=torch.float64)
    terms = FedpcLoss(0.3)(Outputs(features, features @ MIX), torch.tensor([1, 3]), targets)
    assert terms.alignment.item() == 0.0
    assert terms.total.item() == pytest.approx(0.7 * terms.classification.item(), rel=1e-12)


def test_no_weight_is_cross_entropy_alone() -> None:
    targets = Targets.of(np.zeros((CLASSES, DIM)), np.ones(CLASSES, dtype=np.bool_))
    features = torch.ones(2, DIM, dtype=torch.float64)
    terms = FedpcLoss(0.0)(Outputs(features, features @ MIX), torch.tensor([1, 3]), targets)
    assert terms.total.item() == terms.classification.item()
    assert terms.alignment.item() > 0.0


def loops_in_torch(features: Tensor, labels: Tensor, targets: Targets) -> Tensor:
    """Compute equation 3 for autograd: one class, one norm at a time."""
    total = features.new_zeros(())
    for k in sorted(set(labels.tolist())):
        if targets.present[k]:
            total = total + (features[labels == k].mean(dim=0) - targets.rows[k]).norm()
    return total


@given(cases())
def test_gradients_are_autograds_on_the_loops(case: Case) -> None:
    features, labels, targets = case
    found = gradient(lambda z: distance_of_means(z, labels, targets), features)
    if not any(bool(targets.present[k]) for k in labels.tolist()):
        assert not found.any()
        return
    expected = gradient(lambda z: loops_in_torch(z, labels, targets), features)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@each_reading
@given(case=cases())
def test_gradients_of_the_whole_loss_are_finite_differences(reading: str, case: Case) -> None:
    features, labels, targets = case
    objective = replace(READINGS[reading][0], alignment=0.4)
    found = gradient(lambda z: objective(Outputs(z, z @ MIX), labels, targets).total, features)
    step = 1e-6
    for b, j in np.ndindex(*features.shape):
        move = torch.zeros_like(features)
        move[b, j] = step
        above, below = (
            objective(Outputs(z, z @ MIX), labels, targets).total.item()
            for z in (features + move, features - move)
        )
        assert found[b, j].item() == pytest.approx((above - below) / (2 * step), rel=1e-4, abs=1e-6)


def detached(features: Tensor, labels: Tensor, targets: Targets) -> Tensor:
    return distance_of_means(features.detach(), labels, targets) + 0.0 * features.sum()


def plain_root(features: Tensor, labels: Tensor, targets: Targets) -> Tensor:
    """Return the norm without its guard."""
    total = features.new_zeros(())
    for k in set(labels.tolist()):
        total = total + (features[labels == k].mean(dim=0) - targets.rows[k]).square().sum().sqrt()
    return total


def test_class_means_get_the_gradient() -> None:
    """A double that takes the means as constants has none."""
    features, labels = torch.ones(2, DIM, dtype=torch.float64), torch.tensor([0, 1])
    targets = Targets.of(np.zeros((CLASSES, DIM)), np.ones(CLASSES, dtype=np.bool_))
    assert gradient(lambda z: distance_of_means(z, labels, targets), features).all()
    assert not gradient(lambda z: detached(z, labels, targets), features).any()


def at_the_target(align: Align, dtype: torch.dtype) -> Tensor:
    """Return the gradient where class 0 is exactly at its target and class 1 is not."""
    rows = np.array([[1.0, 2.0, 3.0]] * CLASSES)
    targets = Targets.of(rows, np.ones(CLASSES, dtype=np.bool_))
    features = torch.tensor(np.array([rows[0], rows[0], rows[0] + 1.0]), dtype=dtype)
    return gradient(lambda z: align(z, torch.tensor([0, 0, 1]), targets), features)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_gradient_at_the_target_is_zero_and_not_nan(dtype: torch.dtype) -> None:
    found = at_the_target(distance_of_means, dtype)
    assert not found[:2].any()
    torch.testing.assert_close(found[2], torch.full((DIM,), 3**-0.5, dtype=dtype))
    assert at_the_target(plain_root, dtype).isnan().any()


@each_reading
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(
    scale=st.floats(1e-60, 1e15),
    offset=st.sampled_from([0.0, 1.0]),
    labels=st.lists(st.integers(0, 3), min_size=1),
)
def test_no_gradient_is_ever_nan(
    dtype: torch.dtype, reading: str, scale: float, offset: float, labels: list[int]
) -> None:
    """Distances range from ones whose squares underflow up to large ones, and absent rows are not numbers."""
    rows = np.array([[offset] * DIM, [np.nan] * DIM, [scale] * DIM, [0.0] * DIM])
    targets = Targets.of(rows, np.isfinite(rows).all(axis=1))
    features = torch.full((len(labels), DIM), offset, dtype=dtype)
    features += scale * torch.arange(len(labels)).to(dtype).unsqueeze(1)
    mix = MIX.to(dtype)
    leaf = features.requires_grad_()
    terms = READINGS[reading][0](Outputs(leaf, leaf @ mix), torch.tensor(labels), targets)
    torch.autograd.backward(terms.total)
    assert leaf.grad is not None
    assert leaf.grad.isfinite().all()
    assert torch.stack(terms).isfinite().all()


def test_a_step_against_the_gradient_comes_nearer_to_the_target() -> None:
    features = torch.tensor([[1.0, -1.0, 2.0], [0.0, 0.5, 1.0]])
    targets = Targets.of(np.full((CLASSES, DIM), 0.25), np.ones(CLASSES, dtype=np.bool_))
    labels = torch.tensor([2, 2])
    step = gradient(lambda z: distance_of_means(z, labels, targets), features)
    assert distance_of_means(features - 0.1 * step, labels, targets) < distance_of_means(
        features, labels, targets
    )


@pytest.mark.parametrize("weight", [-0.1, 1.0, 2.0, float("nan"), float("inf")])
def test_a_weight_that_is_no_weight_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="alignment"):
        FedpcLoss(weight)
