"""Training loss of FedProto: cross entropy plus alignment with the averaged prototypes (torch)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from algorithms.alignment_loss import mean_square
from algorithms.model_outputs import Outputs, Terms
from algorithms.prototypes import Targets


@dataclass(frozen=True)
class Objective:
    """Loss CE + λ · :func:`algorithms.alignment_loss.mean_square`, each a batch mean.

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
