"""Training loss of FedPLCC: cross entropy, weighted contrast, and correction (equations 4 to 8; torch)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from algorithms.losses import (
    Outputs,
    Terms,
    check_numbers,
    contrast,
    largest,
    mean_over,
    same_class,
    similarities,
)
from algorithms.prototypes import Clusters


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
        similar = similarities(outputs.features, clusters.rows, self.alpha)
        same = same_class(labels, clusters)
        contra = contrast(similar, same, weights, self.temperature)
        corr = -mean_over(largest(similar * weights, same, self.share), same.any(dim=1))
        aligned = self.contrast_weight * contra + self.correction_weight * corr
        return Terms(classification + aligned, classification, aligned)
