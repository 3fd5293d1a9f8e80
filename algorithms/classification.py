"""The site's half of every method that sends no prototypes to align with: cross entropy (torch)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from algorithms.prototypes import Guide
from algorithms.terms import Outputs, Terms


@dataclass(frozen=True)
class Objective:
    """Cross entropy alone, a batch mean. What a site received is not looked at, and the alignment is 0."""

    def __call__(self, outputs: Outputs, labels: Tensor, guide: Guide | None) -> Terms:  # noqa: ARG002
        """Terms for a batch with labels (B,)."""
        classification = functional.cross_entropy(outputs.logits, labels)
        return Terms.unaligned(classification)
