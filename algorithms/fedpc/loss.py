"""Training loss of FedPC: cross entropy, and distance of features from the group's prototypes (equations 3, 4)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from algorithms.losses import Outputs, Terms, distance_of_means, mean_square
from algorithms.prototypes import Targets


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
        weight = self.alignment * targets.present.any().to(classification.dtype)
        return Terms((1.0 - weight) * classification + weight * aligned, classification, aligned)
