"""The site's half of PFPL: cross entropy plus alignment with the personalised prototypes (equation 5)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from algorithms.alignment import distance_of_means, mean_square
from algorithms.linear import Float
from algorithms.prototypes import Targets
from algorithms.terms import Outputs, Terms


@dataclass(frozen=True)
class Objective:
    """CE + λ · ℓ_R (equation 5), a batch mean each.

    ``alignment_weight`` is λ ≥ 0. ℓ_R is :func:`algorithms.alignment.mean_square`; ``literal`` takes it as printed
    (equations 6 and 7, :func:`algorithms.alignment.distance_of_means`). Raises ``ValueError`` for a negative or
    non-finite λ.
    """

    alignment_weight: float
    literal: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.alignment_weight < float("inf"):
            raise ValueError(f"alignment_weight is a number from 0 up, not {self.alignment_weight}")

    def __call__(self, outputs: Outputs, labels: Tensor, targets: Targets | None) -> Terms:
        """Terms for a batch with labels (B,); without targets the alignment is 0."""
        classification = functional.cross_entropy(outputs.logits, labels)
        if targets is None:
            return Terms(classification, classification, torch.zeros_like(classification))
        align = distance_of_means if self.literal else mean_square
        aligned = align(outputs.features, labels, targets)
        return Terms(classification + self.alignment_weight * aligned, classification, aligned)


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
