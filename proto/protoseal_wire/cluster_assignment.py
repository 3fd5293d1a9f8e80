"""Assignment of all sites' local prototypes (rows) to clusters, as both sides interpret the message.

Every member of a masked sum gets the whole assignment, and its masks are bound to the assignment, so that members with
different assignments get no sum. Limits: only the site that sent a row can check its entry, and nobody checks that the
rows of a cluster are similar.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crypto.errors import MalformedError
from crypto.keys import encode
from protoseal_wire.messages import Assignment

_LABEL = "assigned"


@dataclass(frozen=True)
class AssignedClusters:
    """Clusters of an assignment.

    ``labels`` (G,) are the clusters' classes, ``rows`` (n, G) the number of each site's rows in each cluster, in int64.
    """

    sites: tuple[str, ...]
    labels: NDArray[np.int64]
    rows: NDArray[np.int64]

    @property
    def holders(self) -> tuple[tuple[str, ...], ...]:
        """Sites with rows in each cluster."""
        return tuple(tuple(self.sites[i] for i in np.flatnonzero(counts)) for counts in self.rows.T)

    def members(self, survivors: Sequence[str]) -> NDArray[np.int64]:
        """Return the number of rows of the surviving sites in each cluster, (G,)."""
        staying = np.array([site in survivors for site in self.sites], dtype=np.bool_)
        return np.asarray(self.rows[staying].sum(axis=0), dtype=np.int64)


def read_clusters(assignment: Assignment) -> AssignedClusters:
    """Return the clusters of an assignment.

    Raises :class:`MalformedError` unless clusters are numbered from 0 without a gap, class by class, and each cluster
    has rows of one class.
    """
    classes = np.concatenate([rows.classes for rows in assignment.sites])
    clusters = np.concatenate([rows.clusters for rows in assignment.sites])
    number = int(clusters.max(initial=-1)) + 1
    # The last row of a cluster sets the cluster's label; any other row of another class then differs from the label.
    labels = np.full(number, -1, dtype=np.int64)
    labels[clusters] = classes
    check_numbered(labels)
    check_one_class(labels[clusters], classes)
    counts = [np.bincount(rows.clusters, minlength=number) for rows in assignment.sites]
    return AssignedClusters(tuple(rows.site for rows in assignment.sites), labels, np.stack(counts))


def check_numbered(labels: NDArray[np.int64]) -> None:
    """Raise :class:`MalformedError` for wrong numbering; ``labels`` (G,) are clusters' classes, -1 without rows."""
    if (labels < 0).any():
        raise MalformedError("a cluster of the assignment has no rows")
    if (np.diff(labels) < 0).any():
        raise MalformedError("clusters of the assignment must be numbered class by class")


def check_one_class(labels: NDArray[np.int64], classes: NDArray[np.int64]) -> None:
    """Raise :class:`MalformedError` unless each row's class is the label of the row's cluster."""
    if (labels != classes).any():
        raise MalformedError("a cluster of the assignment has rows of two classes")


def hash_broadcast(base: bytes, content: bytes) -> bytes:
    """Return the SHA-256 of an attempt's broadcast: the hash ``base`` to train from, and the assignment's bytes."""
    return hashlib.sha256(encode(_LABEL, base, content)).digest()
