"""How far a batch's features are from prototypes: the terms that several methods share (torch).

Every shape here is the batch's, and nothing is read back, so that sites' batches can be stacked (``torch.vmap``).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from algorithms.prototypes import Targets


def mean_square(features: Tensor, labels: Tensor, targets: Targets) -> Tensor:
    """1/(|B′|·d) Σ_{b∈B′} ‖z_b − P^{y_b}‖², B′ the samples whose class has a target; 0 when B′ is empty.

    Features are (B, d), labels (B,). The mean over channels, not their sum, which would make a weight on it
    mean d times as much.
    """
    chosen = targets.present[labels].unsqueeze(1)
    differences = torch.where(chosen, features - targets.rows[labels], 0.0)
    return differences.square().sum() / (chosen.sum() * features.shape[1]).clamp(min=1)


def distance_of_means(features: Tensor, labels: Tensor, targets: Targets) -> Tensor:
    """Σ_k ‖P_i^k − P^k‖₂ over the batch's classes that have a target; 0 when none has.

    FedPC's L_p (equation 3), and PFPL's ℓ_R as printed (equations 6 and 7). Features are (B, d), labels (B,).
    P_i^k is the mean of the batch's features of class k, and gets the gradient; P^k is the target. The norm has no
    gradient at distance 0: there it is taken to be 0. Sums run in the features' own type; one batch gives one value,
    but a class's mean over few samples is not its prototype.
    """
    members = functional.one_hot(labels, len(targets.present))
    counts = members.sum(dim=0)
    means = members.to(features.dtype).T @ features / counts.clamp(min=1).unsqueeze(1)
    used = (counts > 0) & targets.present
    differences = torch.where(used.unsqueeze(1), means - targets.rows, 0.0)
    return norms(differences).sum()


def norms(rows: Tensor) -> Tensor:
    """‖·‖₂ over the last axis, with gradient 0 for a row of zeros, and so for one whose squares underflow.

    A root's own gradient would be infinite there, and 0 · ∞ not a number.
    """
    squares = rows.square().sum(dim=-1)
    positive = squares > 0
    return torch.where(positive, torch.where(positive, squares, 1.0).sqrt(), 0.0)


def units(rows: Tensor) -> Tensor:
    """Each row divided by its norm, (…, d); a row of zeros stays one, with gradient 0."""
    lengths = norms(rows).unsqueeze(-1)
    positive = lengths > 0
    return torch.where(positive, rows / torch.where(positive, lengths, 1.0), 0.0)
