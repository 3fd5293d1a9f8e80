"""Training loss of FedPLVM: contrast of α-sparse similarities, and a correction towards the class's mean cluster."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from algorithms.alignment_loss import units
from algorithms.contrastive_loss import (
    check_numbers,
    class_centres,
    contrast,
    mean_over,
    same_class,
    similarities,
)
from algorithms.model_outputs import Outputs, Terms
from algorithms.prototypes import Clusters


@dataclass(frozen=True)
class Objective:
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
