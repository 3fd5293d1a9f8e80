"""Clusters at a site under ``masked``: the site sends rotated directions of prototypes, then a masked vector.

From the rotated directions the coordinator computes cosines, and from these an assignment. Every site receives the
whole assignment, checks it, and binds its masks to it. The sums are over the prototypes of each cluster, their samples,
and the models. Limits: **one site that helps the coordinator opens everyone's prototypes.** The helper undoes the
rotation; then each cluster's sum gives d linear equations in the norms of its prototypes, whose directions are known.
Only models and sample counts stay hidden by masks, as :mod:`secure_client.protocol.masked_sum` describes. Without a
helper, G clusters of a class give G·(G + 1)/2 equations in the norms; a site accepts an assignment only if that number
is below the class's number of prototypes in the round. Zero prototypes are among that number and hide nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crypto.pairwise.scheme import SCHEME as PAIRWISE
from crypto.protection import Payload
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.methods.rotated_clusters import RotatedClusters
from secure_client.protocol.masked_sum import Group
from secure_client.protocol.sent_values import Answer


class MaskedClusters(RotatedClusters):
    """Clustering method under ``masked``: DIRECTIONS, then the steps of a masked sum."""

    scheme = PAIRWISE
    assigned_in = Phase.SHARES

    def step(self, key: PhaseKey, request: bytes) -> Answer:
        """Answer one of the steps."""
        match key.phase:
            case Phase.DIRECTIONS:
                return self._directions(key, request)
            case Phase.SHARES:
                return self._masks.shares(key, self._assigned(key, request))
            case Phase.VALUES:
                group = self._agreed(key)
                return self._masks.values(key, group, request, self._vector(key, group))
            case Phase.SURVIVORS:
                return self._masks.survivors(key, self._agreed(key), request)
            case Phase.UNMASK:
                return self._masks.unmask(key, self._agreed(key), request)
            case _:
                raise ValueError(f"a masked sum over clusters has no step {key.phase.name}")

    def _vector(self, key: PhaseKey, group: Group) -> NDArray[np.float64]:
        """Return this site's part in each cluster, then its model."""
        part = self._part(group, self._asked(key, self.assigned_in))
        own = self._agreement.clustering
        return np.concatenate([own.vector(part.sums, part.counts), self._model(key)])

    def _check_result(self, key: PhaseKey, payload: Payload) -> None:
        self._check_assigned(key, payload.arrays[1])

    def _agreed(self, key: PhaseKey) -> Group:
        return self._assigned(key, self._asked(key, self.assigned_in))
