"""Clusters at a site that hides its prototypes from the coordinator and sends only their rotated directions.

The coordinator computes cosines and an assignment from the directions; every site receives and checks the whole
assignment.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from algorithms.fedplcc import Contribution, contribution, has_direction
from algorithms.gram_matrix import Float
from crypto.protection import ProtectedPayload
from crypto.prototype_row_checks import directions
from crypto.randomness import gaussian
from crypto.rotation import RotatedDirections
from protoseal_wire import codec
from protoseal_wire.cluster_assignment import broadcast, clusters_of
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.errors import Violation
from secure_client.methods.plain_clusters import PlainClusters
from secure_client.protocol.assignment_checks import checked_assignment
from secure_client.protocol.masked_sum import Group
from secure_client.protocol.single_phase_exchange import rotation_context


class RotatedClusters(PlainClusters):
    """Common part of clustering methods that send DIRECTIONS; the later steps depend on the sums' protection."""

    assigned_in: Phase
    """The step whose request is the assignment."""

    # Values sent

    def _directions(self, key: PhaseKey, request: bytes) -> ProtectedPayload:
        """Answer DIRECTIONS: local prototypes scaled to length 1 and rotated class by class, with their classes.

        A zero prototype, at a site that keeps these, gets a random direction and adds only its count to its cluster.
        """
        local = self._local(self._members.asked(key, request))
        context = rotation_context(self._agreement, self._setup, key, key.phase)
        half = RotatedDirections(self._setup.rotation_seed(), context)
        return ProtectedPayload(half, directions(_with_directions(local.rows)), local.labels)

    def _part(self, group: Group, assignment: bytes) -> Contribution:
        """Return this site's part in each cluster of a checked assignment."""
        sites = codec.decode_assignment(assignment, self._limits).sites
        (clusters,) = (each.clusters for each in sites if each.site == self._site)
        weighted = self._agreement.clustering.weighted_centres
        return contribution(self._local(group), clusters, len(group.clusters), weighted_centres=weighted)

    # Results received

    def _check_assigned(self, key: PhaseKey, labels: np.ndarray) -> None:
        """Check the number and classes of the clusters, if this site reached the step that assigned them."""
        request = self._journal.request(replace(key, phase=self.assigned_in))
        if request is None:
            return
        found = clusters_of(codec.decode_assignment(request, self._limits))
        if not np.array_equal(labels, found.labels):
            raise Violation("the result's clusters differ from the assignment")

    # Members of the sum

    def _assigned(self, key: PhaseKey, request: bytes) -> Group:
        """Return the attempt's group with the clusters of its rows, bound to their assignment."""
        group = self._members.agreed(key)
        found = checked_assignment(
            self._agreement,
            self._site,
            group.cohort,
            self._local(group).labels,
            codec.decode_assignment(request, self._limits),
        )
        return replace(group, base=broadcast(group.base, request), clusters=found.holders)

    def _asked(self, key: PhaseKey, phase: Phase) -> bytes:
        request = self._journal.request(replace(key, phase=phase))
        if request is None:
            raise Violation(f"{key.phase.name} came before {phase.name}")
        return request


def _with_directions(rows: Float) -> Float:
    """Return the rows (M, d), with random rows in place of zeros."""
    drawn = gaussian(rows.size, 1.0).reshape(rows.shape)
    return np.where(has_direction(rows)[:, None], rows, drawn)
