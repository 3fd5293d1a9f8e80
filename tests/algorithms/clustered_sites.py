"""Sites with local prototypes of their own, as FedPLCC clusters them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from algorithms.fedplcc import Contribution, FinchAssignment, LocalClusters, contribution, local_clusters
from algorithms.gram_matrix import Float
from algorithms.kmeans import Labels

SEEDS = range(40)
CLASSES, DIM = 3, 6


def samples(seed: int) -> tuple[Float, Labels]:
    """Return a site's features and labels; one class has a single sample, or none."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES - 1, size=40)
    labels[0] = rng.integers(0, CLASSES)
    return np.maximum(rng.normal(0.4, 1.0, size=(40, DIM)), 0.0) + 0.01, labels


def sites(seed: int) -> list[LocalClusters]:
    """Draw the local prototypes of four to eight sites."""
    rng = np.random.default_rng([seed, 1])
    return [local_clusters(*samples(100 * seed + i), CLASSES) for i in range(rng.integers(4, 9))]


def by_class(federation: Sequence[LocalClusters]) -> tuple[list[Float], list[Labels]]:
    """Return all sites' local prototypes of each class, and the sites that they belong to."""
    rows = [np.concatenate([site.rows[site.labels == k] for site in federation]) for k in range(CLASSES)]
    owners = [
        np.concatenate([np.full(int((site.labels == k).sum()), i) for i, site in enumerate(federation)])
        for k in range(CLASSES)
    ]
    return rows, owners


def grams(rows: Sequence[Float]) -> list[Float]:
    return [np.asarray(each @ each.T) for each in rows]


def of_site(assignment: FinchAssignment, owners: Sequence[Labels], site: int) -> Labels:
    """Return the clusters of one site's prototypes, in the site's own order."""
    parts = [each[who == site] for each, who in zip(assignment.of_row, owners, strict=True)]
    return np.concatenate(parts)


def total_of(
    federation: Sequence[LocalClusters],
    assignment: FinchAssignment,
    owners: Sequence[Labels],
) -> Contribution:
    """Add up each site's own share, which is the work of the protections."""
    clusters = len(assignment.labels)
    shares = [
        contribution(site, of_site(assignment, owners, i), clusters) for i, site in enumerate(federation)
    ]
    return Contribution(*(np.sum([share[field] for share in shares], axis=0) for field in range(3)))
