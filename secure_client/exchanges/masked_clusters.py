"""Clusters at a site under ``masked``: the site sends rotated directions of prototypes, then a masked vector.

From the rotated directions the coordinator computes cosines, and from these an assignment. Every site receives the
whole assignment, checks it, and binds its masks to it. The sums are over the prototypes of each cluster, their samples,
and the models. Limits: **one site that helps the coordinator opens everyone's prototypes.** The helper undoes the
rotation; then each cluster's sum gives d linear equations in the norms of its prototypes, whose directions are known.
Only models and sample counts stay hidden by masks, as :mod:`secure_client.protocol.secure_aggregation` describes.
Without a helper, G clusters of a class give G·(G + 1)/2 equations in the norms; a site accepts an assignment only if
that number is below the class's number of prototypes in the round. Zero prototypes are among that number and hide
nothing.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from crypto.pairwise.wire_values import SCHEME as PAIRWISE
from crypto.protection import Payload
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.exchanges.rotated_clusters import RotatedClusters
from secure_client.protocol.secure_aggregation import Group
from secure_client.protocol.sent_values import Answer


class MaskedClusters(RotatedClusters):
    """Clustering method under ``masked``: DIRECTIONS, then the steps of a masked sum."""

    scheme = PAIRWISE
    assigned_in = Phase.SHARES

    def step(self, key: PhaseKey, request: bytes) -> Answer:
        """Answer DIRECTIONS, or one of the masked sum's steps."""
        if key.phase is Phase.DIRECTIONS:
            return self._directions(key, request)
        assignment = request if key.phase is Phase.SHARES else self._asked(key, self.assigned_in)
        return self._masks.step(key, self._assigned(key, assignment), request, partial(self._vector, key))

    def _vector(self, key: PhaseKey, group: Group) -> NDArray[np.float64]:
        """Return this site's part in each cluster, then its model."""
        part = self._part(group, self._asked(key, self.assigned_in))
        own = self._agreement.clustering
        return np.concatenate([own.vector(part.sums, part.counts), self._model(key)])

    def _check_result(self, key: PhaseKey, payload: Payload) -> None:
        self._check_assigned(key, payload.arrays[1])
