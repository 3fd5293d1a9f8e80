"""Alignment losses: distances of a batch's features, or of their class means, from the target prototypes (torch).

Shapes depend only on the batch, and no value is read back to Python, so that sites' batches can be stacked
(``torch.vmap``).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from algorithms.prototypes import Targets


def mean_square(features: Tensor, labels: Tensor, targets: Targets) -> Tensor:
    """Return 1/(|B′|·d) Σ_{b∈B′} ‖z_b − P^{y_b}‖², B′ the samples whose class has a target; 0 if B′ is empty.

    Features are (B, d), labels (B,). The mean, not the sum, over channels keeps the term's scale independent of d.
    """
    chosen = targets.present[labels].unsqueeze(1)
    differences = torch.where(chosen, features - targets.rows[labels], 0.0)
    return differences.square().sum() / (chosen.sum() * features.shape[1]).clamp(min=1)


def distance_of_means(features: Tensor, labels: Tensor, targets: Targets) -> Tensor:
    """Return Σ_k ‖P_i^k − P^k‖₂ over the batch's classes that have a target; 0 if none has.

    This is FedPC's L_p (equation 3) and PFPL's ℓ_R (equations 6 and 7), both as printed. Features are (B, d), labels
    (B,). P_i^k is the mean of the batch's features of class k, and gets the gradient; P^k is the target. At distance 0
    the gradient is 0. Sums run in the features' own dtype. The limit: a class's mean over a batch's few samples is not
    the class's prototype.
    """
    differences, _ = _differences_of_means(features, labels, targets)
    return norms(differences).sum()


def _differences_of_means(features: Tensor, labels: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    """Return P_i^k − P^k, (K, d), zero for a class without a sample or target, and the other classes, bool (K,)."""
    members = functional.one_hot(labels, len(targets.present))
    counts = members.sum(dim=0)
    means = members.to(features.dtype).T @ features / counts.clamp(min=1).unsqueeze(1)
    used = (counts > 0) & targets.present
    return torch.where(used.unsqueeze(1), means - targets.rows, 0.0), used


def norms(rows: Tensor) -> Tensor:
    """Return ‖·‖₂ over the last axis, with gradient 0 for rows of zeros and for rows whose squares underflow.

    The root's gradient would be infinite there, and 0 · ∞ is not a number.
    """
    squares = rows.square().sum(dim=-1)
    positive = squares > 0
    return torch.where(positive, torch.where(positive, squares, 1.0).sqrt(), 0.0)


def units(rows: Tensor) -> Tensor:
    """Divide each row by its norm, (…, d); a row of zeros stays zero, with gradient 0."""
    lengths = norms(rows).unsqueeze(-1)
    positive = lengths > 0
    return torch.where(positive, rows / torch.where(positive, lengths, 1.0), 0.0)
