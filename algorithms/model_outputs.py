"""Two tuples of tensors: a model's outputs for a batch, and the terms of a method's loss on them (torch)."""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor

__all__ = ["Outputs", "Terms"]


class Outputs(NamedTuple):
    """Outputs of a model for a batch: ``features`` (B, d), whose class means are the prototypes; ``logits`` (B, K).

    A model with a decision branch (FedDBP) also gives that branch's features (B, d) and logits (B, K).
    """

    features: Tensor
    logits: Tensor
    decision: Tensor | None = None
    decision_logits: Tensor | None = None


class Terms(NamedTuple):
    """Loss of a batch and its two parts, each a scalar tensor.

    Training minimises ``total``, in which the objective weighs ``classification`` (cross entropy) and ``alignment``
    (distance from the prototypes that the site received). Both parts are unweighted, except that an objective with
    several terms of one kind sums these terms with the method's weights.
    """

    total: Tensor
    classification: Tensor
    alignment: Tensor

    @classmethod
    def unaligned(cls, classification: Tensor) -> Self:
        """Return the terms of a site that received nothing to align with: the alignment is 0."""
        return cls(classification, classification, torch.zeros_like(classification))
