"""PFPL's loss against loops: the default, the printed form, missing targets, and the gradient's direction."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from algorithms.losses import Outputs, distance_of_means, mean_square
from algorithms.method_losses import PfplLoss
from algorithms.prototypes import Targets
from tests.algorithms.target_cases import CLASSES, DIM, Case, cases


def reference_alignment(features: Tensor, labels: Tensor, targets: Targets) -> float:
    total, used = 0.0, 0
    for z, y in zip(features.tolist(), labels.tolist(), strict=True):
        if targets.present[y]:
            used += 1
            total += sum((a - b) ** 2 for a, b in zip(z, targets.rows[y].tolist(), strict=True))
    return total / (used * DIM) if used else 0.0


def reference_literal(features: Tensor, labels: Tensor, targets: Targets) -> float:
    total = 0.0
    for k in set(labels.tolist()):
        if targets.present[k]:
            members = [z for z, y in zip(features.tolist(), labels.tolist(), strict=True) if y == k]
            mean = [sum(column) / len(members) for column in zip(*members, strict=True)]
            total += math.dist(mean, targets.rows[k].tolist())
    return total


@given(cases(torch.float32))
def test_alignment_is_the_formula(case: Case) -> None:
    assert mean_square(*case).item() == pytest.approx(reference_alignment(*case), rel=1e-4, abs=1e-6)


@given(cases(torch.float32))
def test_literal_alignment_is_the_printed_formula(case: Case) -> None:
    assert distance_of_means(*case).item() == pytest.approx(reference_literal(*case), rel=1e-4, abs=1e-6)


def test_known_answers() -> None:
    """Two samples of class 0 at (3, 4) and (1, 0), target (1, 0); one of class 1, which has none."""
    features = torch.tensor([[3.0, 4.0], [1.0, 0.0], [7.0, 7.0]])
    labels = torch.tensor([0, 0, 1])
    targets = Targets.of(np.array([[1.0, 0.0], [0.0, 0.0]]), np.array([True, False]))
    assert mean_square(features, labels, targets).item() == pytest.approx((4 + 16) / (2 * 2))
    assert distance_of_means(features, labels, targets).item() == pytest.approx(5**0.5)


@pytest.mark.parametrize("literal", [False, True])
@given(case=cases(torch.float32), weight=st.floats(0, 50))
def test_the_loss_is_cross_entropy_plus_weighted_alignment(literal: bool, case: Case, weight: float) -> None:
    features, labels, targets = case
    logits = features @ torch.arange(DIM * CLASSES, dtype=torch.float32).reshape(DIM, CLASSES) / 10
    terms = PfplLoss(weight, literal)(Outputs(features, logits), labels, targets)
    entropy = 0.0
    for row, y in zip(logits.double().tolist(), labels.tolist(), strict=True):
        entropy += math.log(sum(math.exp(value) for value in row)) - row[y]
    entropy /= len(labels)
    aligned = (reference_literal if literal else reference_alignment)(features, labels, targets)
    assert terms.classification.item() == pytest.approx(entropy, rel=1e-4, abs=1e-5)
    assert terms.alignment.item() == pytest.approx(aligned, rel=1e-4, abs=1e-5)
    assert terms.total.item() == pytest.approx(entropy + weight * aligned, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("literal", [False, True])
def test_without_targets_there_is_cross_entropy_alone(literal: bool) -> None:
    features = torch.ones(2, DIM, requires_grad=True)
    labels = torch.tensor([0, 1])
    terms = PfplLoss(10.0, literal)(Outputs(features, features @ torch.eye(DIM, CLASSES)), labels, None)
    assert terms.alignment.item() == 0.0
    assert terms.total.item() == terms.classification.item()
    nobody = Targets.of(np.zeros((CLASSES, DIM)), np.zeros(CLASSES, dtype=np.bool_))
    terms = PfplLoss(10.0, literal)(Outputs(features, features @ torch.eye(DIM, CLASSES)), labels, nobody)
    assert terms.alignment.item() == 0.0
    torch.autograd.backward(terms.total)
    assert features.grad is not None
    assert features.grad.isfinite().all()


@pytest.mark.parametrize("align", [mean_square, distance_of_means])
def test_a_step_against_the_gradient_comes_nearer_to_the_target(align: object) -> None:
    assert callable(align)
    features = torch.tensor([[1.0, -1.0, 2.0], [0.0, 0.5, 1.0]], requires_grad=True)
    labels = torch.tensor([2, 2])
    targets = Targets.of(np.full((CLASSES, DIM), 0.25), np.ones(CLASSES, dtype=np.bool_))
    before = align(features, labels, targets)
    torch.autograd.backward(before)
    assert features.grad is not None
    assert align(features.detach() - 0.1 * features.grad, labels, targets) < before


@pytest.mark.parametrize("align", [mean_square, distance_of_means])
def test_the_gradient_at_the_target_is_zero(align: object) -> None:
    assert callable(align)
    features = torch.zeros(2, DIM, requires_grad=True)
    targets = Targets.of(np.zeros((CLASSES, DIM)), np.ones(CLASSES, dtype=np.bool_))
    torch.autograd.backward(align(features, torch.tensor([0, 0]), targets))
    assert features.grad is not None
    assert not features.grad.any()


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_weight_that_is_no_weight_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="alignment_weight"):
        PfplLoss(weight)
