"""Training loss of FPL: contrast with all clusters, and the distance from the class's unbiased prototype (torch)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from algorithms.alignment_loss import mean_square
from algorithms.contrastive_loss import check_numbers, class_centres, contrast, same_class, similarities
from algorithms.model_outputs import Outputs, Terms
from algorithms.prototypes import Clusters


@dataclass(frozen=True)
class Objective:
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
