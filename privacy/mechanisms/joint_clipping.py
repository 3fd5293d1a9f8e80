"""Joint clipping: the prototype query for units of many records, with the sensitivity of a single record.

The unit is a subject or a whole site. A subject has records of k classes, n_c of class c. The subject adds 1/√k of the
mean of its records to each of these classes, and W/√k to each class's count. A subject of one class therefore counts as
one record, whatever its number of records, and a subject of k classes counts as 1/√k of a record in each class. Among
all weightings of classes that ignore features and keep a record's sensitivity, this weighting has the largest sum of
weights.

*Sensitivity, in whole numbers.* Records are rows x_i of whole steps with ‖x_i‖ ≤ B
(:class:`~privacy.mechanisms.grid.Grid`). With F = ⌊√(2^64/(k·n_c²))⌋ ≤ 2^32/(n_c·√k), in exact arithmetic, class c
gets v·F/2^32 for v = Σ x_i over the subject's records of that class, truncated towards zero coordinate by coordinate,
and its count n_c·W·F/2^32, truncated as well. Truncation shortens, and ‖v‖ ≤ n_c·B. So a subject adds at most

    Σ_c (‖v‖² + (n_c·W)²)·F²/2^64 ≤ Σ_c (n_c²·B² + n_c²·W²)/(k·n_c²) = B² + W²

to the squared norm, over all classes together. That is the bound of one record, so the same noise is enough. A
subject's part depends on its own records alone, so no subject changes the parts of others. For a single record F is
2^32 and nothing is truncated: the result equals the query by records, to the last digit.

No product exceeds 63 bits: |v|·F ≤ n_c·B·2^32/n_c ≤ 2^62, since B and W are at most 2^30.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from privacy.mechanisms.grid import Float, Ints
from privacy.mechanisms.prototype_query import Sums

_FRACTION_BITS = 32
_AT_ONCE = 1 << 20
"""Number of feature values that are processed together."""
_MOST_RECORDS = 2**32


@dataclass(frozen=True, repr=False)
class Parts:
    """Sums of some subjects' records by class, in steps; secret.

    Each of ``rows`` int64 (n, d) sums ``counts`` int64 (n,) records of the subject ``owners`` int64 (n,) and the class
    ``labels`` int64 (n,).
    """

    owners: Ints
    labels: Ints
    rows: Ints
    counts: Ints

    def __repr__(self) -> str:
        return "Parts(<secret>)"

    def take(self, chosen: Ints) -> Parts:
        """Return the parts at the indices ``chosen``."""
        return Parts(self.owners[chosen], self.labels[chosen], self.rows[chosen], self.counts[chosen])

    def merge(self, other: Parts) -> Parts:
        """Return the union of both, with one part for each subject and class."""
        owners = np.concatenate([self.owners, other.owners])
        labels = np.concatenate([self.labels, other.labels])
        rows = np.concatenate([self.rows, other.rows])
        counts = np.concatenate([self.counts, other.counts])
        # Whole numbers add up exactly, so the split of a subject's records into batches does not show in the sums.
        order = np.lexsort((labels, owners))
        owners, labels = owners[order], labels[order]
        starts = np.flatnonzero(np.r_[True, (np.diff(owners) != 0) | (np.diff(labels) != 0)][: len(order)])
        return Parts(
            owners[starts],
            labels[starts],
            np.add.reduceat(rows[order], starts, axis=0),
            np.add.reduceat(counts[order], starts, axis=0),
        )

    def shorten(self, weight: int) -> tuple[Ints, Ints]:
        """Return the bounded vectors int64 (n, d) and counts int64 (n,), each record counting ``weight``.

        The parts must hold all records of each of their subjects.
        """
        _, inverse, classes = np.unique(self.owners, return_inverse=True, return_counts=True)
        kinds, of_kind = np.unique(np.stack([classes[inverse], self.counts]), axis=1, return_inverse=True)
        # F in exact arithmetic, once for each pair (k, n_c) that occurs.
        by_kind = [factor(classes_of_one, records) for classes_of_one, records in kinds.T.tolist()]
        factors = np.array(by_kind, dtype=np.int64)[of_kind.reshape(-1)]
        return _times(self.rows, factors[:, None]), _times(self.counts * weight, factors)


class JointSums:
    """Sums of the query with each subject's contribution bounded as a whole; secret."""

    def __init__(self, sums: Sums) -> None:
        """Start from ``sums`` over no records yet; later additions change ``sums``, subject by subject."""
        self._sums = sums
        none = np.zeros(0, np.int64)
        self._held = Parts(none, none, sums.vectors[:0], none)
        self._records = 0

    def __repr__(self) -> str:
        return "JointSums(<secret>)"

    def add(self, features: Float, labels: Ints, owners: Ints) -> None:
        """Add records as :meth:`Sums.add` does, with ``owners`` int64 (N,) the numbers of the records' subjects.

        Records come in ascending order of these numbers, over all calls: a subject is counted once the next subject
        begins, and cannot return. Raises ``ValueError`` if a subject returns, or for more than 2^32 records; then
        nothing was added.
        """
        self._sums.check(features, labels)
        self._check_order(owners, len(labels))
        self._records += len(labels)
        size = max(1, _AT_ONCE // self._sums.vectors.shape[1])
        for first in range(0, len(labels), size):
            some = slice(first, first + size)
            rows = self._sums.query.grid.clip_records(features[some])
            self._take(Parts(owners[some], labels[some], rows, np.ones(len(rows), np.int64)))

    def close(self) -> Sums:
        """Count the last subject and return the sums of all subjects; no more records may be added."""
        self._count(self._held)
        self._held = self._held.take(np.zeros(0, np.int64))
        return self._sums

    def _take(self, parts: Parts) -> None:
        """Count the complete subjects, and hold back the last subject, which may have further records."""
        # Owners ascend, so only the last one of a batch can have records in the next.
        joined = self._held.merge(parts)
        complete = joined.owners != joined.owners[-1]
        self._count(joined.take(np.flatnonzero(complete)))
        self._held = joined.take(np.flatnonzero(~complete))

    def _count(self, parts: Parts) -> None:
        if not len(parts.owners):
            return
        vectors, weights = parts.shorten(self._sums.query.grid.weight)
        np.add.at(self._sums.vectors, parts.labels, vectors)
        np.add.at(self._sums.weights, parts.labels, weights)

    def _check_order(self, owners: Ints, records: int) -> None:
        if owners.dtype != np.int64 or owners.shape != (records,):
            raise ValueError(
                f"subjects must be int64, one for each record, not {owners.dtype} of {owners.shape}"
            )
        if (np.diff(np.r_[self._held.owners[-1:], owners]) < 0).any():
            raise ValueError("records must be in ascending order of their subjects' numbers")
        if self._records + records > _MOST_RECORDS:
            raise ValueError("sums can hold at most 2^32 records")


def joint_sums(sums: Sums, batches: Iterable[tuple[Float, Ints]], owners: Ints) -> Sums:
    """Add all records of ``batches`` to ``sums`` and return it; ``owners`` (N,) are the subjects, in record order.

    Raises ``ValueError`` unless there are as many owners as records.
    """
    joint, at = JointSums(sums), 0
    for features, labels in batches:
        joint.add(features, labels, owners[at : at + len(labels)])
        at += len(labels)
    if at != len(owners):
        raise ValueError(f"{len(owners)} subjects were given for {at} records")
    return joint.close()


def factor(classes: int, records: int) -> int:
    """Return F = ⌊2^32/(n·√k)⌋, exactly, for a subject's n ``records`` of one class and its number k of ``classes``."""
    return math.isqrt((1 << 2 * _FRACTION_BITS) // (classes * records**2))


def _times(values: Ints, factors: Ints) -> Ints:
    """Return values·factors/2^32, truncated towards zero."""
    shortened: Ints = np.sign(values) * (np.abs(values) * factors >> _FRACTION_BITS)
    return shortened
