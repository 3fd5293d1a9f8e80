"""The site's half of FedPC: cross entropy and the distance of class means from the group's (equations 3 and 4)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from algorithms.prototypes import Targets
from algorithms.terms import Terms


@dataclass(frozen=True)
class Objective:
    """(1 − γ) · CE + γ · L_p (equation 4), CE a batch mean and L_p as in :func:`alignment`.

    ``alignment`` is γ, 0.5 in print, where both terms weigh the same. With γ = 0 it is cross entropy alone.
    Raises ``ValueError`` unless 0 ≤ γ < 1.
    """

    alignment: float = 0.5

    def __post_init__(self) -> None:
        if not 0.0 <= self.alignment < 1.0:
            raise ValueError(f"alignment is from 0 up and below 1, not {self.alignment}")

    def __call__(self, features: Tensor, logits: Tensor, labels: Tensor, targets: Targets | None) -> Terms:
        """Terms for features (B, d), logits (B, K) and labels (B,).

        Without a target for any class, as in the first round, the total is cross entropy, with weight 1; a
        batch none of whose classes has a target keeps the weight 1 − γ that the other batches have.
        """
        classification = functional.cross_entropy(logits, labels)
        if targets is None:
            return Terms(classification, classification, torch.zeros_like(classification))
        aligned = alignment(features, labels, targets)
        weight = self.alignment * targets.present.any().to(classification.dtype)
        return Terms((1.0 - weight) * classification + weight * aligned, classification, aligned)


def alignment(features: Tensor, labels: Tensor, targets: Targets) -> Tensor:
    """L_p = Σ_k ‖P_i^k − P_j^k‖₂ over the batch's classes that have a target; 0 when none has.

    Features are (B, d), labels (B,). P_i^k is the mean of the batch's features of class k, and gets the
    gradient; P_j^k the group's prototype. The norm has no gradient at distance 0: there it is taken to be 0.
    Sums run in the features' own type; one batch gives one value, but a class's mean over few samples is not
    its prototype.
    """
    members = functional.one_hot(labels, len(targets.present))
    counts = members.sum(dim=0)
    means = members.to(features.dtype).T @ features / counts.clamp(min=1).unsqueeze(1)
    used = (counts > 0) & targets.present
    differences = torch.where(used.unsqueeze(1), means - targets.rows, 0.0)
    return _norms(differences).sum()


def _norms(rows: Tensor) -> Tensor:
    """‖·‖₂ of each row, with gradient 0 for a row of zeros: a root's own would be infinite, and 0 · ∞ not a number.

    A row whose squares underflow counts as one of zeros.
    """
    squares = rows.square().sum(dim=1)
    positive = squares > 0
    return torch.where(positive, torch.where(positive, squares, 1.0).sqrt(), 0.0)
