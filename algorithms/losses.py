"""Terms of training losses: distances from prototypes, and contrast with clusters of prototypes (torch).

Shapes depend only on the batch and the prototypes, and no value is read back to Python, so that sites' batches can be
stacked (``torch.vmap``). Features are (B, d), labels (B,). A mean over a batch is over B′, the samples whose class has
a prototype, and 0 if there is no such sample.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional

from algorithms.prototypes import Clusters, Targets

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


def mean_square(features: Tensor, labels: Tensor, targets: Targets) -> Tensor:
    """Return 1/(|B′|·d) Σ_{b∈B′} ‖z_b − P^{y_b}‖², B′ the samples whose class has a target; 0 if B′ is empty.

    Features are (B, d), labels (B,). The mean, not the sum, over channels keeps the term's scale independent of d.
    """
    # where() in place of a product: rows of absent classes may be NaN, and 0 · NaN is NaN.
    # Not rows[labels]: stacked, some versions of torch would then read numbers of the host, which no CUDA graph can.
    chosen = targets.present.index_select(0, labels).unsqueeze(1)
    differences = torch.where(chosen, features - targets.rows.index_select(0, labels), 0.0)
    return differences.square().sum() / (chosen.sum() * features.shape[1]).clamp(min=1)


def distance_of_means(features: Tensor, labels: Tensor, targets: Targets) -> Tensor:
    """Return Σ_k ‖P_i^k − P^k‖₂ over the batch's classes that have a target; 0 if none has.

    This is FedPC's L_p (equation 3) and PFPL's ℓ_R (equations 6 and 7), both as printed. Features are (B, d), labels
    (B,). P_i^k is the mean of the batch's features of class k, and gets the gradient; P^k is the target. At distance 0
    the gradient is 0. Sums run in the features' own dtype. The limit: a class's mean over a batch's few samples is not
    the class's prototype.
    """
    members = functional.one_hot(labels, len(targets.present))
    counts = members.sum(dim=0)
    means = members.to(features.dtype).T @ features / counts.clamp(min=1).unsqueeze(1)
    used = (counts > 0) & targets.present
    # Rows of absent classes may be NaN, and 0 · NaN would reach the sum: they are replaced before the norm.
    return norms(torch.where(used.unsqueeze(1), means - targets.rows, 0.0)).sum()


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
    # log 0 = −inf takes a cluster of weight 0 out of both sums.
    scores = similar / temperature + weights.log()
    own_class = torch.where(counted, scores, -torch.inf)
    return mean_over(scores.logsumexp(dim=1) - own_class.logsumexp(dim=1), counted.any(dim=1))


def sum_largest(values: Tensor, same: Tensor, share: float) -> Tensor:
    """Sum the ⌈φ·|G^y|⌉ largest values of each sample's own clusters, (B,); 0 for a sample without a cluster.

    ``values`` and ``same`` are (B, G), ``share`` is φ in (0, 1], taken as the nearest fraction with a denominator of at
    most 10⁹.
    """
    # Sorted whole: topk takes one number for all samples, and every class has its own number of clusters.
    ranked = torch.where(same, values, -torch.inf).sort(dim=1, descending=True).values
    # In whole numbers: in floating point 0.28 · 25 is above 7, and its ceiling would be 8.
    part = Fraction(share).limit_denominator(10**9)
    taken = (same.sum(dim=1) * part.numerator + part.denominator - 1) // part.denominator
    ranks = torch.arange(values.shape[1], device=values.device)
    return torch.where(ranks < taken.unsqueeze(1), ranked, 0.0).sum(dim=1)


def class_centres(clusters: Clusters, classes: int) -> Targets:
    """Return the unweighted mean of each class's clusters, as a target for the classes that have a cluster."""
    members = torch.arange(classes, device=clusters.labels.device).unsqueeze(1) == clusters.labels
    numbers = members.sum(dim=1)
    sums = members.to(clusters.rows.dtype) @ clusters.rows
    return Targets(sums / numbers.clamp(min=1).unsqueeze(1), numbers > 0)


def mean_over(values: Tensor, used: Tensor) -> Tensor:
    """Return the mean of the values, of any shape, that are used; 0, with gradient 0, if none is."""
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
