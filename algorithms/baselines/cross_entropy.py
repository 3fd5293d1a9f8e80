"""Training loss of the methods whose server sends no prototypes to align with: cross entropy (torch)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from algorithms.model_outputs import Outputs, Terms
from algorithms.prototypes import Guide


@dataclass(frozen=True)
class Objective:
    """Cross entropy alone, as a batch mean; the guide is ignored and the alignment is 0."""

    def __call__(self, outputs: Outputs, labels: Tensor, guide: Guide | None) -> Terms:  # noqa: ARG002
        """Return the terms for a batch with labels (B,)."""
        classification = functional.cross_entropy(outputs.logits, labels)
        return Terms.unaligned(classification)
