"""Clusters at a site under ``ckks``: it sends rotated directions of its prototypes, then encrypted terms of the sums.

The coordinator reads nothing of sums, so the number of clusters may be the agreed maximum. The limit: **one site that
helps the coordinator opens all prototypes**, since all have the seed and the key. As for other sums, nothing that
follows from a decryption shows (:mod:`secure_client.methods.encrypted_sums`), but for one thing: the directions of a
round are of features that were trained from the sums of the one before. **Through them a coordinator that returns
sums of its own making reads what is sealed in uploads, some bits in each round** (docs: threat model). With noise the
classes that a site states follow from cells around decrypted centres, and show as much, with noise.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from agreement.aggregation.encrypted_sums import EncryptedClusterSum
from algorithms.fedplcc import GlobalClusters
from crypto.ckks.sums import SummingSite
from crypto.errors import ImplausibleError, MalformedError
from crypto.protection import Payload
from crypto.row_checks import whole_numbers
from protoseal_wire import codec
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.error_containment import opening
from secure_client.methods.clusters import Received
from secure_client.methods.rotated_clusters import DirectedClustered

_log = logging.getLogger("protoseal.site")


class EncryptedClustered(DirectedClustered):
    """DIRECTIONS, then VALUES; the result is the sum."""

    assigned_in = Phase.VALUES

    def step(self, key: PhaseKey, request: bytes) -> bytes:
        """See :class:`secure_client.methods.base.Method`."""
        if key.phase is Phase.DIRECTIONS:
            return self._directions(key, request)
        group = self._assigned(key, request)
        sums = EncryptedClusterSum(self._agreement, len(group.clusters))
        vector = sums.vector(self._part(group, request), self._model(key))
        return codec.encode_payload(SummingSite(self._setup.ckks_key(), sums.form).protect(vector))

    def _check_result(self, key: PhaseKey, payload: Payload) -> None:
        self._check_assigned(key, payload.arrays[0])

    def _take(self, round_number: int, base: bytes, payload: Payload) -> Received:
        """Take a result; of an impossible decryption only its hash."""
        try:
            return super()._take(round_number, base, payload)
        except ImplausibleError as error:
            _log.error("the result of round %d is not used: %s", round_number, error)
            self._trainee.keep_base(round_number, base)
            none = np.zeros(0, dtype=np.int64)
            return Received(
                GlobalClusters(np.zeros((0, self._agreement.dim)), none, np.zeros(0)), np.zeros(0)
            )

    def _read(self, payload: Payload) -> Received:
        with opening("a result"):
            labels = self._labels(payload.arrays[0])
            sums = EncryptedClusterSum(self._agreement, len(labels))
            encrypted = replace(payload, arrays=())
            values = SummingSite(self._setup.ckks_key(), sums.form).unprotect(
                encrypted, self._agreement.max_sites
            )
            return Received(*sums.means(values, labels))

    def _labels(self, classes: NDArray[np.float64]) -> NDArray[np.int64]:
        """Public, so that what is wrong with them may be told."""
        labels = whole_numbers(classes, len(self._agreement.classes))
        if (np.diff(labels) < 0).any():
            raise MalformedError("a result's clusters are not ordered by class")
        if np.bincount(labels).max(initial=0) > self._agreement.clustering.most_clusters:
            raise MalformedError("a result has more clusters of a class than are agreed")
        return labels
