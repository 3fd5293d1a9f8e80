"""FedDBP's importance of channels: the Fisher information of a class's features (equation 8, torch)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import functional

from algorithms.prototypes import class_means


def fisher_scores(
    batches: Iterable[tuple[Tensor, Tensor]], classifier: Callable[[Tensor], Tensor], classes: int, dim: int
) -> Tensor:
    """s_{c,j}, the mean over class c's samples of (∂ log p(y|x)/∂z_j)²: float64 (K, d) on the CPU.

    Zeros for a class without samples. ``batches`` gives features (B, d) and labels int64 (B,) in [0, K), on the
    classifier's device; ``classifier`` takes features to logits (B, K). It has to treat each sample by itself, as in
    ``eval()`` mode: then the gradient of the batch's sum of log p is each sample's own. In training mode, batch
    normalisation in the classifier would mix them. No parameter gets a gradient.
    """
    squared = (
        (_log_gradients(features, labels, classifier).square(), labels) for features, labels in batches
    )
    means, _ = class_means(squared, classes, dim)
    return means


def _log_gradients(features: Tensor, labels: Tensor, classifier: Callable[[Tensor], Tensor]) -> Tensor:
    """∂ log p(y_b|x_b)/∂z_b, float64 (B, d).

    The softmax is float64's: where a sample is all but certain, float32 rounds 1 − p to 0 and with it one of the
    classes that the gradient consists of.
    """
    with torch.enable_grad():
        leaf = features.detach().requires_grad_()
        total = -functional.cross_entropy(classifier(leaf).double(), labels, reduction="sum")
        (gradients,) = torch.autograd.grad(total, leaf)
    return gradients.double()
