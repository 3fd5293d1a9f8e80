"""Terms over several prototypes of a class: FedPLCC, FPL and FedPLVM share them (torch).

Every shape here is the batch's and the clusters', and nothing is read back, so that sites' batches can be stacked
(``torch.vmap``). Features are (B, d), labels (B,). A mean over a batch is over B′, its samples whose class has a
cluster, and 0 where there is none.
"""

from __future__ import annotations

import torch
from torch import Tensor

from algorithms.alignment import units
from algorithms.prototypes import Clusters, Targets

SMALLEST_COSINE = 1e-6
"""Cosines below this count as this before a root is taken of them."""


def similarities(features: Tensor, rows: Tensor, alpha: float) -> Tensor:
    """s_α(z, g) = max(cos(z, g), 1e-6)^α for features (B, d) and rows (G, d): (B, G). With α = 1 cos(z, g) itself.

    A root of a negative cosine is no number, and one of 0 has no gradient; features after a ReLU and their means
    have neither, but for vectors that share no channel. Below 1e-6 the gradient is 0; at it, α·10^(6 − 6α) of the
    cosine's. A zero vector has cosine 0 with everything, and no gradient.
    """
    cosines = units(features) @ units(rows).T
    return cosines if alpha == 1.0 else cosines.clamp(min=SMALLEST_COSINE) ** alpha


def same_class(labels: Tensor, clusters: Clusters) -> Tensor:
    """Bool (B, G): the cluster is of the sample's class."""
    return labels.unsqueeze(1) == clusters.labels.unsqueeze(0)


def contrast(similar: Tensor, same: Tensor, weights: Tensor, temperature: float) -> Tensor:
    """−log[ Σ_{g∈G^y} e^{s/τ} W_g / Σ_{g∈G} e^{s/τ} W_g ], the mean over B′.

    ``similar`` and ``same`` are (B, G), ``weights`` (G,), not negative. A cluster of weight 0 is as good as absent.
    Sums run over logarithms, so that no exponential overflows.
    """
    counted = same & (weights > 0)
    scores = similar / temperature + weights.log()
    own = torch.where(counted, scores, -torch.inf)
    return mean_over(scores.logsumexp(dim=1) - own.logsumexp(dim=1), counted.any(dim=1))


def largest(values: Tensor, same: Tensor, share: float) -> Tensor:
    """Σ of the ⌈φ·|G^y|⌉ largest values of each sample's own clusters, (B,); 0 without one.

    ``values`` and ``same`` are (B, G), ``share`` is φ in (0, 1]. φ·|G^y| counts as whole when it is within 1e-9.
    """
    ranked = torch.where(same, values, -torch.inf).sort(dim=1, descending=True).values
    taken = torch.ceil(same.sum(dim=1, dtype=torch.float64) * share - 1e-9)
    ranks = torch.arange(values.shape[1], device=values.device)
    return torch.where(ranks < taken.unsqueeze(1), ranked, 0.0).sum(dim=1)


def class_centres(clusters: Clusters, classes: int) -> Targets:
    """The plain mean of each class's clusters, weights aside: a target for the classes that have any."""
    members = torch.arange(classes, device=clusters.labels.device).unsqueeze(1) == clusters.labels
    numbers = members.sum(dim=1)
    sums = members.to(clusters.rows.dtype) @ clusters.rows
    return Targets(sums / numbers.clamp(min=1).unsqueeze(1), numbers > 0)


def mean_over(values: Tensor, used: Tensor) -> Tensor:
    """Mean of the values (B,) that are used; 0, with gradient 0, when none is."""
    return torch.where(used, values, 0.0).sum() / used.sum().clamp(min=1)


def check_numbers(*, alpha: float, temperature: float, **weights: float) -> None:
    """Raise ``ValueError`` unless 0 < α ≤ 1, τ > 0, and the weights are numbers from 0 up."""
    if not 0.0 < alpha <= 1.0:
        raise ValueError(f"alpha is above 0 and at most 1, not {alpha}")
    if not 0.0 < temperature < float("inf"):
        raise ValueError(f"temperature is a number above 0, not {temperature}")
    for name, weight in weights.items():
        if not 0.0 <= weight < float("inf"):
            raise ValueError(f"{name} is a number from 0 up, not {weight}")
