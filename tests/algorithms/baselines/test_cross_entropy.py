"""Cross entropy alone, whatever a site received."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.func import vmap

from algorithms.baselines.cross_entropy import Objective
from algorithms.model_outputs import Outputs
from algorithms.prototypes import Clusters, Guide, Targets
from tests.algorithms import feddbp_reference as reference

FEATURES = torch.arange(12, dtype=torch.float64).reshape(4, 3).sin()
LOGITS = 3.0 * torch.arange(20, dtype=torch.float64).reshape(4, 5).cos()
LABELS = torch.tensor([0, 4, 1, 1])
TARGETS = Targets.of(np.ones((5, 3)), np.ones(5, dtype=np.bool_))
CLUSTERS = Clusters.of(np.ones((2, 3)), np.array([0, 1]), np.ones(2))


@pytest.mark.parametrize("guide", [None, TARGETS, CLUSTERS])
def test_the_loss_is_cross_entropy_whatever_is_received(guide: Guide | None) -> None:
    terms = Objective()(Outputs(FEATURES, LOGITS), LABELS, guide)
    expected = reference.cross_entropy(LOGITS.tolist(), LABELS.tolist())
    assert terms.total.item() == terms.classification.item() == pytest.approx(expected, rel=1e-12)
    assert terms.alignment.item() == 0.0


def test_batches_can_be_stacked() -> None:
    logits, labels = torch.stack([LOGITS, -LOGITS]), torch.stack([LABELS, LABELS.flip(0)])
    together = vmap(lambda x, y: Objective()(Outputs(FEATURES, x), y, None).total)(logits, labels)
    alone = [Objective()(Outputs(FEATURES, x), y, None).total for x, y in zip(logits, labels, strict=True)]
    torch.testing.assert_close(together, torch.stack(alone))
