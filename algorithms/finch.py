"""FINCH: clustering by first neighbours, without a number of clusters to choose (Sarfraz et al., CVPR 2019; numpy).

Vectors i and j are linked iff j = κ_i, i = κ_j or κ_i = κ_j, where κ_i is i's nearest neighbour by cosine. The
connected components are the first partition; the same step on the components' means gives the next, coarser one.
FINCH needs only inner products, so a party can run it on the Gram matrix G without the vectors: the inner products of
cluster means are A·G·Aᵀ, where A's rows are the means' weights.

Where the paper is silent, this module decides:

- Vectors are scaled to length 1 first, so that a cluster's mean does not depend on its members' lengths.
  ``literal=True`` takes means of the vectors as they are. A mean is over all *vectors* of a cluster, at every level,
  not over the means of the level below.
- Distances 1 − cos are rounded to 1e-6; on a tie the lowest index is the nearest. So partitions from vectors, from
  the vectors' Gram matrix and from rotated vectors agree. The limit: a distance within rounding (about 1e-15) of the
  middle between two multiples of 1e-6 may be rounded either way.
- A zero vector (norm at most 1e-100) has no direction: the vector is a cluster of its own, is nobody's neighbour, and
  is not counted as a cluster. A cluster whose members cancel out is nobody's neighbour either, but is counted.
- There is no early exit: levels follow until one cluster is left or a level links nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from algorithms.gram_matrix import Bool, Float, check_gram
from algorithms.kmeans import Labels, in_order_of_appearance

DISTANCE_STEP = 1e-6
"""Resolution of distances 1 − cos: distances are compared in multiples of this step."""
LEAST_NORM = 1e-100
"""Largest norm of a vector that counts as zero: its square has too few digits in float64 for a direction."""
CANCELLED = 1e-12
"""Share of its members' mean squared norm at or below which a mean's squared norm is rounding, without a direction."""
_BLOCK = 1024

_Nearest = Callable[[Labels], Labels]
"""Map from a partition to each cluster's nearest other cluster, or to the cluster itself if there is none."""


def finch(gram: Float, *, literal: bool = False) -> NDArray[np.int64]:
    """Return each vector's cluster, int64 (n,), numbered from 0 in the order of first members.

    ``gram`` is (n, n) float64, the vectors' inner products. The partition is the coarsest level with at least two
    clusters of nonzero vectors, or the first level if no level has two. (The last level is almost always a single
    cluster, which would reduce every class to its mean.) A single vector is its own cluster; n = 0 gives an empty
    array.

    Raises ``ValueError`` for a matrix that is no Gram matrix (:func:`algorithms.gram_matrix.check_gram`).
    """
    return _choose_level(*_levels_from_gram(gram, literal))


def finch_rows(rows: Float, *, literal: bool = False) -> NDArray[np.int64]:
    """Return :func:`finch` of the vectors ``rows`` (n, d), in O(n²·d) time and memory for 1024·n cosines.

    On a site's features of one class this takes seconds for n in the thousands, minutes from about 30 000 on.
    Raises ``ValueError`` unless rows is a matrix of finite numbers.
    """
    return _choose_level(*_levels_from_rows(rows, literal))


def cosines_of_means(gram: Float, labels: Labels, *, literal: bool = False) -> tuple[Float, Bool]:
    """Return the cosines between the means of clusters, (J, J), and a mask of the means with a direction, (J,).

    ``gram`` is (n, n); ``labels`` are 0 … J − 1, none of them empty. The means are of the vectors scaled to length 1
    (zero vectors stay zero), or with ``literal`` of the vectors as they are. A mean without direction has cosine 0.
    """
    squares = np.einsum("ii->i", gram)
    if not literal:
        directed = np.asarray(squares > LEAST_NORM**2)
        gram, squares = _scale_products(gram, squares, directed), directed.astype(np.float64)
    # A·G·Aᵀ: means over the columns of the means over the rows.
    products = _means(_means(gram, labels).T, labels)
    lengths = np.einsum("ii->i", products)
    has_direction = np.asarray(lengths > CANCELLED * _means(squares, labels))
    return _scale_products(products, lengths, has_direction), has_direction


def _levels_from_gram(gram: Float, literal: bool) -> tuple[list[Labels], Bool]:
    """Return the levels of the nonzero vectors, and the mask of these vectors."""
    if gram.shape == (0, 0):
        return [np.zeros(0, dtype=np.int64)], np.zeros(0, dtype=np.bool_)
    check_gram(gram)
    directed = np.asarray(np.einsum("ii->i", gram) > LEAST_NORM**2)
    # Made symmetric: the two halves may differ by rounding, and a pair has one distance.
    products = ((gram + gram.T) / 2.0)[np.ix_(directed, directed)]

    def nearest(labels: Labels) -> Labels:
        cosines, has_direction = cosines_of_means(products, labels, literal=literal)
        return _find_nearest(lambda block: cosines[block], has_direction)

    return _levels(int(directed.sum()), nearest), directed


def _levels_from_rows(rows: Float, literal: bool) -> tuple[list[Labels], Bool]:
    """Return the levels of the nonzero vectors, and the mask of these vectors."""
    if rows.ndim != 2 or not np.isfinite(rows).all():
        raise ValueError(f"vectors must be the rows of a matrix of finite numbers; got shape {rows.shape}")
    norms = np.linalg.norm(rows, axis=1)
    directed = norms > LEAST_NORM
    vectors = np.asarray(rows[directed], dtype=np.float64)
    if not literal:
        vectors = vectors / norms[directed, None]
    squares = np.square(vectors).sum(axis=1)

    def nearest(labels: Labels) -> Labels:
        means = _means(vectors, labels)
        lengths = np.square(means).sum(axis=1)
        has_direction = lengths > CANCELLED * _means(squares, labels)
        units = means / np.sqrt(np.where(has_direction, lengths, 1.0))[:, None]
        return _find_nearest(lambda block: units[block] @ units.T, has_direction)

    return _levels(len(vectors), nearest), directed


def _levels(n: int, nearest: _Nearest) -> list[Labels]:
    """Return partitions of n vectors, each coarser than the one before; the first is there even if it links nothing."""
    # Each level links the means of the level before, until one cluster is left or nothing is linked any more.
    levels = [_link_clusters(np.arange(n, dtype=np.int64), nearest)]
    while _count(levels[-1]) > 1:
        coarser = _link_clusters(levels[-1], nearest)
        if _count(coarser) == _count(levels[-1]):
            break
        levels.append(coarser)
    return levels


def _link_clusters(labels: Labels, nearest: _Nearest) -> Labels:
    """Return the partition after each cluster has been linked with its nearest."""
    if not len(labels):
        return labels
    return in_order_of_appearance(_connect(nearest(labels))[labels])


def _connect(nearest: Labels) -> Labels:
    """Return the connected components of the links i–κ_i, which also connect i and j with κ_i = κ_j.

    The algorithm is union-find: the root of a component is its lowest index.
    """
    parent = list(range(len(nearest)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    # Links between two vectors with the same neighbour (κ_i = κ_j) add no component, so the edges i–κ_i are enough.
    for i, j in enumerate(nearest.tolist()):
        low, high = sorted((root(i), root(j)))
        parent[high] = low
    return np.array([root(i) for i in range(len(parent))], dtype=np.int64)


def _find_nearest(cosines: Callable[[slice], Float], has_direction: Bool) -> Labels:
    """Return κ of each of m vectors from the rows of their cosine matrix; a vector without a neighbour is its own."""
    m = len(has_direction)
    nearest = np.arange(m, dtype=np.int64)
    for start in range(0, m, _BLOCK):
        block = slice(start, min(start + _BLOCK, m))
        # Rounded distances: partitions from vectors, from their Gram matrix and from rotated vectors must be the same.
        steps = np.rint((1.0 - cosines(block)) / DISTANCE_STEP)
        # Nobody links to a vector without direction, nor to itself.
        steps[:, ~has_direction] = np.inf
        steps[np.arange(block.stop - start), nearest[block]] = np.inf
        linked = has_direction[block] & np.isfinite(steps).any(axis=1)
        nearest[block] = np.where(linked, steps.argmin(axis=1), nearest[block])
    return nearest


def _scale_products(products: Float, squares: Float, directed: Bool) -> Float:
    """Return the inner products after scaling vectors of norms² ``squares`` to length 1, or to 0 if not directed."""
    scale = np.where(directed, 1.0 / np.sqrt(np.where(directed, squares, 1.0)), 0.0)
    return np.asarray(products * scale[:, None] * scale[None, :])


def _means(values: Float, labels: Labels) -> Float:
    """Return the means over the first axis within each of the clusters 0 … J − 1, none of which is empty."""
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
    sizes = np.diff(starts, append=len(labels)).astype(np.float64)
    sums = np.add.reduceat(values[order], starts, axis=0)
    return np.asarray(sums / sizes.reshape(-1, *[1] * (values.ndim - 1)))


def _choose_level(levels: Sequence[Labels], directed: Bool) -> Labels:
    """Return the last level with two clusters or more, or the first, with each zero vector as a cluster of its own."""
    level = next((level for level in reversed(levels) if _count(level) > 1), levels[0])
    labels = np.arange(len(directed), dtype=np.int64) + len(level)
    labels[directed] = level
    return in_order_of_appearance(labels)


def _count(labels: Labels) -> int:
    return int(labels.max(initial=-1)) + 1
