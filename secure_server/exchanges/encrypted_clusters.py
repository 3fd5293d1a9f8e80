"""Clusters under ``ckks``: rotated directions of prototypes, then encrypted sums over the clusters and of models.

The coordinator sees the cosines between prototypes of a class, how many of them each site has, and nothing of the
sums. Limit: one colluding site can undo the rotation and decrypt, and so reveals everything to the coordinator.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from agreement import Agreement
from agreement.aggregation.encrypted_sums import EncryptedClusterSum
from agreement.payload_forms import result_form
from crypto.ckks.sums import SummingServer
from crypto.protection import Payload
from protoseal_wire.codec import Limits
from protoseal_wire.messages import Phase
from secure_server.exchanges.base import Attempt, Outcome, repeated_sum
from secure_server.exchanges.group_results import for_members
from secure_server.exchanges.rotated_clusters import RotatedClusters
from secure_server.exchanges.single_phase_exchange import SinglePhaseExchange


class EncryptedClusters(SinglePhaseExchange):
    """DIRECTIONS, then VALUES, both from every participant."""

    def __init__(self, agreement: Agreement, limits: Limits) -> None:
        super().__init__(agreement, limits)
        self._directions = RotatedClusters(agreement, limits)

    def request(self, attempt: Attempt, phase: Phase, site: str) -> bytes:
        """Return the list of participants, then the assignment."""
        if phase is Phase.VALUES:
            return self._directions.assignment(attempt).content
        return super().request(attempt, phase, site)

    def check(self, attempt: Attempt, phase: Phase, site: str, content: bytes) -> None:
        """Check an answer, as :meth:`secure_server.exchanges.base.Exchange.check` does."""
        if phase is Phase.DIRECTIONS:
            self._directions.check(attempt, site, content)
        else:
            super().check(attempt, phase, site, content)

    def validate(self, payload: Payload, _site: str, attempt: Attempt) -> None:
        """Raise :class:`crypto.errors.MalformedError` unless the payload can be added; its content is encrypted."""
        self._server(attempt).validate(payload)

    def outcome(self, attempt: Attempt) -> Outcome:
        """Return the sum and the clusters' classes, the same for each participant.

        In a round whose sums have no prototypes, the last sum of clusters precedes the sum.
        """
        (group,) = attempt.groups
        total = self._server(attempt).add(self.payload(attempt, site) for site in group)
        labels = self._directions.assignment(attempt).clusters.labels.astype(np.float64)
        result = Payload(total.scheme, (labels,), total.blobs)
        if self._agreement.repeats_rows(attempt.key.round):
            return for_members(attempt.groups, [result], [result])
        last = repeated_sum(self._agreement, attempt, group, result_form(self._agreement), self._limits)
        if last is None:
            return for_members(attempt.groups, [result])
        # The last clusters' sum, with the models of its round, precedes the sum of this round's models alone.
        return for_members(attempt.groups, [replace(last, blobs=last.blobs + total.blobs)])

    def _server(self, attempt: Attempt) -> SummingServer:
        clusters = len(self._directions.assignment(attempt).clusters.labels)
        return SummingServer(EncryptedClusterSum(self._agreement, clusters).form)
