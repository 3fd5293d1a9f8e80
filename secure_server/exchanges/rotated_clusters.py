"""Clustering of all sites' local prototypes by their directions, rotated so that only inner products can be read.

The coordinator sees the cosines between prototypes of a class, and how many of them each site has.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agreement import Agreement
from agreement.cohorts import group_cohort
from agreement.payload_forms import directions_form
from algorithms.fedplcc import WITHHELD
from algorithms.gram_matrix import Float
from crypto.errors import MalformedError, UnknownSchemeError
from crypto.prototype_row_checks import NORM_SLACK
from crypto.rotation import SCHEME
from protoseal_wire import codec
from protoseal_wire.cluster_assignment import AssignedClusters, clusters_of
from protoseal_wire.codec import Limits
from protoseal_wire.messages import AssignedRows, Assignment, Phase
from secure_server.exchanges.base import Attempt, AttemptCache
from secure_server.exchanges.cluster_assignment import LocalPrototypes, assign_clusters, check_labels


@dataclass(frozen=True)
class EncodedAssignment:
    """Assignment of one attempt, as encoded for every site, and its outcome."""

    content: bytes
    clusters: AssignedClusters


class RotatedClusters:
    """DIRECTIONS step.

    The assignment follows from the stored uploads, and is the same after a restart on the same machine. It is
    computed once for an attempt, in time and memory that grow with the square of a class's prototypes.
    """

    def __init__(self, agreement: Agreement, limits: Limits) -> None:
        self._agreement, self._limits = agreement, limits
        self._assignment = AttemptCache[EncodedAssignment]()

    def assignment(self, attempt: Attempt) -> EncodedAssignment:
        """Return the assignment. Two threads that ask at once may both compute it, with equal results."""
        senders = attempt.survivors[Phase.DIRECTIONS]
        return self._assignment.of((attempt.key, senders), lambda: self._assigned(attempt, senders))

    def _assigned(self, attempt: Attempt, senders: tuple[str, ...]) -> EncodedAssignment:
        local = {site: self._read(attempt.answer(Phase.DIRECTIONS, site)) for site in senders}
        found = assign_clusters(self._agreement, local)
        # Quorums see to it, since directions are never zero.
        if any((clusters == WITHHELD).any() for clusters in found.of_site.values()):
            raise ValueError("a class has directions of fewer than min_holders sites")
        assignment = Assignment(
            tuple(AssignedRows(site, local[site].labels, found.of_site[site]) for site in sorted(local))
        )
        return EncodedAssignment(codec.encode_assignment(assignment), clusters_of(assignment))

    def check(self, attempt: Attempt, site: str, content: bytes) -> None:
        """Raise :class:`MalformedError` unless a site's upload is rotated rows of length 1 and their classes."""
        rows, classes = self._decoded(content)
        cohort = group_cohort(attempt.active, attempt.group_of(site), self._agreement)
        check_labels(classes, cohort.holds[cohort.index(site)], self._agreement.clustering.most_local)
        norms = np.linalg.norm(rows, axis=1)
        if (np.abs(norms - 1.0) > NORM_SLACK).any():
            raise MalformedError("a direction does not have length 1")

    def _read(self, content: bytes) -> LocalPrototypes:
        """Return the rotated rows and classes of an upload that was checked."""
        rows, classes = self._decoded(content)
        return LocalPrototypes(rows, classes.astype(np.int64))

    def _decoded(self, content: bytes) -> tuple[Float, Float]:
        payload = codec.decode_payload(content, self._limits, directions_form(self._agreement))
        if payload.scheme != SCHEME:
            raise UnknownSchemeError(f"expected a payload of scheme {SCHEME!r}, not {payload.scheme!r}")
        rows, classes = payload.arrays
        return rows, classes
