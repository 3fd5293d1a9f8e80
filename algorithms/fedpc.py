"""FedPC at the server: personalisation by clusters of prototypes (Liu et al.; docs/explanation/notation.md; numpy).

Once, before training, sites with similar prototypes form groups (:func:`cluster`), from the inner products of their
concatenated prototypes. In each round the prototypes P_j and the extractors θ_j are averaged over a group's members,
and groups are then mixed by the cosine ρ of their prototypes (equations 5 to 8):

    P_j ← Σ_k ρ_jk P_k        θ_j ← Σ_k ρ_jk θ_k

Each site trains with (1 − γ) · CE + γ · Σ_k ‖P_i^k − P_j^k‖₂ (equation 4, :class:`algorithms.method_losses.FedpcLoss`)
and keeps its own classifier.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from algorithms.averaging import Counts, prototype_means, weighted_mean
from algorithms.gram_matrix import Bool, Float, principal_scores, resolution
from algorithms.kmeans import Labels, compute_centroids, in_order_of_appearance, kmeans

MOST_GROUPS = 10
"""Largest number of groups J that is tried if none is given."""
MOST_COMPONENTS = 10
"""Largest number of principal components in which sites are compared."""
_TIED = 1e-9


def cluster(gram: Float, *, min_holders: int, groups: int | None, seed: int) -> NDArray[np.int64]:
    """Return each site's group, int64 (n,), numbered 0 … J − 1 in the order of first members.

    ``gram`` is (n, n) float64, the inner products of the sites' vectors [K·d], with zeros for classes that a site does
    not have. PCA into min(n − 1, 10) components is followed by K-means into ``groups``. If None, J is the number in
    2 … min(10, ⌊n/min_holders⌋) with the largest silhouette, the smaller J on a tie, or 1 if that range is empty. Then
    each group of fewer than ``min_holders`` sites joins the group with the
    nearest centroid, so that there are at most ``groups``.

    Every group has at least ``min_holders`` sites, except that fewer than 2·min_holders sites form one group; the
    caller must check that this group is large enough. Vectors that float64's inner products cannot distinguish
    (:data:`algorithms.gram_matrix.ROUNDING`) count as equal; if all are equal, there is one group. The same
    arguments give the same groups; ``seed`` is no secret, and only makes K-means repeatable.

    Raises ``ValueError`` for a matrix that is no Gram matrix (not finite, or indefinite beyond rounding) and for
    numbers below 1.
    """
    for name, number in {"min_holders": min_holders, "groups": groups}.items():
        if number is not None and number < 1:
            raise ValueError(f"{name} must be at least 1, not {number}")
    n = len(gram)
    # Scores follow from inner products alone, so the coordinator clusters rotated vectors as it would plain ones.
    points = principal_scores(gram, min(MOST_COMPONENTS, max(n - 1, 0)))
    if n < 2 * min_holders or groups == 1:
        return np.zeros(n, dtype=np.int64)
    equal = resolution(gram)
    if groups is None:
        labels = _choose_by_silhouette(points, min(MOST_GROUPS, n // min_holders), seed, equal)
    else:
        labels = kmeans(points, min(groups, n), seed=seed, resolution=equal).labels
    # Last, since a mean over fewer than min_holders sites would come near to a single site's prototype.
    return merge_small(points, labels, min_holders)


def merge_small(points: Float, labels: Labels, min_holders: int) -> NDArray[np.int64]:
    """Merge groups of fewer than ``min_holders`` sites into others; return groups numbered as in :func:`cluster`.

    ``points`` are (n, D), ``labels`` int64 (n,). In each step the smallest group joins the group with the nearest
    centroid (the first on a tie, in both choices) and centroids are recomputed, until no group is too small or one
    group is left.
    """
    labels = in_order_of_appearance(labels)
    sizes = np.bincount(labels)
    while len(sizes) > 1 and sizes.min() < min_holders:
        small = int(sizes.argmin())
        centroids = compute_centroids(points, labels)
        distances = np.square(centroids - centroids[small]).sum(axis=1)
        distances[small] = np.inf
        labels = in_order_of_appearance(np.where(labels == small, distances.argmin(), labels))
        sizes = np.bincount(labels)
    return labels


def _choose_by_silhouette(points: Float, most: int, seed: int, equal: float) -> Labels:
    """Return the K-means partition into 2 … ``most`` groups with the largest silhouette; one group if all are equal."""
    partitions = [kmeans(points, count, seed=seed, resolution=equal) for count in range(2, most + 1)]
    labels = [partition.labels for partition in partitions if partition.clusters > 1]
    if not labels:
        return np.zeros(len(points), dtype=np.int64)
    scores = [silhouette(points, partition) for partition in labels]
    # The smallest J among equals: rounding must not decide between partitions when a run is repeated.
    return next(
        partition for partition, score in zip(labels, scores, strict=True) if score >= max(scores) - _TIED
    )


def silhouette(points: Float, labels: Labels) -> float:
    """Return the mean over the points (n, D), with labels 0 … J − 1, of (b − a)/max(a, b), in [−1, 1].

    a is a point's mean Euclidean distance to the other points of its cluster, b its smallest mean distance to another
    cluster. A point alone in its cluster counts 0, and so does a point with a = b = 0.

    Raises ``ValueError`` for fewer than two clusters.
    """
    members = np.eye(int(labels.max()) + 1)[labels]
    sizes = members.sum(axis=0)
    if len(sizes) < 2:
        raise ValueError("a silhouette needs two clusters or more")
    sums = np.stack([np.linalg.norm(points - point, axis=1) for point in points]) @ members
    in_cluster = members.astype(np.bool_)
    # A point's distance to itself is 0: the mean is over the other points of its cluster.
    inside = sums[in_cluster] / np.maximum(sizes[labels] - 1.0, 1.0)
    outside = np.where(in_cluster, np.inf, sums / sizes).min(axis=1)
    larger = np.maximum(inside, outside)
    counted = (sizes[labels] > 1) & (larger > 0.0)
    return float(np.where(counted, (outside - inside) / np.where(counted, larger, 1.0), 0.0).mean())


@dataclass(frozen=True)
class Groups:
    """Prototypes and extractors of J groups: ``rows`` (J, K, d), zero where ``has`` (J, K) is False; ``theta`` (J, P).

    Raises ``ValueError`` for shapes that do not fit together.
    """

    rows: Float
    has: Bool
    theta: Float

    def __post_init__(self) -> None:
        if self.rows.ndim != 3 or self.has.shape != self.rows.shape[:2] or self.has.dtype != np.bool_:
            raise ValueError(f"rows {self.rows.shape} and has {self.has.shape} do not fit together")
        if self.theta.ndim != 2 or len(self.theta) != len(self.rows):
            raise ValueError(f"theta {self.theta.shape} does not fit {len(self.rows)} groups")


def means_within_groups(
    sums_rows: Float, holders: Counts, sums_theta: Float, members: Counts, min_holders: int
) -> Groups:
    """Return unweighted means within each group: P_j^k over the members that hold class k, θ_j over all members.

    ``sums_rows`` (J, K, d) and ``sums_theta`` (J, P) are sums over a group's members; ``holders`` (J, K) and
    ``members`` (J,) are the numbers of sites in them. A class with fewer than ``min_holders`` holders in a group is
    withheld in that group. θ_j is a mean over at least min_holders sites too. Both have the limit that
    :func:`algorithms.averaging.prototype_means` states.

    Raises ``ValueError`` for shapes that do not fit, a group of fewer than ``min_holders`` members, a class with
    more holders than members, or min_holders below 1.
    """
    _check_counts(sums_rows, holders, members, min_holders)
    # IntraAgg of algorithm 1: every site counts once, whatever its number of samples.
    rows, has = prototype_means(sums_rows, holders, min_holders)
    return Groups(rows, has, weighted_mean(sums_theta, members))


def similarity_weights(rows: Float) -> NDArray[np.float64]:
    """Return ρ_j^k of equations 5 and 6, (J, J): row j holds each group's weight for group j.

    ``rows`` is (J, K, d); the cosines are between the groups' concatenated vectors [K·d], with zeros for absent
    classes. A cosine below 0 counts as 0 (prototypes are ≥ 0, so only rounding makes one negative). A group without
    prototypes, whose cosines are all 0, gets weight 1 for itself. So each row is not negative and sums to 1; with one
    group it is exactly 1.
    """
    vectors = np.asarray(rows, dtype=np.float64).reshape(len(rows), -1)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = vectors / np.where(norms > 0.0, norms, 1.0)
    # Equation 5. A negative weight would subtract one group's extractor from another's.
    cosines = np.maximum(units @ units.T, 0.0)
    # Also for a group without prototypes, whose row would be divided by 0 otherwise.
    cosines[np.diag_indices_from(cosines)] = 1.0
    return np.asarray(cosines / cosines.sum(axis=1, keepdims=True))  # equation 6: rows sum to 1


def mix_groups(groups: Groups, *, literal: bool = False, tau: float = 0.0) -> Groups:
    """Return each group's prototypes and extractor after equations 7 and 8, with one ρ for both.

    A class is mixed over the groups that have the class, with their weights divided by the weights' sum, so that groups
    without the class do not pull it towards zero; ``literal`` omits the division, as printed. A group without a
    class thus gets the class from other groups. ``has`` is False and the row zero if the weights of the groups that
    have the class sum to at most ``tau``: under encryption a smaller divisor cannot be distinguished from 0. θ is
    mixed over all groups.
    """
    # One ρ for prototypes and extractors: a site's features and its targets then belong to the same mixture.
    weights = similarity_weights(groups.rows)
    shares = weights @ groups.has
    has = np.asarray(shares > tau)
    # Equation 7; rows of absent classes are never read, since they may hold anything.
    mixed = np.einsum("jm,mkd->jkd", weights, np.where(groups.has[:, :, None], groups.rows, 0.0))
    mixed[~has] = 0.0
    divisors = np.ones_like(shares) if literal else np.where(has, shares, 1.0)
    return Groups(mixed / divisors[:, :, None], has, weights @ groups.theta)  # equation 8


def _check_counts(sums_rows: Float, holders: Counts, members: Counts, min_holders: int) -> None:
    if sums_rows.ndim != 3 or holders.shape != sums_rows.shape[:2] or members.shape != holders.shape[:1]:
        raise ValueError(
            f"sums {sums_rows.shape}, holders {holders.shape} and members {members.shape} do not fit together"
        )
    if min_holders < 1:
        raise ValueError("min_holders must be at least 1")
    # θ_j is a mean over all members: a small group's would come near to one site's extractor.
    if (members < min_holders).any():
        raise ValueError(f"a group has fewer than min_holders = {min_holders} members: merge it with another")
    if (holders < 0).any() or (holders > members[:, None]).any():
        raise ValueError("a class's holders must number between 0 and the group's members")
