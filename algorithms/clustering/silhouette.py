"""Silhouette score of a partition (Rousseeuw 1987): how much nearer points are to their own cluster (numpy)."""

from __future__ import annotations

import numpy as np

from algorithms.clustering.kmeans import Labels
from algorithms.gram_matrix import Float


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
