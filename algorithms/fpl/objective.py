"""The site's half of FPL: contrast with all clusters, and the distance from the class's unbiased prototype."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from algorithms.alignment import mean_square
from algorithms.contrast import check_numbers, class_centres, contrast, same_class, similarities
from algorithms.prototypes import Clusters
from algorithms.terms import Outputs, Terms


@dataclass(frozen=True)
class Objective:
    """CE + CPCL + UPCR, all with weight 1 (Huang et al., CVPR 2023), and means over the batch.

    CPCL = −log[ Σ_{g∈G^y} e^{cos(z, g)/τ} / Σ_{g∈G} e^{cos(z, g)/τ} ], every cluster counting once.
    UPCR = 1/d ‖z − U^y‖², U^y the plain mean of the class's clusters.
    As the authors' code computes them, where UPCR is torch's mean squared error; means are over the samples whose
    class has a cluster, theirs over all samples. ``temperature`` is τ. Raises ``ValueError`` unless τ > 0.
    """

    temperature: float = 0.02

    def __post_init__(self) -> None:
        check_numbers(alpha=1.0, temperature=self.temperature)

    def __call__(self, outputs: Outputs, labels: Tensor, clusters: Clusters | None) -> Terms:
        """Terms for a batch with labels (B,). Without clusters, as in the first round, cross entropy alone."""
        classification = functional.cross_entropy(outputs.logits, labels)
        if clusters is None:
            return Terms.unaligned(classification)
        similar = similarities(outputs.features, clusters.rows, 1.0)
        once = torch.ones_like(clusters.weights)
        cpcl = contrast(similar, same_class(labels, clusters), once, self.temperature)
        unbiased = class_centres(clusters, outputs.logits.shape[1])
        aligned = cpcl + mean_square(outputs.features, labels, unbiased)
        return Terms(classification + aligned, classification, aligned)
