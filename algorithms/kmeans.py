"""K-means by Lloyd's iteration from k-means++ seeds, with many restarts, for small data (numpy).

The result is deterministic: the same points and the same seed give the same partition.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from algorithms.gram_matrix import Float

Labels = NDArray[np.int64]

RESTARTS = 100
_ITERATIONS = 300
_TIED = 1e-9
"""Share of the data's own inertia: partitions whose inertia differs by less are equally good."""


@dataclass(frozen=True)
class Partition:
    """Partition: ``labels`` int64 (n,), 0 … clusters − 1 in the order of first members; ``inertia`` Σ ‖x − x̄‖².

    x̄ is the mean of x's cluster.
    """

    labels: Labels
    inertia: float

    @property
    def clusters(self) -> int:
        """Number of clusters; none is empty."""
        return int(self.labels.max()) + 1


def kmeans(points: Float, clusters: int, *, seed: int, resolution: float = 0.0) -> Partition:
    """Return the best of :data:`RESTARTS` local optima of the inertia, for points (n, D) float64.

    No cluster is empty. There are fewer than ``clusters`` only if fewer points differ by a squared distance above
    ``resolution``. The same arguments give the same partition: among equally good partitions the one with the
    lexicographically smallest labels wins, whichever restart found it. The limit: a local optimum need not be global.

    Raises ``ValueError`` unless 1 ≤ clusters ≤ n and seed ≥ 0.
    """
    if points.ndim != 2 or not 1 <= clusters <= len(points):
        raise ValueError(f"points of shape {points.shape} cannot be split into {clusters} clusters")
    rng = np.random.default_rng([seed, clusters])
    optima = [_optimum(points, points[_seeds(points, clusters, resolution, rng)]) for _ in range(RESTARTS)]
    limit = min(optimum.inertia for optimum in optima) + _TIED * _inertia(
        points, np.zeros(len(points), np.int64)
    )
    # All who repeat a clustering must find the same groups, so rounding of the inertia must not choose among equals.
    best = (optimum for optimum in optima if optimum.inertia <= limit)
    return min(best, key=lambda optimum: optimum.labels.tolist())


def in_order_of_appearance(labels: Labels) -> Labels:
    """Renumber the clusters of a partition from 0 in the order of their first members."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[inverse], dtype=np.int64)


def compute_centroids(points: Float, labels: Labels) -> Float:
    """Return each cluster's mean, (J, D), for labels 0 … J − 1 none of which is empty."""
    members = np.eye(int(labels.max()) + 1)[labels]
    return np.asarray(members.T @ points / members.sum(axis=0)[:, None])


def _seeds(points: Float, clusters: int, resolution: float, rng: np.random.Generator) -> list[int]:
    """Draw indices by k-means++: each next index with probability proportional to D², until no D² is left."""
    chosen = [int(rng.integers(len(points)))]
    nearest = _squared_distances(points, points[chosen])[:, 0]
    while len(chosen) < clusters:
        # Points at rounding's distance from a seed count as equal to it, or a cluster could consist of rounding.
        weights = np.cumsum(np.where(nearest > resolution, nearest, 0.0))
        if not weights[-1] > 0.0:
            break
        chosen.append(int(np.searchsorted(weights, rng.random() * weights[-1], side="right")))
        nearest = np.minimum(nearest, _squared_distances(points, points[chosen[-1:]])[:, 0])
    return chosen


def _optimum(points: Float, centres: Float) -> Partition:
    """Assign to the nearest centre and take means, in turns, until nothing changes; then move single points.

    Moving single points leaves many of the poor optima in which Lloyd's iteration ends (Hartigan and Wong 1979).
    """
    labels = _assign(points, centres)
    # Lloyd's iteration first: it moves all points at once, and single moves finish what it leaves.
    for _ in range(_ITERATIONS):
        before, labels = labels, _assign(points, compute_centroids(points, labels))
        if np.array_equal(before, labels):
            break
    for _ in range(_ITERATIONS):
        if not _move_one(points, labels):
            break
    return Partition(in_order_of_appearance(labels), _inertia(points, labels))


def _move_one(points: Float, labels: Labels) -> bool:
    """Make the single move of a point that lowers the inertia most; return False if no move lowers it.

    Both clusters' means move with the point: leaving a cluster of s points saves s/(s − 1)·‖x − mean‖², joining a
    cluster of s points costs s/(s + 1)·‖x − mean‖². A point that is alone stays, so that no cluster empties.
    """
    sizes, at = np.bincount(labels), np.arange(len(points))
    distances = _squared_distances(points, compute_centroids(points, labels))
    own_size = sizes[labels]
    saved = np.where(own_size > 1, own_size / np.maximum(own_size - 1, 1) * distances[at, labels], 0.0)
    costs = distances * (sizes / (sizes + 1))
    costs[at, labels] = np.inf
    gains = saved[:, None] - costs
    point, target = np.unravel_index(gains.argmax(), gains.shape)
    moves = bool(gains[point, target] > _TIED * distances[at, labels].sum())
    if moves:
        labels[point] = target
    return moves


def _assign(points: Float, centres: Float) -> Labels:
    """Return each point's nearest centre; a centre that is nobody's nearest gets the point farthest from its centre.

    The moved point comes from a cluster of two or more, and the move lowers the inertia by the point's distance.
    """
    distances = _squared_distances(points, centres)
    labels = np.asarray(distances.argmin(axis=1), dtype=np.int64)
    own_distance = distances[np.arange(len(points)), labels]
    for empty in np.setdiff1d(np.arange(len(centres)), labels):
        spare = np.bincount(labels, minlength=len(centres))[labels] > 1
        farthest = int(np.where(spare, own_distance, -1.0).argmax())
        labels[farthest] = empty
        own_distance[farthest] = 0.0
    return labels


def _squared_distances(points: Float, centres: Float) -> Float:
    """Return distances (n, J) from differences, which are exact for near points; inner products would cancel."""
    differences = points[:, None, :] - centres[None, :, :]
    return np.asarray(np.einsum("njd,njd->nj", differences, differences))


def _inertia(points: Float, labels: Labels) -> float:
    return float(np.square(points - compute_centroids(points, labels)[labels]).sum())
