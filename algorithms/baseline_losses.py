"""Training losses of the baselines that the four methods are compared with (torch; docs/explanation/notation.md).

FedProto (Tan et al., AAAI 2022) averages one prototype for each class over its holders. The server's half is
:func:`algorithms.averaging.prototype_means` (numpy).

FPL (Huang et al., CVPR 2023) clusters one prototype for each class and site (``local_clusters(..., single=True)``) by
FINCH at the server, every cluster with the same weight (``global_clusters(..., uniform=True)``).

FedPLVM (Wang et al., NeurIPS 2024) clusters features by FINCH at the sites and local prototypes at the server, as
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
    mean_over,
    mean_square,
    same_class,
    similarities,
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
        cosines = (units(outputs.features) * units(centres[labels])).sum(dim=1)
        corr = mean_over(2.0 * (1.0 - cosines).square(), same.any(dim=1))
        aligned = self.weight * (contra + corr)
        return Terms(classification + aligned, classification, aligned)
