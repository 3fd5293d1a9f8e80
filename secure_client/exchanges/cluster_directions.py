"""DIRECTIONS at a site: rotated directions of its local prototypes, and the checked assignment that follows from all.

The coordinator computes cosines and an assignment to clusters from all sites' directions; every site receives and
checks the whole assignment, and binds the later steps to it.

Limit: **number and cosines of a site's directions follow from its records through the model.** A coordinator that
returns a model of its own making reads single records by them (docs: threat model, FedPLCC).
"""

from __future__ import annotations

import secrets
from dataclasses import replace

import numpy as np

from agreement.derived.payload_shapes import limits_of
from agreement.schema.layout import counted_samples
from algorithms.fedplcc import WITHHELD, Contribution, LocalClusters, contribution, has_direction
from algorithms.gram_matrix import Bool, Float
from crypto.keys import KEY_BYTES, derive
from crypto.protection import ProtectedPayload, directions
from crypto.rotation import RotatedDirections, rotate
from protoseal_wire import codec
from protoseal_wire.cluster_assignment import hash_broadcast, read_clusters
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.errors import Violation
from secure_client.exchanges.exchange import ExchangeParts
from secure_client.exchanges.groups import GroupMembers
from secure_client.exchanges.row_protection import rotation_context
from secure_client.protocol.assignment_checks import check_assignment
from secure_client.protocol.secure_aggregation import Group

_SUBSTITUTES = "seed of zero prototypes' directions"


def sent_clusters(parts: ExchangeParts, group: Group) -> LocalClusters:
    """Return the local prototypes of classes that are active in the group, with counts as they are sent."""
    most = parts.agreement.averaging.most_samples
    return clusters_to_send(parts.learner.values.local(), group.cohort.held_by(parts.site), most)


def clusters_to_send(local: LocalClusters, holds: Bool, most_samples: int) -> LocalClusters:
    """Return the local prototypes of the classes ``holds`` (K,), with counts as they are sent."""
    sent = holds[local.labels]
    counts = counted_samples(local.counts, most_samples)
    return LocalClusters(local.rows[sent], local.labels[sent], counts[sent])


class DirectionsStep:
    """DIRECTIONS of one run at a site, and the assignments that ``assigned_in``, the step after it, brings."""

    def __init__(self, parts: ExchangeParts, members: GroupMembers, assigned_in: Phase) -> None:
        self._parts = parts
        self._agreement = parts.agreement
        self._site = parts.site
        self._members = members
        self._assigned_in = assigned_in
        self._limits = limits_of(parts.agreement)

    def answer(self, key: PhaseKey, request: bytes) -> ProtectedPayload:
        """Answer DIRECTIONS: local prototypes scaled to length 1 and rotated class by class, with their classes.

        A zero prototype gets a substitute for its direction and adds only its count to its cluster.
        """
        local = sent_clusters(self._parts, self._members.verify_listed(key, request))
        substitutes = self._substitutes(key)[local.labels]
        directed = np.where(has_direction(local.rows)[:, None], local.rows, substitutes)
        setup = self._parts.setup
        context = rotation_context(self._agreement, setup, key, key.phase)
        half = RotatedDirections(setup.rotation_seed(), context)
        return ProtectedPayload(half, directions(directed), local.labels)

    def assigned_group(self, key: PhaseKey, assignment: bytes) -> Group:
        """Return the attempt's group with the clusters of its rows, bound to their checked assignment.

        The binding hashes the whole assignment: masks of sites that were told different assignments do not cancel.
        """
        group = self._members.accepted_group(key)
        clusters = check_assignment(
            self._agreement,
            self._site,
            group.cohort,
            sent_clusters(self._parts, group).labels,
            codec.decode_assignment(assignment, self._limits),
        )
        return replace(group, base=hash_broadcast(group.base, assignment), clusters=clusters.holders)

    def part(self, group: Group, assignment: bytes) -> Contribution:
        """Return this site's part in each cluster of a checked assignment."""
        rows = codec.decode_assignment(assignment, self._limits).sites
        (clusters,) = (assigned.clusters for assigned in rows if assigned.site == self._site)
        local = self._parts.learner.values.local()
        requested = group.cohort.held_by(self._site)[local.labels]
        requested[requested] = clusters != WITHHELD
        self._parts.participants.requested_rows = requested
        return contribution(sent_clusters(self._parts, group), clusters, len(group.clusters))

    def assignment(self, key: PhaseKey) -> bytes:
        """Return the assignment of the attempt, as it came; raise :class:`Violation` before it came."""
        request = self._stored_assignment(key)
        if request is None:
            raise Violation(f"{key.phase.name} came before {self._assigned_in.name}")
        return request

    def check_labels(self, key: PhaseKey, labels: np.ndarray) -> None:
        """Check the number and classes of a result's clusters, if this site reached the step that assigned them.

        A round whose sums have no prototypes assigns none, and its result repeats earlier clusters.
        """
        request = self._stored_assignment(key)
        if request is None or not self._agreement.sends_rows(key.round):
            return
        assigned = read_clusters(codec.decode_assignment(request, self._limits))
        if not np.array_equal(labels, assigned.labels):
            raise Violation("the result's clusters differ from the assignment")

    def _stored_assignment(self, key: PhaseKey) -> bytes | None:
        return self._parts.journal.request(replace(key, phase=self._assigned_in))

    def _substitutes(self, key: PhaseKey) -> Float:
        """Return the directions (K, d) of zero prototypes, one for each class; zeros for classes that need none.

        They follow from a secret of this site, the round and all of the site's prototypes, so that repeated attempts,
        with whichever participants, show the same cosines.
        """
        journal = self._parts.journal
        seed = journal.secret(_SUBSTITUTES)
        if seed is None:
            seed = secrets.token_bytes(KEY_BYTES)
            journal.put_secret(_SUBSTITUTES, seed)
        # Attempt 0 stands for all attempts.
        setup = self._parts.setup
        context = rotation_context(self._agreement, setup, replace(key, attempt=0), key.phase)
        local = self._parts.learner.values.local()
        return substitute_directions(seed, context, local, len(self._agreement.classes))


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
