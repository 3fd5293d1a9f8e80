"""Contrastive loss terms over several prototypes per class, shared by FedPLCC, FPL and FedPLVM (torch).

Shapes depend only on the batch and the clusters, and no value is read back to Python, so that sites' batches can be
stacked (``torch.vmap``). Features are (B, d), labels (B,). A mean over a batch is over B′, the samples whose class
has a cluster, and 0 if there is no such sample.
"""

from __future__ import annotations

import torch
from torch import Tensor

from algorithms.alignment_loss import units
from algorithms.prototypes import Clusters, Targets

SMALLEST_COSINE = 1e-6
"""Lower bound to which cosines are raised before a root is taken of them."""


def similarities(features: Tensor, rows: Tensor, alpha: float) -> Tensor:
    """Return s_α(z, g) = max(cos(z, g), 1e-6)^α for features (B, d) and rows (G, d): (B, G); for α = 1 the cosine.

    The lower bound is there because a root of a negative cosine is undefined and a root of 0 has no gradient. Features
    after a ReLU, and their means, have no negative cosine, and cosine 0 only if they share no channel. Below 1e-6 the
    gradient is 0; at 1e-6 the gradient is α·10^(6 − 6α) times the cosine's. A zero vector has cosine 0 with every
    vector, and no gradient.
    """
    cosines = units(features) @ units(rows).T
    return cosines if alpha == 1.0 else cosines.clamp(min=SMALLEST_COSINE) ** alpha


def same_class(labels: Tensor, clusters: Clusters) -> Tensor:
    """Return the mask (B, G) that is True if the cluster belongs to the sample's class."""
    return labels.unsqueeze(1) == clusters.labels.unsqueeze(0)


def contrast(similar: Tensor, same: Tensor, weights: Tensor, temperature: float) -> Tensor:
    """Return −log[ Σ_{g∈G^y} e^{s/τ} W_g / Σ_{g∈G} e^{s/τ} W_g ], the mean over B′.

    ``similar`` and ``same`` are (B, G), ``weights`` (G,), not negative. A cluster of weight 0 counts as absent. Sums
    are computed on logarithms, so that no exponential overflows.
    """
    counted = same & (weights > 0)
    scores = similar / temperature + weights.log()
    own = torch.where(counted, scores, -torch.inf)
    return mean_over(scores.logsumexp(dim=1) - own.logsumexp(dim=1), counted.any(dim=1))


def largest(values: Tensor, same: Tensor, share: float) -> Tensor:
    """Sum the ⌈φ·|G^y|⌉ largest values of each sample's own clusters, (B,); 0 for a sample without a cluster.

    ``values`` and ``same`` are (B, G), ``share`` is φ in (0, 1]. φ·|G^y| within 1e-9 of a whole number counts as whole.
    """
    ranked = torch.where(same, values, -torch.inf).sort(dim=1, descending=True).values
    taken = torch.ceil(same.sum(dim=1, dtype=torch.float64) * share - 1e-9)
    ranks = torch.arange(values.shape[1], device=values.device)
    return torch.where(ranks < taken.unsqueeze(1), ranked, 0.0).sum(dim=1)


def class_centres(clusters: Clusters, classes: int) -> Targets:
    """Return the unweighted mean of each class's clusters, as a target for the classes that have a cluster."""
    members = torch.arange(classes, device=clusters.labels.device).unsqueeze(1) == clusters.labels
    numbers = members.sum(dim=1)
    sums = members.to(clusters.rows.dtype) @ clusters.rows
    return Targets(sums / numbers.clamp(min=1).unsqueeze(1), numbers > 0)


def mean_over(values: Tensor, used: Tensor) -> Tensor:
    """Return the mean of the values (B,) that are used; 0, with gradient 0, if none is."""
    return torch.where(used, values, 0.0).sum() / used.sum().clamp(min=1)


def check_numbers(*, alpha: float, temperature: float, **weights: float) -> None:
    """Raise ``ValueError`` unless 0 < α ≤ 1, τ > 0, and the weights are numbers from 0 up."""
    if not 0.0 < alpha <= 1.0:
        raise ValueError(f"alpha must be above 0 and at most 1, not {alpha}")
    if not 0.0 < temperature < float("inf"):
        raise ValueError(f"temperature must be above 0 and finite, not {temperature}")
    for name, weight in weights.items():
        if not 0.0 <= weight < float("inf"):
            raise ValueError(f"{name} must be at least 0 and finite, not {weight}")
