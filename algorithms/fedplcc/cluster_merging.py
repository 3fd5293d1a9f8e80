"""Merging of clusters of prototypes, one at a time, until each has enough sites and there are few enough."""

from __future__ import annotations

from math import isqrt

import numpy as np
from numpy.typing import NDArray

from algorithms.clustering.finch import CANCELLED, DISTANCE_STEP, LEAST_NORM
from algorithms.clustering.kmeans import Labels, in_order_of_appearance
from algorithms.gram_matrix import Float


def most_norm_hiding(rows: int) -> int:
    """Return the largest number of clusters G, at least 1, with G·(G + 1)/2 < ``rows``, a class's prototypes.

    The sums of G clusters have G·(G + 1)/2 inner products, each an equation in the prototypes' unknown norms. The
    limit: fewer equations than unknowns do not prove that nothing leaks, least of all over several rounds.
    """
    return max((isqrt(max(8 * rows - 7, 0)) - 1) // 2, 1)


class Merging:
    """Clusters of one class, numbered in the order of their first members, that are merged step by step.

    Only sums over clusters are kept, so that merging two takes O(J) time for J clusters.
    """

    def __init__(self, gram: Float, labels: Labels, sites: Labels, *, literal: bool) -> None:
        """Take the (m, m) inner products, the clusters 0 … J − 1 and the sites of m prototypes, both int64 (m,).

        With ``literal``, means are of vectors as they are, not of their directions
        (:mod:`algorithms.clustering.finch`). A zero prototype is in a cluster, but does not make its site one of the
        cluster's sites.
        """
        squares = np.einsum("ii->i", gram)
        directed = squares > LEAST_NORM**2
        scale = np.where(directed, 1.0 if literal else 1.0 / np.sqrt(np.where(directed, squares, 1.0)), 0.0)
        number = int(labels.max(initial=-1)) + 1
        self._labels, self._alive = labels, np.ones(number, dtype=np.bool_)
        self._products = _cluster_sums(
            _cluster_sums(gram * scale[:, None] * scale[None, :], labels, number).T, labels, number
        )
        self._squares = _cluster_sums(squares * scale**2, labels, number)
        self._sizes = np.bincount(labels, minlength=number).astype(np.float64)
        self._held = np.zeros((number, int(sites.max(initial=-1)) + 1), dtype=np.bool_)
        self._held[labels[directed], sites[directed]] = True

    def merge(self, min_holders: int, most: int) -> tuple[NDArray[np.int64], list[int]]:
        """Return each prototype's cluster, and each cluster's number of sites, after merging.

        The cluster with the fewest sites (the first on a tie) joins the cluster whose mean is nearest by cosine, with
        distances compared as in FINCH. Merging ends when each cluster has ``min_holders`` sites or more and there are
        at most ``most`` clusters, or when one cluster is left.
        """
        holders = self._held.sum(axis=1)
        left = len(holders)
        while left > 1 and (left > most or holders[self._alive].min() < min_holders):
            kept = self._join(int(np.where(self._alive, holders, np.iinfo(np.int64).max).argmin()))
            holders[kept] = self._held[kept].sum()
            left -= 1
        return in_order_of_appearance(self._labels), holders[self._alive].tolist()

    def _join(self, small: int) -> int:
        """Merge ``small`` with its nearest cluster and return their number, the lower one, so that the order stays."""
        kept, gone = sorted((small, self._nearest(small)))
        self._products[kept] += self._products[gone]
        self._products[:, kept] += self._products[:, gone]
        for each in (self._squares, self._sizes, self._held):
            each[kept] += each[gone]
        self._labels = np.where(self._labels == gone, kept, self._labels)
        self._alive[gone] = False
        return kept

    def _nearest(self, small: int) -> int:
        lengths = np.einsum("ii->i", self._products)
        directed = lengths > CANCELLED * self._sizes * self._squares
        scale = np.where(directed, 1.0 / np.sqrt(np.where(directed, lengths, 1.0)), 0.0)
        steps = np.rint((1.0 - self._products[small] * scale[small] * scale) / DISTANCE_STEP)
        steps[~self._alive] = np.inf
        steps[small] = np.inf
        return int(steps.argmin())


def _cluster_sums(values: Float, labels: Labels, number: int) -> Float:
    """Return sums over the first axis within each of ``number`` clusters."""
    sums = np.zeros((number, *values.shape[1:]))
    np.add.at(sums, labels, values)
    return sums
