"""Which local prototypes of which sites are in which cluster: what one assignment says, read alike on both sides.

Every member of a masked sum is told the whole of it, and its masks are bound to it, so that members who are told
different ones get no sum. The limits: whether a row is as its site sent it, only that site can tell; and whether the
rows of a cluster are alike, nobody checks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crypto.encoding import encode
from crypto.errors import MalformedError
from protoseal_wire.messages import Assignment

_LABEL = "assigned"


@dataclass(frozen=True)
class AssignedClusters:
    """G clusters: their classes ``labels`` int64 (G,), and how many rows of each site are in each, int64 (n, G)."""

    sites: tuple[str, ...]
    labels: NDArray[np.int64]
    rows: NDArray[np.int64]

    @property
    def holders(self) -> tuple[tuple[str, ...], ...]:
        """The sites that each cluster has rows of."""
        return tuple(tuple(self.sites[i] for i in np.flatnonzero(of_cluster)) for of_cluster in self.rows.T)

    def members(self, survivors: Sequence[str]) -> NDArray[np.int64]:
        """How many rows of these sites are in each cluster, (G,)."""
        staying = np.array([site in survivors for site in self.sites], dtype=np.bool_)
        return np.asarray(self.rows[staying].sum(axis=0), dtype=np.int64)


def clusters_of(assignment: Assignment) -> AssignedClusters:
    """What the assignment comes to.

    :class:`MalformedError` unless clusters are numbered from 0 without a gap, class by class, and each is of rows of
    one class.
    """
    classes = np.concatenate([each.classes for each in assignment.sites])
    clusters = np.concatenate([each.clusters for each in assignment.sites])
    number = int(clusters.max(initial=-1)) + 1
    first = np.full(number, -1, dtype=np.int64)
    first[clusters] = classes
    check_numbered(first)
    check_one_class(first[clusters], classes)
    rows = [np.bincount(each.clusters, minlength=number) for each in assignment.sites]
    return AssignedClusters(tuple(each.site for each in assignment.sites), first, np.stack(rows))


def check_numbered(labels: NDArray[np.int64]) -> None:
    """Of the classes (G,) of the clusters, -1 for one without rows: see :func:`clusters_of`, here and below."""
    if (labels < 0).any():
        raise MalformedError("a cluster of the assignment has no rows")
    if (np.diff(labels) < 0).any():
        raise MalformedError("clusters of the assignment are not numbered class by class")


def check_one_class(of_cluster: NDArray[np.int64], classes: NDArray[np.int64]) -> None:
    """Of each row, the class of its cluster and its own."""
    if (of_cluster != classes).any():
        raise MalformedError("a cluster of the assignment has rows of two classes")


def broadcast(base: bytes, content: bytes) -> bytes:
    """SHA-256 over what every member is sent in an attempt: the ``base`` to train from, and the assignment's bytes."""
    return hashlib.sha256(encode(_LABEL, base, content)).digest()
