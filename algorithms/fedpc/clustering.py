"""FedPC's clustering of sites into groups, from the inner products of their concatenated prototypes (numpy)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from algorithms.clustering.kmeans import Labels, Partition, in_order_of_appearance, kmeans, means_of
from algorithms.clustering.pca import principal_scores, resolution
from algorithms.gram_matrix import Float

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
    (:data:`algorithms.clustering.pca.ROUNDING`) count as equal; if all are equal, there is one group. The same
    arguments give the same groups; ``seed`` is no secret, and only makes K-means repeatable.

    Raises ``ValueError`` for a matrix that is no Gram matrix (not finite, or indefinite beyond rounding) and for
    numbers below 1.
    """
    _check(min_holders, groups)
    n = len(gram)
    # Scores follow from inner products alone, so the coordinator clusters rotated vectors as it would plain ones.
    points = principal_scores(gram, min(MOST_COMPONENTS, max(n - 1, 0)))
    if n < 2 * min_holders or groups == 1:
        return np.zeros(n, dtype=np.int64)
    equal = resolution(gram)
    if groups is None:
        labels = _by_silhouette(points, min(MOST_GROUPS, n // min_holders), seed, equal)
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
        centroids = means_of(points, labels)
        distances = np.square(centroids - centroids[small]).sum(axis=1)
        distances[small] = np.inf
        labels = in_order_of_appearance(np.where(labels == small, distances.argmin(), labels))
        sizes = np.bincount(labels)
    return labels


def _by_silhouette(points: Float, most: int, seed: int, equal: float) -> Labels:
    """Return the K-means partition into 2 … ``most`` groups with the largest silhouette; one group if all are equal."""
    partitions = [kmeans(points, count, seed=seed, resolution=equal) for count in range(2, most + 1)]
    split: list[Partition] = [partition for partition in partitions if partition.clusters > 1]
    if not split:
        return np.zeros(len(points), dtype=np.int64)
    scores = [silhouette(points, partition.labels) for partition in split]
    # The smallest J among equals: rounding must not decide between partitions when a run is repeated.
    first = next(at for at, score in enumerate(scores) if score >= max(scores) - _TIED)
    return split[first].labels


def _check(min_holders: int, groups: int | None) -> None:
    numbers = {"min_holders": min_holders, "groups": groups}
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise ValueError(f"{name} must be at least 1, not {number}")


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
    own = members.astype(np.bool_)
    inside = sums[own] / np.maximum(sizes[labels] - 1.0, 1.0)
    outside = np.where(own, np.inf, sums / sizes).min(axis=1)
    larger = np.maximum(inside, outside)
    counted = (sizes[labels] > 1) & (larger > 0.0)
    return float(np.where(counted, (outside - inside) / np.where(counted, larger, 1.0), 0.0).mean())
