"""FedDBP's personalised global prototypes (equations 8 to 10), computed at the site.

In the paper every site sends the Fisher scores of its channels to the server, which computes the prototypes. Only the
site's own prototypes and scores and the mean over all sites are needed, so here the site computes the same result and
keeps its scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from algorithms.gram_matrix import Bool, Float
from algorithms.prototypes import class_means


def fuse(
    own: Float,
    has_own: Bool,
    scores: Float,
    mean: Float,
    has: Bool,
    *,
    eta: float,
    top: int,
    personal: bool = True,
) -> tuple[NDArray[np.float64], Bool]:
    """Return a site's targets: rows float64 (K, d), zero for a class without a target, and ``present`` (K,).

    ``own`` (K, d) are the site's prototypes of its classes (``has_own`` (K,)); ``scores`` (K, d) are the Fisher scores
    of their channels; ``mean`` (K, d) are the means over all holders, for the classes that enough sites hold (``has``
    (K,)). In a class of the site with a mean, the ``top`` channels with the highest scores (all if there are fewer; the
    lower channel on a tie) become η·own + (1 − η)·mean. The other channels, and all channels of a class that the site
    does not have, are the mean's. ``personal=False`` is the ablation with the mean everywhere. A class without a mean
    is not present, even if the site has the class.

    Rows of absent classes are never read. Raises ``ValueError`` for shapes that do not fit, η outside [0, 1], top
    below 0, or scores of a class of the site that are negative or not finite.
    """
    _check(own, has_own, scores, mean, has)
    _check_settings(eta, top)
    if (~(np.isfinite(scores) & (scores >= 0.0)) & has_own[:, None]).any():
        raise ValueError("a Fisher score must be finite and not negative")
    # A class below min_holders has no mean, and its own prototype alone is no target: print has no value there either.
    personal_channels = top_channels(scores, top) & (has & has_own)[:, None] & personal
    common = np.where(has[:, None], mean, 0.0)
    # Equation 10. Rows of absent classes may hold NaN, which 0 · NaN would let through.
    fused = eta * np.where(personal_channels, own, 0.0) + (1.0 - eta) * common
    return np.where(personal_channels, fused, common), has.copy()


def top_channels(scores: Float, top: int) -> Bool:
    """Return T_c (equation 9), bool (K, d): each row's ``top`` highest scores, or all; the lower channel on a tie."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :top]
    chosen = np.zeros(scores.shape, dtype=np.bool_)
    np.put_along_axis(chosen, order, True, axis=1)
    return chosen


def _check(own: Float, has_own: Bool, scores: Float, mean: Float, has: Bool) -> None:
    if own.ndim != 2 or not own.shape == scores.shape == mean.shape:
        raise ValueError(f"own {own.shape}, scores {scores.shape} and mean {mean.shape} do not fit together")
    for known in (has_own, has):
        if known.shape != own.shape[:1] or known.dtype != np.bool_:
            raise ValueError(f"has_own and has must be bool ({len(own)},), not {known.dtype} {known.shape}")


def _check_settings(eta: float, top: int) -> None:
    if not 0.0 <= eta <= 1.0:
        raise ValueError(f"eta must be between 0 and 1, not {eta}")
    if top < 0:
        raise ValueError(f"top must be at least 0 channels, not {top}")


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
