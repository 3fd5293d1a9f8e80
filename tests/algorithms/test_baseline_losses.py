"""Losses of FedProto and of cross entropy alone, against loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vmap

from algorithms.losses import Outputs
from algorithms.method_losses import CrossEntropyLoss, FedprotoLoss
from algorithms.prototypes import Clusters, Guide, Targets
from tests.algorithms import feddbp_reference as reference
from tests.algorithms.target_cases import CLASSES, DIM, MIX, Case, cases


@given(cases(), st.floats(0, 50))
def test_the_loss_is_cross_entropy_and_the_mean_square_distance(case: Case, weight: float) -> None:
    features, labels, targets = case
    terms = FedprotoLoss(weight)(Outputs(features, features @ MIX), labels, targets)
    entropy = reference.cross_entropy((features @ MIX).tolist(), labels.tolist())
    lists = features.tolist(), labels.tolist(), targets.rows.tolist(), targets.present.tolist()
    aligned = reference.shared_loss(*lists, literal=False)
    assert terms.classification.item() == pytest.approx(entropy, rel=1e-12)
    assert terms.alignment.item() == pytest.approx(aligned, rel=1e-12)
    assert terms.total.item() == pytest.approx(entropy + weight * aligned, rel=1e-12)


def test_known_answers() -> None:
    """(3, 4) against (1, 0): 4 + 16 over two channels; the other sample's class has no target."""
    features, labels = torch.tensor([[3.0, 4.0], [7.0, 7.0]]), torch.tensor([0, 1])
    targets = Targets.of(np.array([[1.0, 0.0], [0.0, 0.0]]), np.array([True, False]))
    terms = FedprotoLoss(0.5)(Outputs(features, torch.zeros(2, 2)), labels, targets)
    assert terms.alignment.item() == pytest.approx(10.0)
    assert terms.total.item() == pytest.approx(np.log(2) + 5.0)


def test_without_targets_there_is_cross_entropy_alone() -> None:
    features, labels = torch.ones(2, DIM, dtype=torch.float64), torch.tensor([0, 1])
    nobody = Targets.of(np.full((CLASSES, DIM), np.nan), np.zeros(CLASSES, dtype=np.bool_))
    for targets in (None, nobody):
        terms = FedprotoLoss(3.0)(Outputs(features, features @ MIX), labels, targets)
        assert terms.alignment.item() == 0.0
        assert terms.total.item() == terms.classification.item()


def test_batches_can_be_stacked() -> None:
    rng = np.random.default_rng(0)
    features, rows = (torch.tensor(rng.normal(size=(2, each, DIM))) for each in (5, CLASSES))
    labels = torch.tensor(rng.integers(0, CLASSES, size=(2, 5)))
    present = torch.tensor([[True, False, True, True], [False, True, True, False]])

    def total(z: Tensor, y: Tensor, p: Tensor, has: Tensor) -> Tensor:
        return FedprotoLoss(2.0)(Outputs(z, z @ MIX), y, Targets(p, has)).total

    for function in (total, grad(total)):
        alone = [function(*each) for each in zip(features, labels, rows, present, strict=True)]
        torch.testing.assert_close(vmap(function)(features, labels, rows, present), torch.stack(alone))


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_weight_that_is_no_weight_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="alignment_weight"):
        FedprotoLoss(weight)


FEATURES = torch.arange(12, dtype=torch.float64).reshape(4, 3).sin()
LOGITS = 3.0 * torch.arange(20, dtype=torch.float64).reshape(4, 5).cos()
LABELS = torch.tensor([0, 4, 1, 1])
TARGETS = Targets.of(np.ones((5, 3)), np.ones(5, dtype=np.bool_))
CLUSTERS = Clusters.of(np.ones((2, 3)), np.array([0, 1]), np.ones(2))


@pytest.mark.parametrize("guide", [None, TARGETS, CLUSTERS])
def test_cross_entropy_loss_ignores_whatever_is_received(guide: Guide | None) -> None:
    terms = CrossEntropyLoss()(Outputs(FEATURES, LOGITS), LABELS, guide)
    expected = reference.cross_entropy(LOGITS.tolist(), LABELS.tolist())
    assert terms.total.item() == terms.classification.item() == pytest.approx(expected, rel=1e-12)
    assert terms.alignment.item() == 0.0


def test_cross_entropy_loss_batches_can_be_stacked() -> None:
    logits, labels = torch.stack([LOGITS, -LOGITS]), torch.stack([LABELS, LABELS.flip(0)])
    together = vmap(lambda x, y: CrossEntropyLoss()(Outputs(FEATURES, x), y, None).total)(logits, labels)
    alone = [
        CrossEntropyLoss()(Outputs(FEATURES, x), y, None).total for x, y in zip(logits, labels, strict=True)
    ]
    torch.testing.assert_close(together, torch.stack(alone))
