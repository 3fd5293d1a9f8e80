"""Training losses of PFPL, FedPC and FedPLCC, and of the baselines they are compared with (torch).

Each loss maps a batch's outputs, labels and the prototypes that the site received to :class:`algorithms.losses.Terms`.
FedDBP's loss is in :mod:`algorithms.feddbp`; symbols are in docs/explanation/notation.md. The baselines:

- FedProto (Tan et al., AAAI 2022) averages one prototype for each class over its holders
  (:func:`algorithms.averaging.prototype_means`).
- FPL (Huang et al., CVPR 2023) clusters one prototype for each class and site (``local_clusters(..., single=True)``)
  by FINCH at the server, every cluster with the same weight (``global_clusters(..., uniform=True)``).
- FedPLVM (Wang et al., NeurIPS 2024) clusters features by FINCH at the sites and local prototypes at the server, as
  FedPLCC does, but every cluster has the same weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from algorithms.losses import (
    Outputs,
    Terms,
    check_numbers,
    class_centres,
    contrast,
    distance_of_means,
    mean_over,
    mean_square,
    same_class,
    similarities,
    sum_largest,
    units,
)
from algorithms.prototypes import Clusters, Guide, Targets


@dataclass(frozen=True)
class CrossEntropyLoss:
    """Cross entropy alone, as a batch mean; the guide is ignored and the alignment is 0."""

    def __call__(self, outputs: Outputs, labels: Tensor, guide: Guide | None) -> Terms:  # noqa: ARG002
        """Return the terms for a batch with labels (B,)."""
        classification = functional.cross_entropy(outputs.logits, labels)
        return Terms.unaligned(classification)


@dataclass(frozen=True)
class FedprotoLoss:
    """Loss CE + λ · :func:`algorithms.losses.mean_square`, each a batch mean.

    ``alignment_weight`` is λ. Raises ``ValueError`` for a λ that is negative or not finite.
    """

    alignment_weight: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.alignment_weight < float("inf"):
            raise ValueError(f"alignment_weight must be at least 0 and finite, not {self.alignment_weight}")

    def __call__(self, outputs: Outputs, labels: Tensor, targets: Targets | None) -> Terms:
        """Return the terms for a batch with labels (B,); without targets the alignment is 0."""
        classification = functional.cross_entropy(outputs.logits, labels)
        if targets is None:
            return Terms.unaligned(classification)
        aligned = self.distance(outputs.features, labels, targets)
        return Terms(classification + self.alignment_weight * aligned, classification, aligned)

    def distance(self, features: Tensor, labels: Tensor, targets: Targets) -> Tensor:
        """Return the alignment term, before its weight λ."""
        return mean_square(features, labels, targets)


@dataclass(frozen=True)
class FplLoss:
    """Loss CE + CPCL + UPCR, all with weight 1 (Huang et al., CVPR 2023), as means over the batch.

    CPCL = −log[ Σ_{g∈G^y} e^{cos(z, g)/τ} / Σ_{g∈G} e^{cos(z, g)/τ} ]; every cluster counts once.
    UPCR = 1/d ‖z − U^y‖², where U^y is the plain mean of the class's clusters.
    Both follow the authors' code, where UPCR is torch's mean squared error. One difference: means here are over the
    samples whose class has a cluster, not over all. ``temperature`` is τ. Raises ``ValueError`` unless τ > 0.
    """

    temperature: float = 0.02

    def __post_init__(self) -> None:
        check_numbers(alpha=1.0, temperature=self.temperature)

    def __call__(self, outputs: Outputs, labels: Tensor, clusters: Clusters | None) -> Terms:
        """Return the terms for a batch with labels (B,); without clusters, as in the first round, cross entropy."""
        classification = functional.cross_entropy(outputs.logits, labels)
        if clusters is None:
            return Terms.unaligned(classification)
        similar = similarities(outputs.features, clusters.rows, 1.0)
        # FPL's clusters count once each; the guide's weights are FedPLCC's.
        once = torch.ones_like(clusters.weights)
        cpcl = contrast(similar, same_class(labels, clusters), once, self.temperature)
        unbiased = class_centres(clusters, outputs.logits.shape[1])
        aligned = cpcl + mean_square(outputs.features, labels, unbiased)
        return Terms(classification + aligned, classification, aligned)


@dataclass(frozen=True)
class FedplvmLoss:
    """Loss CE + λ·(L_contra + L_corr) (Wang et al., NeurIPS 2024), with means over the batch.

    L_contra = −log[ Σ_{g∈G^y} e^{s_α/τ} / Σ_{g∈G} e^{s_α/τ} ], s_α(z, g) = cos(z, g)^α; every cluster counts once.
    L_corr = 2·(1 − cos(z, U^y))², where U^y is the plain mean of the class's clusters and α is not applied, as in the
    authors' code. ``weight`` is λ, ``alpha`` α and ``temperature`` τ; the defaults come from that code. Raises
    ``ValueError`` for a negative λ, α outside (0, 1] or τ ≤ 0.
    """

    weight: float = 100.0
    alpha: float = 0.25
    temperature: float = 0.07

    def __post_init__(self) -> None:
        check_numbers(alpha=self.alpha, temperature=self.temperature, weight=self.weight)

    def __call__(self, outputs: Outputs, labels: Tensor, clusters: Clusters | None) -> Terms:
        """Return the terms for a batch with labels (B,); without clusters, as in the first round, cross entropy."""
        classification = functional.cross_entropy(outputs.logits, labels)
        if clusters is None:
            return Terms.unaligned(classification)
        similar = similarities(outputs.features, clusters.rows, self.alpha)
        same = same_class(labels, clusters)
        contra = contrast(similar, same, torch.ones_like(clusters.weights), self.temperature)
        centres = class_centres(clusters, outputs.logits.shape[1]).rows
        cosines = (units(outputs.features) * units(centres.index_select(0, labels))).sum(dim=1)
        corr = mean_over(2.0 * (1.0 - cosines).square(), same.any(dim=1))
        aligned = self.weight * (contra + corr)
        return Terms(classification + aligned, classification, aligned)


@dataclass(frozen=True)
class PfplLoss(FedprotoLoss):
    """Loss CE + λ · ℓ_R (equation 5): FedProto's loss, with personalised prototypes as targets.

    ``alignment_weight`` is λ ≥ 0. ℓ_R is :func:`algorithms.losses.mean_square`; ``literal`` takes it as printed
    (equations 6 and 7, :func:`algorithms.losses.distance_of_means`). Raises ``ValueError`` for a negative or
    non-finite λ.
    """

    literal: bool = False

    def distance(self, features: Tensor, labels: Tensor, targets: Targets) -> Tensor:
        """Return ℓ_R."""
        return (distance_of_means if self.literal else mean_square)(features, labels, targets)


@dataclass(frozen=True)
class FedpcLoss:
    """Loss (1 − γ) · CE + γ · L_p (equation 4), with CE a batch mean.

    ``alignment`` is γ: 0.5 in print, where both terms have the same weight; 0 leaves cross entropy alone. L_p is
    :func:`algorithms.losses.mean_square`, and with ``literal``, as printed,
    :func:`~algorithms.losses.distance_of_means`. Raises ``ValueError`` unless 0 ≤ γ < 1.
    """

    alignment: float = 0.5
    literal: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.alignment < 1.0:
            raise ValueError(f"alignment must be at least 0 and below 1, not {self.alignment}")

    def __call__(self, outputs: Outputs, labels: Tensor, targets: Targets | None) -> Terms:
        """Return the terms for a batch with labels (B,).

        Without a target for any class, as in the first round, the total is cross entropy with weight 1. If there are
        targets, but none for this batch's classes, cross entropy keeps the weight 1 − γ of the other batches.
        """
        classification = functional.cross_entropy(outputs.logits, labels)
        if targets is None:
            return Terms.unaligned(classification)
        distance = distance_of_means if self.literal else mean_square
        aligned = distance(outputs.features, labels, targets)
        # Equation 4. Without any target γ is 0: the second term has no gradient, and 1 − γ would only scale the first.
        weight = self.alignment * targets.present.any().to(classification.dtype)
        return Terms((1.0 - weight) * classification + weight * aligned, classification, aligned)


@dataclass(frozen=True)
class FedplccLoss:
    """Loss CE + λ1·L_contra + λ2·L_corr (equation 4), with s_α(z, g) = cos(z, g)^α (equation 7), as batch means.

    L_contra = −log[ Σ_{g∈G^y} e^{s_α/τ} W_g / Σ_{g∈G} e^{s_α/τ} W_g ] (equation 6), and
    L_corr = −Σ s_α·W_g over the ⌈φ·|G^y|⌉ largest s_α·W_g of the sample's class (equation 8).

    ``contrast_weight`` is λ1, ``correction_weight`` λ2 (10·λ1 in print), ``alpha`` α, ``temperature`` τ, ``share`` φ.
    For ablation, a λ of 0 leaves its term out, ``share`` = 1 takes all clusters of the class, and ``weights_one``
    sets every W_g to 1 in both terms. Raises ``ValueError`` for negative weights, α or φ outside (0, 1], or τ ≤ 0.
    """

    contrast_weight: float
    correction_weight: float
    alpha: float = 0.5
    temperature: float = 0.07
    share: float = 0.5
    weights_one: bool = False

    def __post_init__(self) -> None:
        check_numbers(
            alpha=self.alpha,
            temperature=self.temperature,
            contrast_weight=self.contrast_weight,
            correction_weight=self.correction_weight,
        )
        if not 0.0 < self.share <= 1.0:
            raise ValueError(f"share must be above 0 and at most 1, not {self.share}")

    def __call__(self, outputs: Outputs, labels: Tensor, clusters: Clusters | None) -> Terms:
        """Return the terms for a batch with labels (B,); without clusters, as in the first round, cross entropy."""
        classification = functional.cross_entropy(outputs.logits, labels)
        if clusters is None:
            return Terms.unaligned(classification)
        weights = torch.ones_like(clusters.weights) if self.weights_one else clusters.weights
        similar = similarities(outputs.features, clusters.rows, self.alpha)  # equation 7
        same = same_class(labels, clusters)
        contra = contrast(similar, same, weights, self.temperature)  # equation 6
        # Equation 8: only the share φ of the class's clusters with the largest s_α·W_g pulls.
        corr = -mean_over(sum_largest(similar * weights, same, self.share), same.any(dim=1))
        aligned = self.contrast_weight * contra + self.correction_weight * corr
        return Terms(classification + aligned, classification, aligned)
