"""Clusters at a site that hides its prototypes from the coordinator and sends only their rotated directions.

The coordinator computes cosines and an assignment from the directions; every site receives and checks the whole
assignment.

Limit: **number and cosines of a site's directions follow from its records through the model.** A coordinator that
returns a model of its own making reads single records by them (docs: threat model, FedPLCC).
"""

from __future__ import annotations

import secrets
from dataclasses import replace

import numpy as np

from algorithms.fedplcc import WITHHELD, Contribution, LocalClusters, contribution, has_direction
from algorithms.gram_matrix import Float
from crypto.keys import KEY_BYTES, derive
from crypto.protection import ProtectedPayload
from crypto.prototype_row_checks import directions
from crypto.rotation import RotatedDirections, rotate
from protoseal_wire import codec
from protoseal_wire.cluster_assignment import broadcast, clusters_of
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.errors import Violation
from secure_client.exchanges.plain_clusters import PlainClusters
from secure_client.exchanges.row_protection import rotation_context
from secure_client.protocol.assignment_checks import checked_assignment
from secure_client.protocol.secure_aggregation import Group

_SUBSTITUTES = "seed of zero prototypes' directions"


class RotatedClusters(PlainClusters):
    """Common part of clustering methods that send DIRECTIONS; the later steps depend on the sums' protection."""

    assigned_in: Phase
    """The step whose request is the assignment."""

    # Values sent

    def _directions(self, key: PhaseKey, request: bytes) -> ProtectedPayload:
        """Answer DIRECTIONS: local prototypes scaled to length 1 and rotated class by class, with their classes.

        A zero prototype gets a substitute for its direction and adds only its count to its cluster.
        """
        local = self._local(self._members.asked(key, request))
        substitutes = self._substitutes(key)[local.labels]
        directed = np.where(has_direction(local.rows)[:, None], local.rows, substitutes)
        context = rotation_context(self._agreement, self._setup, key, key.phase)
        half = RotatedDirections(self._setup.rotation_seed(), context)
        return ProtectedPayload(half, directions(directed), local.labels)

    def _substitutes(self, key: PhaseKey) -> Float:
        """Return the directions (K, d) of zero prototypes, one for each class; zeros for classes that need none.

        They follow from a secret of this site, the round and all of the site's prototypes, so that repeated attempts,
        with whichever participants, show the same cosines.
        """
        seed = self._journal.secret(_SUBSTITUTES)
        if seed is None:
            seed = secrets.token_bytes(KEY_BYTES)
            self._journal.put_secret(_SUBSTITUTES, seed)
        # Attempt 0 stands for all attempts.
        context = rotation_context(self._agreement, self._setup, replace(key, attempt=0), key.phase)
        return substitute_directions(
            seed, context, self._trainee.values.local(), len(self._agreement.classes)
        )

    def _part(self, group: Group, assignment: bytes) -> Contribution:
        """Return this site's part in each cluster of a checked assignment."""
        sites = codec.decode_assignment(assignment, self._limits).sites
        (clusters,) = (each.clusters for each in sites if each.site == self._site)
        asked = group.cohort.holds[group.cohort.index(self._site)][self._trainee.values.local().labels]
        asked[asked] = clusters != WITHHELD
        self._participants.asked = asked
        return contribution(self._local(group), clusters, len(group.clusters))

    # Results received

    def _check_assigned(self, key: PhaseKey, labels: np.ndarray) -> None:
        """Check the number and classes of the clusters, if this site reached the step that assigned them.

        A round whose sums have no prototypes assigns none, and its result repeats earlier clusters.
        """
        request = self._journal.request(replace(key, phase=self.assigned_in))
        if request is None or not self._agreement.sends_rows(key.round):
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


def substitute_directions(seed: bytes, context: bytes, local: LocalClusters, classes: int) -> Float:
    """Return pseudorandom rows (K, d), one for each class with a zero prototype, and zeros for other classes.

    A row is drawn where prototypes of the site can lie: in the channels in which any of them is not zero, if there are
    any, and without negative components unless one of them has some. Limits: the cosines of real prototypes of a class
    differ from those of such rows, so **a coordinator tells almost all zero prototypes from others**; and these cosines
    tell a little about which channels the site's other prototypes use.
    """
    rows = np.zeros((classes, local.rows.shape[1]))
    channels = local.rows.any(axis=0)
    for k in local.labels[~has_direction(local.rows)]:
        key = derive(seed, "zero-prototype", context, int(k).to_bytes(4, "big"))
        (drawn,) = rotate(key, np.eye(1, rows.shape[1]))
        drawn = drawn if (local.rows < 0.0).any() else np.abs(drawn)
        rows[k] = np.where(channels, drawn, 0.0) if channels.any() else drawn
    return rows
