"""The prototype query over parts of classes: each record is in the cell of the nearest public centre of its class.

Cells are fixed before any record is looked at, by what all sites were told: the centres that the round before ended
with. Which cell a record is in follows from it and from them alone, so that cells part the records as classes do: one
record more or less changes one cell, and the query over cells is as sensitive as that over classes, whatever the
centres are (:mod:`privacy.mechanisms.prototype_query`). What FINCH would make of a class hangs on all of its records.

Nearest is as the methods predict: by the largest cosine, on a tie the centre that comes first. A record of zeros is at
cosine 0 to all.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from privacy.mechanisms.grid import Float, Ints
from privacy.mechanisms.prototype_query import PrototypeQuery, Sums


@dataclass(frozen=True)
class Cells:
    """``classes`` int64 (M,), in order, are those of the cells; ``centres`` (M, d) float64 are public.

    Each of the K classes has a cell or more. Where it has one alone, that one's centre is of no meaning. Raises
    ``ValueError`` for anything else, or a centre that is not finite.
    """

    classes: Ints
    centres: Float = field(repr=False)

    def __post_init__(self) -> None:
        if self.centres.ndim != 2 or self.classes.shape != self.centres.shape[:1] or not len(self.classes):
            raise ValueError(f"cells of {self.classes.shape} and centres of {self.centres.shape} do not fit")
        steps = np.diff(self.classes, prepend=0)
        if self.classes[0] != 0 or ((steps < 0) | (steps > 1)).any():
            raise ValueError("cells are ordered by class, and no class is without one")
        if not np.isfinite(self.centres).all():
            raise ValueError("a cell's centre is not finite")

    @classmethod
    def around(cls, centres: Float, labels: Ints, classes: int) -> Cells:
        """Of K ``classes``: a cell for each centre (G, d) of its class, ``labels`` (G,), or the whole class as one.

        ``ValueError`` for a label outside [0, K).
        """
        if ((labels < 0) | (labels >= classes)).any():
            raise ValueError(f"a centre is of none of {classes} classes")
        without = np.setdiff1d(np.arange(classes, dtype=np.int64), labels)
        owners = np.concatenate([labels, without])
        rows = np.concatenate([centres, np.zeros((len(without), centres.shape[1]))])
        order = np.argsort(owners, kind="stable")
        return cls(owners[order], rows[order])

    def __len__(self) -> int:
        return len(self.classes)

    def of(self, features: Float, labels: Ints) -> Ints:
        """The cell, int64 (N,), of each record: features (N, d) float64, labels int64 (N,) in [0, K).

        A record's cell depends on that record alone, to the last digit, whatever stands beside it.
        """
        sizes = np.bincount(self.classes)
        firsts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        offsets = np.arange(sizes.max())
        cosines = self._products(features, np.minimum(firsts[labels, None] + offsets, len(self) - 1))
        cosines[offsets >= sizes[labels, None]] = -np.inf
        return np.asarray(firsts[labels] + cosines.argmax(axis=1), dtype=np.int64)

    def _products(self, features: Float, candidates: Ints) -> Float:
        """Inner products (N, J) with the directions of the cells ``candidates`` (N, J): cosines but for lengths.

        Added up a column at a time, as the grid's norms are and for the same reason.
        """
        products = np.zeros(candidates.shape)
        with np.errstate(all="ignore"):  # what is not finite is refused where it is added up
            for values, directions in zip(_scaled(features).T, _directions(self.centres).T, strict=True):
                products += values[:, None] * directions[candidates]
        return products


@dataclass(frozen=True)
class ReleasedCells:
    """Noisy means ``rows`` (M', d) of cells, their classes ``labels`` (M',) in order, and noisy ``counts`` (M',)."""

    rows: Float
    labels: Ints
    counts: Float


def release_cells(sums: Sums, cells: Cells) -> ReleasedCells:
    """The query's answer, ``sums`` being over ``cells``: each call is a release that has to be paid for beforehand.

    A cell whose noisy count is below the query's least is not there. A class of which no cell is there is one mean of
    all its cells, if these have enough together: their count has the noise of all.
    """
    vectors, weights = sums.noised()
    found = [_of_class(sums.query, vectors[own], weights[own]) for own in _by_class(cells)]
    labels = np.repeat(np.arange(len(found), dtype=np.int64), [len(counts) for _, counts in found])
    return ReleasedCells(
        np.concatenate([rows for rows, _ in found]), labels, np.concatenate([counts for _, counts in found])
    )


def _by_class(cells: Cells) -> list[Ints]:
    return [np.flatnonzero(cells.classes == k) for k in range(int(cells.classes[-1]) + 1)]


def _of_class(query: PrototypeQuery, vectors: Ints, weights: Ints) -> tuple[Float, Float]:
    """Means and counts of one class, from the noisy integers of its cells."""
    counts = weights / query.grid.weight
    there = counts >= query.min_count
    if not there.any():
        deviations = np.sqrt(len(counts))
        vectors, counts = vectors.sum(axis=0, keepdims=True), counts.sum(keepdims=True)
        there = counts >= query.min_count * deviations
    return vectors[there] * query.grid.step / counts[there, None], counts[there]


def _scaled(rows: Float) -> Float:
    """Rows of largest magnitude 1, or of zeros."""
    largest = np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
    return np.asarray(rows / np.where(largest > 0.0, largest, 1.0))


def _directions(rows: Float) -> Float:
    """Rows of length 1, or of zeros."""
    scaled = _scaled(rows)
    norms = np.linalg.norm(scaled, axis=1, keepdims=True)
    return np.asarray(scaled / np.where(norms > 0.0, norms, 1.0))
