"""FINCH: clusters from nearest neighbours alone, without a number to choose (Sarfraz et al., CVPR 2019; numpy).

Vectors i and j are linked iff j = κ_i, i = κ_j or κ_i = κ_j, κ_i being i's nearest neighbour by cosine. The connected
components are a first partition; the same on their means gives a coarser one, and so on. Inner products are all that
is needed, so clusters can be found by who has the Gram matrix and no vector: the inner products of the cluster means
are A·G·Aᵀ, A's rows being the means' weights.

Decided here, where print is silent:

- Vectors are scaled to length 1 first, so that a cluster's mean does not hang on its members' lengths, which are not
  compared either. ``literal=True`` takes means of the vectors as they are. A mean is over all *vectors* of a cluster,
  at every level, not over the means of the level below.
- Distances 1 − cos are rounded to 1e-6; among equal ones the lowest index is the nearest. So partitions from
  vectors, from their Gram matrix and from rotated vectors agree, up to distances within rounding (about 1e-15) of the
  middle between two multiples of 1e-6, or of each other's.
- A zero vector has no direction: it stands alone, is nobody's neighbour, and does not count when clusters are counted.
  So does a cluster whose members cancel out, but that it counts. One of a norm of 1e-100 or less is as good as zero.
- There is no early exit: levels follow until one cluster is left or nothing is linked any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from algorithms.kmeans import Labels, in_order_of_appearance
from algorithms.linear import Bool, Float
from algorithms.pca import check_gram

DISTANCE_STEP = 1e-6
"""Distances 1 − cos are compared in multiples of this."""
LEAST_NORM = 1e-100
"""A vector of this norm or less counts as zero: of its square float64 has too few digits for a direction."""
CANCELLED = 1e-12
"""A mean whose squared norm is at or below this share of its members' mean squared norm is rounding, no direction."""
_BLOCK = 1024

_Nearest = Callable[[Labels], Labels]
"""From a partition to the nearest other cluster of each cluster; the cluster itself where it has none."""


def finch(gram: Float, *, literal: bool = False) -> NDArray[np.int64]:
    """Each vector's cluster, int64 (n,), numbered from 0 in the order of first members.

    ``gram`` is (n, n) float64, the vectors' inner products. The coarsest level with at least two clusters of vectors
    that are not zero; the first level if that has one. (The last level is a single cluster almost always, and would
    make of every class its mean.) A single vector is its own cluster; n = 0 gives an empty answer.

    Raises ``ValueError`` for a matrix that is no Gram matrix (:func:`algorithms.pca.check_gram`).
    """
    levels, directed = _of_gram(gram, literal)
    return _placed(_coarsest(levels), directed)


def hierarchy(gram: Float, *, literal: bool = False) -> list[NDArray[np.int64]]:
    """All levels, from the finest; arguments, numbering and errors as :func:`finch`. Never empty."""
    levels, directed = _of_gram(gram, literal)
    return [_placed(level, directed) for level in levels]


def finch_rows(rows: Float, *, literal: bool = False) -> NDArray[np.int64]:
    """:func:`finch` on the vectors themselves, ``rows`` (n, d): O(n²·d) time, and memory for 1024·n cosines.

    For a site's features of one class: seconds for n in the thousands, minutes from about 30 000 on.
    Raises ``ValueError`` unless rows is a matrix of finite numbers.
    """
    levels, directed = _of_rows(rows, literal)
    return _placed(_coarsest(levels), directed)


def hierarchy_rows(rows: Float, *, literal: bool = False) -> list[NDArray[np.int64]]:
    """:func:`hierarchy` on the vectors themselves; see :func:`finch_rows`."""
    levels, directed = _of_rows(rows, literal)
    return [_placed(level, directed) for level in levels]


def cosines_of_means(gram: Float, labels: Labels, *, literal: bool = False) -> tuple[Float, Bool]:
    """Cosines between the means of clusters, (J, J), and which means have a direction at all, (J,).

    ``gram`` is (n, n); ``labels`` are 0 … J − 1, none of them empty. The means are of the vectors scaled to length 1
    (zero vectors stay zero); ``literal``: of the vectors as they are. A mean without direction has cosine 0.
    """
    squares = np.einsum("ii->i", gram)
    if not literal:
        directed = np.asarray(squares > LEAST_NORM**2)
        gram, squares = _scaled(gram, squares, directed), directed.astype(np.float64)
    products = _means(_means(gram, labels).T, labels)
    lengths = np.einsum("ii->i", products)
    has_direction = np.asarray(lengths > CANCELLED * _means(squares, labels))
    return _scaled(products, lengths, has_direction), has_direction


def _of_gram(gram: Float, literal: bool) -> tuple[list[Labels], Bool]:
    """Levels of the vectors that are not zero, and which those are."""
    if gram.shape == (0, 0):
        return [np.zeros(0, dtype=np.int64)], np.zeros(0, dtype=np.bool_)
    check_gram(gram)
    directed = np.asarray(np.einsum("ii->i", gram) > LEAST_NORM**2)
    kept = ((gram + gram.T) / 2.0)[np.ix_(directed, directed)]

    def nearest(labels: Labels) -> Labels:
        cosines, has_direction = cosines_of_means(kept, labels, literal=literal)
        return _nearest(lambda block: cosines[block], has_direction)

    return _levels(int(directed.sum()), nearest), directed


def _of_rows(rows: Float, literal: bool) -> tuple[list[Labels], Bool]:
    """The same from vectors."""
    if rows.ndim != 2 or not np.isfinite(rows).all():
        raise ValueError(f"vectors are the rows of a matrix of finite numbers; got shape {rows.shape}")
    norms = np.linalg.norm(rows, axis=1)
    directed = norms > LEAST_NORM
    kept = np.asarray(rows[directed], dtype=np.float64)
    if not literal:
        kept = kept / norms[directed, None]
    squares = np.square(kept).sum(axis=1)

    def nearest(labels: Labels) -> Labels:
        means = _means(kept, labels)
        lengths = np.square(means).sum(axis=1)
        has_direction = lengths > CANCELLED * _means(squares, labels)
        units = means / np.sqrt(np.where(has_direction, lengths, 1.0))[:, None]
        return _nearest(lambda block: units[block] @ units.T, has_direction)

    return _levels(len(kept), nearest), directed


def _levels(n: int, nearest: _Nearest) -> list[Labels]:
    """Partitions of n vectors, each coarser than the one before; the first one always, even if it links nothing."""
    levels = [_linked(np.arange(n, dtype=np.int64), nearest)]
    while _count(levels[-1]) > 1:
        coarser = _linked(levels[-1], nearest)
        if _count(coarser) == _count(levels[-1]):
            break
        levels.append(coarser)
    return levels


def _linked(labels: Labels, nearest: _Nearest) -> Labels:
    """The partition after each cluster has been linked with its nearest."""
    if not len(labels):
        return labels
    return in_order_of_appearance(_components(nearest(labels))[labels])


def _components(nearest: Labels) -> Labels:
    """Connected components of the links i–κ_i; those between i and j with κ_i = κ_j lead to the same ones.

    Union-find: each one's root is the lowest index of its component.
    """
    parent = list(range(len(nearest)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for i, j in enumerate(nearest.tolist()):
        low, high = sorted((root(i), root(j)))
        parent[high] = low
    return np.array([root(i) for i in range(len(parent))], dtype=np.int64)


def _nearest(cosines: Callable[[slice], Float], has_direction: Bool) -> Labels:
    """κ of each of m vectors, from the rows of their cosine matrix; itself for one without a neighbour."""
    m = len(has_direction)
    found = np.arange(m, dtype=np.int64)
    for start in range(0, m, _BLOCK):
        block = slice(start, min(start + _BLOCK, m))
        steps = np.rint((1.0 - cosines(block)) / DISTANCE_STEP)
        steps[:, ~has_direction] = np.inf
        steps[np.arange(block.stop - start), found[block]] = np.inf
        linked = has_direction[block] & np.isfinite(steps).any(axis=1)
        found[block] = np.where(linked, steps.argmin(axis=1), found[block])
    return found


def _scaled(products: Float, squares: Float, directed: Bool) -> Float:
    """Inner products after the vectors, whose squared norms are given, are scaled to length 1, or to 0."""
    scale = np.where(directed, 1.0 / np.sqrt(np.where(directed, squares, 1.0)), 0.0)
    return np.asarray(products * scale[:, None] * scale[None, :])


def _means(values: Float, labels: Labels) -> Float:
    """Means over the first axis within each of the clusters 0 … J − 1, none of which is empty."""
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
    sizes = np.diff(starts, append=len(labels)).astype(np.float64)
    sums = np.add.reduceat(values[order], starts, axis=0)
    return np.asarray(sums / sizes.reshape(-1, *[1] * (values.ndim - 1)))


def _coarsest(levels: Sequence[Labels]) -> Labels:
    """The last level with two clusters or more; the first where there is none."""
    return next((level for level in reversed(levels) if _count(level) > 1), levels[0])


def _placed(level: Labels, directed: Bool) -> Labels:
    """The partition with the zero vectors back in their places, each a cluster of its own."""
    labels = np.arange(len(directed), dtype=np.int64) + len(level)
    labels[directed] = level
    return in_order_of_appearance(labels)


def _count(labels: Labels) -> int:
    return int(labels.max(initial=-1)) + 1
