"""What a model gives for a batch, and what every method's objective makes of it (torch)."""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor


class Outputs(NamedTuple):
    """A model's outputs for a batch: ``features`` (B, d), whose class means are the prototypes, and ``logits`` (B, K).

    A model with a decision branch (FedDBP) also gives that branch's features (B, d) and logits (B, K).
    """

    features: Tensor
    logits: Tensor
    decision: Tensor | None = None
    decision_logits: Tensor | None = None


class Terms(NamedTuple):
    """A batch's loss and its two parts, each a scalar tensor.

    ``total`` is what is minimised; how the method weighs ``classification`` (cross entropy) and ``alignment``
    (distance from what the site received) in it is the objective's to say. Both parts are unweighted, but where an
    objective has several terms of a kind: there they are summed with the method's own weights.
    """

    total: Tensor
    classification: Tensor
    alignment: Tensor

    @classmethod
    def unaligned(cls, classification: Tensor) -> Self:
        """Of a site that received nothing to align with: the alignment is 0."""
        return cls(classification, classification, torch.zeros_like(classification))
