"""FedDBP at the site: two branches of features, of which each site keeps its important channels (torch).

A shared branch gives z^s, whose class means are exchanged; a decision branch gives z^d, which classifies samples
(docs/explanation/notation.md). Each site trains with equation 7,

    L = CE_s + λ1 · CE_d + λ2 · L_s + λ3 · L_d,

and makes its targets from the mean over holders p^c and its own prototypes p_k^c (equations 9 and 10):

    η · p_k^c + (1 − η) · p^c   in the channels T_c with the highest Fisher scores,   p^c in the others.

In the paper every site sends the Fisher scores of its channels to the server, which computes the targets. Only the
site's own prototypes and scores and the mean over all sites are needed, so here the site computes the same result and
keeps its scores. The server's half is :func:`algorithms.averaging.prototype_means`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from algorithms.gram_matrix import Bool, Float
from algorithms.losses import Outputs, Terms, mean_over, mean_square, units
from algorithms.prototypes import Targets, class_means


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
    if own.ndim != 2 or not own.shape == scores.shape == mean.shape:
        raise ValueError(f"own {own.shape}, scores {scores.shape} and mean {mean.shape} do not fit together")
    for mask in (has_own, has):
        if mask.shape != own.shape[:1] or mask.dtype != np.bool_:
            raise ValueError(f"has_own and has must be bool ({len(own)},), not {mask.dtype} {mask.shape}")
    if not 0.0 <= eta <= 1.0:
        raise ValueError(f"eta must be between 0 and 1, not {eta}")
    if top < 0:
        raise ValueError(f"top must be at least 0 channels, not {top}")
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
    # Stable, so that a tie gives the lower channel wherever this is computed.
    order = np.argsort(-scores, axis=1, kind="stable")[:, :top]
    chosen = np.zeros(scores.shape, dtype=np.bool_)
    np.put_along_axis(chosen, order, True, axis=1)
    return chosen


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
    """Return ∂ log p(y_b|x_b)/∂z_b, float64 (B, d) on the CPU, since not every device has float64.

    The softmax runs in float64: for a nearly certain sample float32 would round 1 − p to 0, and with it a class's part
    of the gradient.
    """
    with torch.enable_grad():
        leaf = features.detach().requires_grad_()
        # Row b of the sum's gradient is sample b's own, since no other term depends on it.
        total = -functional.cross_entropy(classifier(leaf).cpu().double(), labels.cpu(), reduction="sum")
        (gradients,) = torch.autograd.grad(total, leaf)
    return gradients.cpu().double()


@dataclass(frozen=True)
class FeddbpLoss:
    """Loss L = CE_s + λ1 · CE_d + λ2 · L_s + λ3 · L_d (equation 7), each a batch mean.

    ``decision_weight`` is λ1, ``alignment_weight`` λ2, ``contrast_weight`` λ3, all at least 0; ``temperature`` is
    τ > 0. L_s is :func:`algorithms.losses.mean_square` on the shared branch, L_d :func:`decision_contrast` on the
    decision branch. ``literal`` takes both as printed: L_s without its 1/d, L_d without its logarithm and with the
    printed boundary term M.
    Ablations: ``share=False`` leaves out CE_s and L_s, ``decision=False`` CE_d and L_d (for a model without a decision
    branch), ``hard=False`` the boundary term M.

    Raises ``ValueError`` for weights out of range, or with both branches left out.
    """

    decision_weight: float = 1.0
    alignment_weight: float = 10.0
    contrast_weight: float = 1.0
    temperature: float = 0.07
    literal: bool = False
    share: bool = True
    decision: bool = True
    hard: bool = True

    def __post_init__(self) -> None:
        for name in ("decision_weight", "alignment_weight", "contrast_weight"):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be at least 0 and finite, not {getattr(self, name)}")
        if not 0.0 < self.temperature < float("inf"):
            raise ValueError(f"temperature must be above 0 and finite, not {self.temperature}")
        if not (self.share or self.decision):
            raise ValueError(
                "share and decision are both False, so nothing would train: set one of them to True"
            )

    def __call__(self, outputs: Outputs, labels: Tensor, targets: Targets | None) -> Terms:
        """Return the terms for a batch with labels (B,), each part with its weights; without targets alignment is 0.

        Raises ``ValueError`` if the model has no decision branch and ``decision`` is True.
        """
        classification = torch.zeros_like(outputs.logits[0, 0])
        alignment = torch.zeros_like(classification)
        if self.share:
            classification = classification + functional.cross_entropy(outputs.logits, labels)
            if targets is not None:
                # Equation 3. Print sums over the d channels, where mean_square divides by d.
                channels = outputs.features.shape[1] if self.literal else 1
                shared = channels * mean_square(outputs.features, labels, targets)
                alignment = alignment + self.alignment_weight * shared
        if self.decision:
            if outputs.decision is None or outputs.decision_logits is None:
                raise ValueError(
                    "the model has no decision branch: use a model with one, or set decision to False"
                )
            cross_entropy = functional.cross_entropy(outputs.decision_logits, labels)
            classification = classification + self.decision_weight * cross_entropy
            if targets is not None:
                contrast = decision_contrast(
                    outputs.decision,
                    labels,
                    targets,
                    temperature=self.temperature,
                    hard=self.hard,
                    literal=self.literal,
                )
                alignment = alignment + self.contrast_weight * contrast
        return Terms(classification + alignment, classification, alignment)


def decision_contrast(
    features: Tensor,
    labels: Tensor,
    targets: Targets,
    *,
    temperature: float,
    hard: bool = True,
    literal: bool = False,
) -> Tensor:
    """Return L_d: z^d's distance from its class's prototype against those from the others (equations 4 to 6), a scalar.

    Features are (B, d), labels (B,); the result is 0 if no sample has a target. d_{i,c} is the distance of z_i^d from
    class c's prototype, both scaled to norm 1. Over the batch's samples and the classes c with a target:

        −mean_i log[ e^{−d_{i,y}/τ} / (Σ_c e^{−d_{i,c}/τ} + M_i) ]      M_i = Σ_{c≠y, d_{i,c}<m} e^{(m − d_{i,c})/τ}

    m is halfway between the batch's mean d_{i,y} and its mean d_{i,c≠y}, and gets no gradient. Hard negatives are other
    classes' prototypes nearer than m. M grows as they come nearer, so that the gradient drives the two apart, and jumps
    by 1 where d_{i,c} crosses m. ``literal`` drops the logarithm and takes the printed
    M_i = Σ_{c≠y} e^{−max(0, m−d_{i,c})/τ}: a term that falls as a hard negative comes nearer, and is 1 for an easy one.
    Without ``hard``, M = 0.
    """
    classes = torch.arange(len(targets.present), device=labels.device)
    rows = torch.where(targets.present.unsqueeze(1), targets.rows, 0.0).to(features.dtype)
    # Differences, with gradient 0 at 0: inner products would round small distances away.
    distances = torch.cdist(units(features), units(rows), compute_mode="donot_use_mm_for_euclid_dist")
    own_class = labels.unsqueeze(1) == classes
    own_distances = torch.where(own_class, distances, 0.0).sum(dim=1)
    chosen = targets.present.index_select(0, labels)
    others = targets.present & ~own_class
    scores = torch.where(others | own_class, -distances / temperature, -torch.inf)
    if hard:
        # Equation 6. m has no gradient: a boundary that moves with what it bounds would be pushed by the very samples
        # that it judges.
        mean_own = mean_over(own_distances.detach(), chosen)
        mean_other = mean_over(distances.detach(), others & chosen.unsqueeze(1))
        beyond = ((mean_own + mean_other) / 2.0 - distances).clamp(min=0.0)
        # Print sums over all other classes, so that each easy negative adds a 1, which drowns Σ_c e^{−d/τ}.
        counted = others if literal else others & (beyond > 0.0)
        penalties = (-beyond if literal else beyond) / temperature
        scores = torch.cat([scores, torch.where(counted, penalties, -torch.inf)], dim=1)
    # Equations 4 and 5 on logarithms, as in a softmax: e^{−d/τ} underflows in float32 for τ = 0.07.
    log_shares = -own_distances / temperature - scores.logsumexp(dim=1)
    losses = -log_shares.exp() if literal else -log_shares
    return mean_over(losses, chosen)
