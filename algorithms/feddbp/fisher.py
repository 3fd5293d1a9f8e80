"""Fisher scores of feature channels, by which FedDBP ranks a class's channels (equation 8; torch)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import functional

from algorithms.prototypes import class_means


def fisher_scores(
    batches: Iterable[tuple[Tensor, Tensor]], classifier: Callable[[Tensor], Tensor], classes: int, dim: int
) -> Tensor:
    """Return s_{c,j}, the mean over class c's samples of (∂ log p(y|x)/∂z_j)²: float64 (K, d) on the CPU.

    A class without samples gets zeros. ``batches`` gives features (B, d) and labels int64 (B,) in [0, K), on the
    classifier's device; ``classifier`` maps features to logits (B, K). The classifier must treat each sample by itself,
    as in ``eval()`` mode, because per-sample gradients are taken from the batch's sum of log p; in training mode,
    batch normalisation would mix samples. No parameter gets a gradient.
    """
    squared = (
        (_log_gradients(features, labels, classifier).square(), labels) for features, labels in batches
    )
    means, _ = class_means(squared, classes, dim)
    return means


def _log_gradients(features: Tensor, labels: Tensor, classifier: Callable[[Tensor], Tensor]) -> Tensor:
    """Return ∂ log p(y_b|x_b)/∂z_b, float64 (B, d).

    The softmax runs in float64: for a nearly certain sample float32 would round 1 − p to 0, and with it a class's part
    of the gradient.
    """
    with torch.enable_grad():
        leaf = features.detach().requires_grad_()
        total = -functional.cross_entropy(classifier(leaf).double(), labels, reduction="sum")
        (gradients,) = torch.autograd.grad(total, leaf)
    return gradients.double()
