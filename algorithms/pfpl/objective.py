"""The site's half of PFPL: cross entropy plus alignment with the personalised prototypes (equation 5)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from algorithms.linear import Float
from algorithms.prototypes import Targets
from algorithms.terms import Terms


@dataclass(frozen=True)
class Objective:
    """CE + λ · ℓ_R (equation 5), a batch mean each.

    ``alignment_weight`` is λ ≥ 0. ``literal`` takes ℓ_R as printed (:func:`literal_alignment`) instead of
    :func:`alignment`. Raises ``ValueError`` for a negative or non-finite λ.
    """

    alignment_weight: float
    literal: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.alignment_weight < float("inf"):
            raise ValueError(f"alignment_weight is a number from 0 up, not {self.alignment_weight}")

    def __call__(self, features: Tensor, logits: Tensor, labels: Tensor, targets: Targets | None) -> Terms:
        """Terms for features (B, d), logits (B, K) and labels (B,); without targets the alignment is 0."""
        classification = functional.cross_entropy(logits, labels)
        if targets is None:
            return Terms(classification, classification, torch.zeros_like(classification))
        align = literal_alignment if self.literal else alignment
        aligned = align(features, labels, targets)
        return Terms(classification + self.alignment_weight * aligned, classification, aligned)


def alignment(features: Tensor, labels: Tensor, targets: Targets) -> Tensor:
    """ℓ_R = 1/(|B′|·d) Σ_{b∈B′} ‖z_b − C̄^{y_b}‖², B′ the samples whose class has a target.

    Features are (B, d), labels (B,); 0 when B′ is empty. The mean over channels, not their sum, which would
    make λ mean d times as much.
    """
    chosen = targets.present[labels]
    differences = features[chosen] - targets.rows[labels[chosen]]
    return differences.square().sum() / max(differences.numel(), 1)


def literal_alignment(features: Tensor, labels: Tensor, targets: Targets) -> Tensor:
    """ℓ_R = Σ_{k in the batch} ‖C̄^k − mean z^k‖₂ (equations 6 and 7), over classes that have a target.

    Features are (B, d), labels (B,); 0 when no class of the batch has a target.
    """
    total = features.new_zeros(())
    for label in sorted(set(labels.tolist())):
        if targets.present[label]:
            mean = features[labels == label].mean(dim=0)
            total = total + torch.linalg.vector_norm(targets.rows[label] - mean)
    return total


class Control(StrEnum):
    """What a site trains against when it has no federation: the same model, batches and epochs, no peers."""

    LOCAL = "local"
    """Cross entropy alone."""
    SELF = "self"
    """α = 1: the site's own prototypes of the previous round are its targets."""


def control_targets(control: Control, own: Float, counts: NDArray[np.int64]) -> Targets | None:
    """What the control trains against next, from the site's own prototypes (K, d) and sample counts (K,).

    ``self`` has a target for every class that the site holds, withheld in the federation or not.
    """
    return Targets.of(own, counts > 0) if control is Control.SELF else None
