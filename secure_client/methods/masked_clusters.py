"""Clusters at a site under masks: first the directions of its prototypes, turned; then its part in sums.

From turned directions the coordinator has cosines, and from them an assignment, which every site is told in full and
checks; its masks are bound to it. What is then added up are the prototypes of each cluster, their samples, and models.
The limits: **one site that helps the coordinator opens everyone's prototypes.** It undoes the rotation, and then the
sum of each cluster is d linear equations in the norms of its prototypes, whose directions are known. Only models and
numbers of samples are left under masks, as :mod:`secure_client.exchanges.pairwise` says. Without help, G clusters of a
class give G·(G + 1)/2 equations in the norms; a site goes along with fewer than the class has prototypes, in one round.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from algorithms.fedplcc import contribution
from crypto.pairwise.parts import MaskKeys
from crypto.pairwise.scheme import SCHEME as PAIRWISE
from crypto.protection import Payload
from crypto.rotation import SCHEME as ROTATION
from crypto.rotation import RotationSite
from crypto.rows import directions
from protoseal.config import Agreement
from protoseal_wire import codec
from protoseal_wire.assignment import broadcast, clusters_of
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.errors import Violation
from secure_client.exchanges.assigned import checked_assignment
from secure_client.exchanges.one_step import rotation_context
from secure_client.exchanges.pairwise import Group, MaskedSum
from secure_client.exchanges.participants import Participants
from secure_client.journal import Journal
from secure_client.methods.clusters import Clustered
from secure_client.methods.method import Given
from secure_client.setup import Setup
from secure_client.trainee import Trainee


class MaskedClustered(Clustered):
    """DIRECTIONS, then the steps of a masked sum."""

    scheme = PAIRWISE

    def __init__(
        self,
        agreement: Agreement,
        site: str,
        trainee: Trainee,
        journal: Journal,
        setup: Setup,
        participants: Participants,
        masks: MaskedSum,
    ) -> None:
        super().__init__(agreement, site, trainee, journal, setup, participants)
        self._journal, self._setup, self._masks = journal, setup, masks

    def stated(self, key: PhaseKey) -> tuple[bytes, MaskKeys | None]:
        """With fresh keys for the attempt; see :class:`Clustered`."""
        base, _ = super().stated(key)
        return base, self._masks.fresh_keys(key)

    def step(self, key: PhaseKey, request: bytes) -> bytes:
        """One of the steps."""
        match key.phase:
            case Phase.DIRECTIONS:
                return self._directions(key, self._members.asked(key, request))
            case Phase.SHARES:
                return self._masks.shares(key, self._assigned(key, request))
            case Phase.VALUES:
                group = self._agreed(key)
                return self._masks.values(key, group, request, self._vector(key, group))
            case Phase.SURVIVORS:
                return self._masks.survivors(key, self._agreed(key), request)
            case _:
                return self._masks.unmask(key, self._agreed(key), request)

    def result(self, key: PhaseKey, request: bytes) -> Given:
        """And the attempt's secrets are erased."""
        given = super().result(key, request)
        self._masks.forget(key)
        return given

    def end(self) -> None:
        """The secrets of an attempt that had no result, if there is one."""
        self._masks.forget_last()

    # What is sent

    def _directions(self, key: PhaseKey, group: Group) -> bytes:
        """Local prototypes scaled to length 1, turned class by class, and their classes."""
        local, context = self._local(group), rotation_context(self._agreement, self._setup, key, key.phase)
        turned = RotationSite(self._setup.group_secret(), context).turned(
            directions(local.rows), local.labels
        )
        return codec.encode_payload(Payload(ROTATION, arrays=(turned, local.labels.astype(np.float64))))

    def _vector(self, key: PhaseKey, group: Group) -> NDArray[np.float64]:
        """This site's part in each cluster, then its model."""
        own = self._agreement.clustering
        assignment = codec.decode_assignment(self._asked(key, Phase.SHARES), self._limits)
        (clusters,) = (each.clusters for each in assignment.sites if each.site == self._site)
        part = contribution(
            self._local(group), clusters, len(group.clusters), weighted_centres=own.weighted_centres
        )
        return np.concatenate([own.vector(part.sums, part.counts), self._model(key)])

    # What is taken

    def _check_result(self, key: PhaseKey, payload: Payload) -> None:
        """Of the clusters that this site added to, if it came so far: their number, their classes."""
        request = self._journal.request(replace(key, phase=Phase.SHARES))
        if request is None:
            return
        found = clusters_of(codec.decode_assignment(request, self._limits))
        if not np.array_equal(payload.arrays[1], found.labels):
            raise Violation("a result's clusters are not those of the assignment")

    # Who adds to it

    def _agreed(self, key: PhaseKey) -> Group:
        return self._assigned(key, self._asked(key, Phase.SHARES))

    def _assigned(self, key: PhaseKey, request: bytes) -> Group:
        """The attempt's group with the clusters of its rows, and bound to how these were assigned."""
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
