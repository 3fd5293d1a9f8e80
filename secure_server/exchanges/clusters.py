"""Clusters at the coordinator (FedPLCC): local prototypes in the clear, or rotated directions and then a protected sum.

Under ``plain`` the coordinator sees every site's local prototypes, their sample counts and its model. Otherwise it sees
the cosines between prototypes of a class, and how many of them each site has
(:mod:`secure_server.exchanges.cluster_assignment`), and then:

- under ``masked``, for each cluster the sum of its prototypes and their samples, and the sum of models. The values that
  each site adds, norms, counts and its model among them, stay under masks. Limit: cosines and sums together are
  equations in the norms, and with one site's help, which undoes the rotation, they give every prototype.
- under ``ckks``, nothing of the sums. Limit: one colluding site can undo the rotation and decrypt, and so reveals
  everything to the coordinator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from agreement.derived.cohorts import group_cohort
from agreement.derived.encrypted_sums import EncryptedClusterSum
from agreement.derived.means import check_samples
from agreement.derived.payload_shapes import result_shape
from algorithms.fedplcc import Contribution, LocalClusters, contribution
from algorithms.gram_matrix import Float
from crypto.ckks.sums import SummingServer
from crypto.errors import MalformedError, UnknownSchemeError
from crypto.fixed_point import FixedPoint
from crypto.pairwise.masks import SCHEME as PAIRWISE
from crypto.plain import SCHEME as PLAIN
from crypto.protection import NORM_SLACK, Payload, whole_numbers
from protoseal_wire.cluster_assignment import hash_broadcast
from protoseal_wire.messages import Phase
from secure_server.exchanges.cluster_assignment import (
    ClusterAssignment,
    DirectionsStep,
    LocalPrototypes,
    assign_clusters,
    check_labels,
    clusters_result,
    with_last_clusters,
)
from secure_server.exchanges.exchange import (
    Attempt,
    ExchangeParts,
    Outcome,
    SinglePhaseExchange,
    repeated_sum,
)
from secure_server.exchanges.group_results import GroupSum, for_members
from secure_server.exchanges.secure_aggregation import SecureAggregation
from secure_server.exchanges.sums import check_model, check_weight
from secure_server.rounds.state import Quorum


class PlainClusterHalf(SinglePhaseExchange):
    """Local prototypes (M, d) of each site, their classes and counts (M,), and its model as a layout has it."""

    def validate(self, payload: Payload, site: str, attempt: Attempt) -> None:
        """Raise :class:`MalformedError` for values that masked sums would not carry, or prototypes of other classes."""
        _, classes, samples, _ = _arrays(payload)
        cohort = group_cohort(attempt.active, attempt.group_of(site), self._agreement)
        check_labels(classes, cohort.held_by(site), self._agreement.clustering.most_local)
        if (whole_numbers(samples, self._most_counted + 1) < 1).any():
            raise MalformedError("a local prototype stands for no sample: each must count at least one")
        local, vector = _read(payload)
        _check_rows(local.rows, self._agreement.norm_bound)
        self._check_counts(local)
        check_weight(float(vector[-1]), self._agreement.averaging.most_samples)
        _, model = self._agreement.layout.split(vector)
        check_model(model / vector[-1], self._agreement.averaging)

    def outcome(self, attempt: Attempt) -> Outcome:
        """Return the same result for each participant."""
        (group,) = attempt.groups
        local, model = {}, np.zeros(self._agreement.layout.length)
        for site in group:
            local[site], vector = _read(self.payload(attempt, site))
            model += vector
        rows = {site: LocalPrototypes(clusters.rows, clusters.labels) for site, clusters in local.items()}
        assignment = assign_clusters(self._agreement, rows)
        total = sum_in_clusters(assignment, local)
        result = clusters_result(self._agreement, total, assignment.labels, model, PLAIN)
        result = with_last_clusters(self._agreement, attempt, result, self._limits)
        repeated = [result] if self._agreement.repeats_rows(attempt.key.round) else ()
        return for_members(attempt.groups, [result], repeated)

    @property
    def _most_counted(self) -> int:
        return self._agreement.clustering.most_counted(self._agreement.averaging.most_samples)

    def _check_counts(self, local: LocalClusters) -> None:
        most = self._most_counted
        if np.bincount(local.labels, weights=local.counts).max(initial=0.0) > most:
            raise MalformedError(f"a class has more than {most} samples, the agreed maximum")


def sum_in_clusters(assignment: ClusterAssignment, local: Mapping[str, LocalClusters]) -> Contribution:
    """Return the sum of all sites' contributions to the clusters that their prototypes are assigned to."""
    clusters = len(assignment.labels)
    parts = [contribution(local[site], assignment.of_site[site], clusters) for site in sorted(local)]
    sums, members, counts = (np.sum(values, axis=0) for values in zip(*parts, strict=True))
    return Contribution(sums, members, counts)


def _arrays(payload: Payload) -> tuple[Float, Float, Float, Float]:
    if payload.scheme != PLAIN:
        raise UnknownSchemeError(f"expected a payload of scheme {PLAIN!r}, not {payload.scheme!r}")
    rows, classes, samples, vector = payload.arrays
    return rows, classes, samples, vector


def _read(payload: Payload) -> tuple[LocalClusters, Float]:
    """Return the prototypes and the vector (p + q + 1,) of a payload whose classes and counts were checked."""
    rows, classes, samples, vector = _arrays(payload)
    return LocalClusters(rows, classes.astype(np.int64), samples.astype(np.int64)), vector


def _check_rows(rows: Float, bound: float) -> None:
    longest = float(np.linalg.norm(rows, axis=1).max(initial=0.0))
    if longest > bound * (1.0 + NORM_SLACK):
        raise MalformedError(f"a local prototype has norm {longest:.9g}; the agreed bound is {bound:g}")


class MaskedClusterHalf(SecureAggregation):
    """DIRECTIONS, then the steps of secure aggregation over all sites, which are one group."""

    summing = (Phase.DIRECTIONS, Phase.SHARES, Phase.VALUES)

    def __init__(self, parts: ExchangeParts) -> None:
        super().__init__(parts)
        self._directions = DirectionsStep(parts)

    def quorums_of(self, attempt: Attempt, group: tuple[str, ...]) -> Iterator[Quorum]:
        """Return the quorums; after DIRECTIONS also one for the sites of each cluster."""
        yield from super().quorums_of(attempt, group)
        if Phase.DIRECTIONS not in attempt.survivors:
            return
        # A cluster's sum over too few sites would show their prototypes: sites would refuse to open it.
        for holders in sorted(set(self._directions.assignment(attempt).clusters.holders)):
            for phase in (Phase.SHARES, Phase.VALUES):
                yield Quorum(phase, frozenset(holders), self._agreement.min_holders)

    def request(self, attempt: Attempt, phase: Phase, site: str) -> bytes:
        """Return the list of participants, the assignment, or the request of a masked sum."""
        if phase is Phase.SHARES:
            return self._directions.assignment(attempt).content
        return super().request(attempt, phase, site)

    def check(self, attempt: Attempt, phase: Phase, site: str, content: bytes) -> None:
        """See :class:`secure_server.exchanges.exchange.Exchange`."""
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
        # Masks of sites that were told different assignments then do not cancel.
        return hash_broadcast(super().broadcast(attempt, group), self._directions.assignment(attempt).content)

    def check_sum(self, attempt: Attempt, group_sum: GroupSum) -> None:
        """Check sums of samples, counts and centres, as sites would."""
        most = self._agreement.averaging.most_samples
        check_samples(float(group_sum.total[-1]), len(group_sum.members), most)
        self._check_counts(attempt, group_sum)
        self._result(attempt, group_sum)

    def results(self, attempt: Attempt, sums: Sequence[GroupSum]) -> list[Payload]:
        """Return the result of the one group."""
        results = [self._result(attempt, group_sum) for group_sum in sums]
        return [with_last_clusters(self._agreement, attempt, result, self._limits) for result in results]

    def _result(self, attempt: Attempt, group_sum: GroupSum) -> Payload:
        clusters, model = self._parts(attempt, group_sum)
        labels = self._directions.assignment(attempt).clusters.labels
        return clusters_result(self._agreement, clusters, labels, model, PAIRWISE)

    def _parts(self, attempt: Attempt, group_sum: GroupSum) -> tuple[Contribution, Float]:
        """Split a sum into its cluster part, over the sites that are in it, and its model part."""
        assignment, clustering = self._directions.assignment(attempt).clusters, self._agreement.clustering
        number, dim = len(assignment.labels), self._agreement.dim
        of_clusters, model = np.split(group_sum.total, [clustering.length(number, dim)])
        sums, counts = clustering.split(of_clusters, number, dim)
        members = assignment.members(group_sum.members).astype(np.float64)
        return Contribution(sums, members, counts), model

    def _check_counts(self, attempt: Attempt, group_sum: GroupSum) -> None:
        clustering = self._agreement.clustering
        if not clustering.counted:
            return
        clusters, _ = self._parts(attempt, group_sum)
        most = clustering.most_counted(self._agreement.averaging.most_samples) * len(group_sum.members)
        if ((clusters.counts < clusters.members) | (clusters.counts > most)).any():
            raise MalformedError(
                "a cluster has fewer samples than prototypes, or more samples than its sites may count"
            )


class CkksClusterHalf(SinglePhaseExchange):
    """DIRECTIONS, then VALUES with ciphertexts, both from every participant."""

    def __init__(self, parts: ExchangeParts) -> None:
        super().__init__(parts)
        self._directions = DirectionsStep(parts)

    def request(self, attempt: Attempt, phase: Phase, site: str) -> bytes:
        """Return the list of participants, then the assignment."""
        if phase is Phase.VALUES:
            return self._directions.assignment(attempt).content
        return super().request(attempt, phase, site)

    def check(self, attempt: Attempt, phase: Phase, site: str, content: bytes) -> None:
        """See :class:`secure_server.exchanges.exchange.Exchange`."""
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
        last = repeated_sum(self._agreement, attempt, group, result_shape(self._agreement), self._limits)
        if last is None:
            return for_members(attempt.groups, [result])
        # The last clusters' sum, with the models of its round, precedes the sum of this round's models alone.
        return for_members(attempt.groups, [replace(last, blobs=last.blobs + total.blobs)])

    def _server(self, attempt: Attempt) -> SummingServer:
        clusters = len(self._directions.assignment(attempt).clusters.labels)
        return SummingServer(EncryptedClusterSum(self._agreement, clusters).form)
