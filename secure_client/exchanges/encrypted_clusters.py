"""Clusters at a site under ``ckks``: the site sends rotated directions of prototypes, then encrypted terms of sums.

The coordinator cannot read the sums, so the number of clusters may be the agreed maximum. Limit: **one site that helps
the coordinator opens all prototypes**, since all sites have the seed and the key. As with other encrypted sums, no
answer depends on a decryption (:mod:`secure_client.exchanges.encrypted_sums`), with one exception: a round's directions
come from features that were trained from the sums of the previous round. **A coordinator that returns forged sums can
read encrypted uploads and records through these directions, some bits in each round** (docs: threat model). With noise,
the classes that a site states depend on cells around decrypted centres and reveal as much, with noise.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from agreement.derived.encrypted_sums import EncryptedClusterSum
from crypto.ckks.sums import SummingSite
from crypto.errors import MalformedError
from crypto.protection import Payload, ProtectedPayload
from crypto.prototype_row_checks import whole_numbers
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.error_containment import hide_decryption_errors
from secure_client.exchanges.plain_clusters import Received
from secure_client.exchanges.rotated_clusters import RotatedClusters
from secure_client.protocol.sent_values import Answer


class EncryptedClusters(RotatedClusters):
    """Clustering method under ``ckks``: DIRECTIONS, then VALUES; the result is the sum."""

    assigned_in = Phase.VALUES

    def step(self, key: PhaseKey, request: bytes) -> Answer:
        """See :class:`secure_client.exchanges.exchange.SiteExchange`."""
        if key.phase is Phase.DIRECTIONS:
            return self._directions(key, request)
        group = self._assigned(key, request)
        sums = EncryptedClusterSum(self._agreement, len(group.clusters))
        vector = sums.vector(self._part(group, request), self._model(key))
        return ProtectedPayload(SummingSite(self._setup.ckks_key(), sums.form), vector)

    def _check_result(self, key: PhaseKey, payload: Payload) -> None:
        self._check_assigned(key, payload.arrays[0])

    def _read(self, payload: Payload) -> Received:
        with hide_decryption_errors("a result"):
            labels = self._labels(payload.arrays[0])
            sums = replace(payload, arrays=())
            ends = len(EncryptedClusterSum(self._agreement, len(labels)).form.answers)
            if self._agreement.row_period == 1 or len(sums.blobs) <= ends:
                return self._opened(sums, labels)
            # The clusters repeat those of an earlier round; the model is this round's.
            last = self._opened(replace(sums, blobs=sums.blobs[:ends]), labels)
            now = self._opened(replace(sums, blobs=sums.blobs[ends:]), labels[:0])
            return last._replace(averaged=now.averaged)

    def _opened(self, encrypted: Payload, labels: NDArray[np.int64]) -> Received:
        sums = EncryptedClusterSum(self._agreement, len(labels))
        site = SummingSite(self._setup.ckks_key(), sums.form)
        return Received(*sums.means(site.unprotect(encrypted, self._agreement.max_sites), labels))

    def _labels(self, classes: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the labels of the sums, which are public, so that an error may describe them."""
        labels = whole_numbers(classes, len(self._agreement.classes))
        if (np.diff(labels) < 0).any():
            raise MalformedError("the result's clusters are not ordered by class")
        if np.bincount(labels).max(initial=0) > self._agreement.clustering.most_clusters:
            raise MalformedError("the result has more clusters of a class than agreed")
        return labels
