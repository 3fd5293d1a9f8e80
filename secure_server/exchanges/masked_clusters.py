"""Clusters under ``masked``: rotated directions of prototypes, then a masked sum over the clusters and of models.

The coordinator sees the cosines between prototypes of a class, and how many of them each site has; then, for each
cluster, the sum of its prototypes and their samples, and the sum of models. The values that each site adds, norms,
counts and its model among them, stay under masks. The limit: cosines and sums together are equations in the norms,
and with one site's help, which undoes the rotation, they give every prototype.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from agreement import Agreement
from agreement.aggregation.means import check_samples
from algorithms.fedplcc import Contribution
from algorithms.gram_matrix import Float
from crypto.errors import MalformedError
from crypto.fixed_point import FixedPoint
from crypto.pairwise.wire_values import SCHEME
from crypto.protection import Payload
from protoseal_wire.cluster_assignment import broadcast
from protoseal_wire.codec import Limits
from protoseal_wire.messages import Phase
from secure_server.exchanges.base import Attempt
from secure_server.exchanges.cluster_assignment import result_of, with_last_clusters
from secure_server.exchanges.group_results import GroupSum
from secure_server.exchanges.masked_sums import MaskedSums
from secure_server.exchanges.rotated_clusters import RotatedClusters
from secure_server.rounds.state import Quorum


class MaskedClusters(MaskedSums):
    """DIRECTIONS, then the steps of a masked sum over all sites, which are one group."""

    summing = (Phase.DIRECTIONS, Phase.SHARES, Phase.VALUES)

    def __init__(self, agreement: Agreement, limits: Limits) -> None:
        super().__init__(agreement, limits)
        self._directions = RotatedClusters(agreement, limits)

    def quorums_of(self, attempt: Attempt, group: tuple[str, ...]) -> Iterator[Quorum]:
        """Return the quorums; after DIRECTIONS also one for the sites of each cluster."""
        yield from super().quorums_of(attempt, group)
        if Phase.DIRECTIONS not in attempt.survivors:
            return
        for holders in sorted(set(self._directions.assignment(attempt).clusters.holders)):
            for phase in (Phase.SHARES, Phase.VALUES):
                yield Quorum(phase, frozenset(holders), self._agreement.min_holders)

    def request(self, attempt: Attempt, phase: Phase, site: str) -> bytes:
        """Return the list of participants, the assignment, or the request of a masked sum."""
        match phase:
            case Phase.DIRECTIONS:
                return self.listed(attempt)
            case Phase.SHARES:
                return self._directions.assignment(attempt).content
            case _:
                return super().request(attempt, phase, site)

    def check(self, attempt: Attempt, phase: Phase, site: str, content: bytes) -> None:
        """Check an answer, as :meth:`secure_server.exchanges.base.Exchange.check` does."""
        if phase is Phase.DIRECTIONS:
            self._directions.check(attempt, site, content)
        else:
            super().check(attempt, phase, site, content)

    # Vectors and their sum

    def fixed_point(self, attempt: Attempt) -> FixedPoint:
        """Return the fixed-point encoding for as many clusters as the attempt has."""
        return self._agreement.fixed_point(len(self._directions.assignment(attempt).clusters.labels))

    def broadcast(self, attempt: Attempt, group: tuple[str, ...]) -> bytes:
        """Return the broadcast's hash, the assignment included."""
        return broadcast(super().broadcast(attempt, group), self._directions.assignment(attempt).content)

    def check_sum(self, attempt: Attempt, found: GroupSum) -> None:
        """Check a sum of samples, counts and centres, as the base class does."""
        most = self._agreement.averaging.most_samples
        check_samples(float(found.total[-1]), len(found.members), most)
        self._check_counts(attempt, found)
        self._result(attempt, found)

    def results(self, attempt: Attempt, sums: Sequence[GroupSum]) -> list[Payload]:
        """Return the result of the one group."""
        results = [self._result(attempt, group_sum) for group_sum in sums]
        return [with_last_clusters(self._agreement, attempt, result, self._limits) for result in results]

    def repeatable(self, sums: Sequence[GroupSum], results: Sequence[Payload]) -> Sequence[Payload]:  # noqa: ARG002 (as the base class)
        """Return the result, of whose clusters rounds whose sums have no prototypes make theirs."""
        return results

    def _result(self, attempt: Attempt, found: GroupSum) -> Payload:
        clusters, model = self._parts(attempt, found)
        labels = self._directions.assignment(attempt).clusters.labels
        return result_of(self._agreement, clusters, labels, model, SCHEME)

    def _parts(self, attempt: Attempt, found: GroupSum) -> tuple[Contribution, Float]:
        """Split a sum into its cluster part, over the sites that are in it, and its model part."""
        assignment, own = self._directions.assignment(attempt).clusters, self._agreement.clustering
        number, dim = len(assignment.labels), self._agreement.dim
        of_clusters, model = np.split(found.total, [own.length(number, dim)])
        sums, counts = own.split(of_clusters, number, dim)
        members = assignment.members(found.members).astype(np.float64)
        return Contribution(sums, members, counts), model

    def _check_counts(self, attempt: Attempt, found: GroupSum) -> None:
        own = self._agreement.clustering
        if not own.counted:
            return
        clusters, _ = self._parts(attempt, found)
        most = own.most_counted(self._agreement.averaging.most_samples) * len(found.members)
        if ((clusters.counts < clusters.members) | (clusters.counts > most)).any():
            raise MalformedError(
                "a cluster has fewer samples than prototypes, or more samples than its sites may count"
            )
