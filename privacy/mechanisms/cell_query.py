"""Prototype query over cells: each record belongs to the cell of the nearest public centre of its class.

The centres are those that the previous round published to all sites, so cells are fixed before any record is read. The
nearest centre has the largest cosine with the record, as in the methods' predictions; on a tie the first centre wins.
A record of zeros has cosine 0 with every centre.

Guarantee: a record's cell depends on the record and the centres alone. One record more or less changes one cell, and
the query over cells has the sensitivity of the query over classes, whatever the centres
(:mod:`privacy.mechanisms.prototype_query`). Limit: cells are not FINCH's clusters, which depend on all records of a
class.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from privacy.mechanisms.grid import Float, Ints
from privacy.mechanisms.prototype_query import PrototypeQuery, Sums


@dataclass(frozen=True)
class Cells:
    """Cells with their ``classes`` int64 (M,), in ascending order, and their public ``centres`` (M, d) float64.

    Each of the K classes has at least one cell. The centre of a class's only cell has no meaning. Raises ``ValueError``
    for other shapes or orders, a class without a cell, or a centre that is not finite.
    """

    classes: Ints
    centres: Float = field(repr=False)

    def __post_init__(self) -> None:
        if self.centres.ndim != 2 or self.classes.shape != self.centres.shape[:1] or not len(self.classes):
            raise ValueError(f"cells of {self.classes.shape} and centres of {self.centres.shape} do not fit")
        steps = np.diff(self.classes, prepend=0)
        if self.classes[0] != 0 or ((steps < 0) | (steps > 1)).any():
            raise ValueError("cells must be ordered by class, and each class must have a cell")
        if not np.isfinite(self.centres).all():
            raise ValueError("a cell's centre is not finite")

    @classmethod
    def around(cls, centres: Float, labels: Ints, classes: int) -> Cells:
        """Return one cell for each of ``centres`` (G, d) of classes ``labels`` (G,), and one for each class without.

        Raises ``ValueError`` for a label outside [0, K), K being ``classes``.
        """
        if ((labels < 0) | (labels >= classes)).any():
            raise ValueError(f"the label of a centre must be below {classes}, the number of classes")
        without = np.setdiff1d(np.arange(classes, dtype=np.int64), labels)
        owners = np.concatenate([labels, without])
        rows = np.concatenate([centres, np.zeros((len(without), centres.shape[1]))])
        order = np.argsort(owners, kind="stable")
        return cls(owners[order], rows[order])

    def __len__(self) -> int:
        return len(self.classes)

    def assign(self, features: Float, labels: Ints) -> Ints:
        """Return the cell of each record, int64 (N,), for features (N, d) float64 and labels int64 (N,) in [0, K).

        A record's cell depends on that record alone, to the last digit, whatever the other records are.
        """
        # Classes have different numbers of cells: each record is compared with as many as the largest class has, and
        # cells of another class count as infinitely far.
        sizes = np.bincount(self.classes)
        firsts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        offsets = np.arange(sizes.max())
        cosines = self._products(features, np.minimum(firsts[labels, None] + offsets, len(self) - 1))
        cosines[offsets >= sizes[labels, None]] = -np.inf
        return np.asarray(firsts[labels] + cosines.argmax(axis=1), dtype=np.int64)

    def _products(self, features: Float, candidates: Ints) -> Float:
        """Return inner products (N, J) with the directions of the cells ``candidates`` (N, J): cosines up to length.

        The sum runs column by column, as the grid's norms do and for the same reason.
        """
        products = np.zeros(candidates.shape)
        with np.errstate(all="ignore"):  # values that are not finite are refused by Sums.check
            for values, directions in zip(_scaled(features).T, _directions(self.centres).T, strict=True):
                products += values[:, None] * directions[candidates]
        return products


@dataclass(frozen=True)
class ReleasedCells:
    """Released cells: noisy means ``rows`` (M', d), their classes ``labels`` (M',) in order, noisy ``counts`` (M',).

    ``drawn`` has the noisy sums (M, d) and counts (M,) of all cells as drawn.
    """

    rows: Float
    labels: Ints
    counts: Float
    drawn: tuple[Float, Float]


def release_cells(sums: Sums, cells: Cells) -> ReleasedCells:
    """Return the query's noisy answer for ``sums`` over ``cells``. Each call is a release to be paid for beforehand.

    A cell whose noisy count is below the query's ``min_count`` is left out. A class without any cell left is released
    as one mean of all its cells if their summed count reaches ``min_count``·√cells, since that count has the noise of
    all cells.
    """
    vectors, weights = sums.add_noise()
    # The noise is on every cell, with and without records; what follows is post-processing and costs nothing.
    classes = range(int(cells.classes[-1]) + 1)
    members = [np.flatnonzero(cells.classes == k) for k in classes]
    means = [_class_means(sums.query, vectors[cell], weights[cell]) for cell in members]
    labels = np.repeat(np.arange(len(means), dtype=np.int64), [len(counts) for _, counts in means])
    return ReleasedCells(
        np.concatenate([rows for rows, _ in means]),
        labels,
        np.concatenate([counts for _, counts in means]),
        (np.asarray(vectors * sums.query.grid.step, dtype=np.float64), weights / sums.query.grid.weight),
    )


def _class_means(query: PrototypeQuery, vectors: Ints, weights: Ints) -> tuple[Float, Float]:
    """Return the means and counts of one class, from the noisy integers of its cells."""
    counts = weights / query.grid.weight
    present = counts >= query.min_count
    if not present.any():
        # The sum of m cells has √m times the noise of one, so it takes that much more to be taken for records.
        deviations = np.sqrt(len(counts))
        vectors, counts = vectors.sum(axis=0, keepdims=True), counts.sum(keepdims=True)
        present = counts >= query.min_count * deviations
    return vectors[present] * query.grid.step / counts[present, None], counts[present]


def _scaled(rows: Float) -> Float:
    """Return the rows scaled to a largest magnitude of 1; rows of zeros stay zeros."""
    largest = np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
    return np.asarray(rows / np.where(largest > 0.0, largest, 1.0))


def _directions(rows: Float) -> Float:
    """Return the rows scaled to length 1; rows of zeros stay zeros."""
    scaled = _scaled(rows)
    norms = np.linalg.norm(scaled, axis=1, keepdims=True)
    return np.asarray(scaled / np.where(norms > 0.0, norms, 1.0))
