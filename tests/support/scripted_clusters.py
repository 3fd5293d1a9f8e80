"""Steps of clustered methods, masked or encrypted: directions of prototypes, then sums by an assignment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from agreement import Agreement, AveragingSection, Method, Protection
from agreement.derived.encrypted_sums import EncryptedClusterSum
from agreement.derived.payload_shapes import directions_shape
from algorithms.fedplcc import LocalClusters, contribution
from crypto.ckks.sums import SumLayout, SummingServer, SummingSite
from crypto.fixed_point import FixedPoint
from crypto.protection import Payload
from protoseal_wire import codec
from protoseal_wire.cluster_assignment import AssignedClusters, read_clusters
from protoseal_wire.messages import ActiveList, AssignedRows, Assignment, Phase
from secure_client.exchanges import cluster_directions
from secure_server.exchanges.cluster_assignment import LocalPrototypes, assign_clusters
from tests.support.grouped import EVERYONE, PARAMETERS, grouped_agreement
from tests.support.scripted_sums import ScriptedSums, SumAttempt, Vector, key_of
from tests.support.small import CLASSES, DIM


def clustered_agreement(**changes: object) -> Agreement:
    """FedPLCC over the small federation's data, its whole model averaged."""
    whole = PARAMETERS + DIM * len(CLASSES) + len(CLASSES)
    fields = {"method": Method.FEDPLCC, "averaging": AveragingSection(parameters=whole), **changes}
    return grouped_agreement(**fields)  # type: ignore[arg-type]


class ScriptedClusters(ScriptedSums):
    """Sites of such a run, for the coordinator to ask."""

    def begun(self, *names: str, round_number: int = 1, attempt: int = 1) -> ClusterAttempt:
        """PRESENCE and DIRECTIONS of these sites in a new attempt."""
        started = self.attempt(*names, round_number=round_number, attempt=attempt)
        found = ClusterAttempt(self, started.active, EVERYONE, round_number, attempt)
        for name in names:
            found.ask_directions(name)
        return found

    def local(self, name: str) -> LocalClusters:
        """Return a site's secret: its local prototypes."""
        return self.site(name).learner.values.local()


class ClusterAttempt(SumAttempt):
    """Every step asks the sites named, or lets their refusal through."""

    play: ScriptedClusters

    def __init__(
        self,
        play: ScriptedClusters,
        active: ActiveList,
        group: tuple[str, ...],
        round_number: int,
        attempt: int,
    ) -> None:
        super().__init__(play, active, group, round_number, attempt)
        self.directions: dict[str, Payload] = {}
        self.told: dict[str, Assignment] = {}

    def ask_directions(self, name: str) -> None:
        """DIRECTIONS."""
        answer = self.ask(name, Phase.DIRECTIONS, codec.encode_active_list(self.active))
        form = directions_shape(self.play.agreement)
        self.directions[name] = codec.decode_payload(answer, self.play.limits, form)

    @property
    def honest(self) -> Assignment:
        """Assignment that the honest coordinator makes of the directions."""
        rows = {
            name: LocalPrototypes(payload.arrays[0], payload.arrays[1].astype(np.int64))
            for name, payload in sorted(self.directions.items())
        }
        found = assign_clusters(self.play.agreement, rows)
        return Assignment(
            tuple(AssignedRows(name, rows[name].labels, found.of_site[name]) for name in sorted(rows))
        )

    def by_first(self, apart: Mapping[str, bool]) -> Assignment:
        """Assign a cluster to each class, and before it one to the first rows of the sites ``apart``, if any."""
        found = []
        for name, payload in sorted(self.directions.items()):
            classes = payload.arrays[1].astype(np.int64)
            clusters = classes + any(apart.values())
            if apart.get(name, False):
                clusters[0] = 0
            found.append(AssignedRows(name, classes, clusters))
        return Assignment(tuple(found))

    def tell(self, assignment: Assignment, *names: str) -> None:
        """SHARES of these sites under an assignment."""
        for name in names:
            self.told[name] = assignment
            answer = self.ask(name, Phase.SHARES, codec.encode_assignment(assignment))
            self.made[name] = codec.decode_shares_made(answer, self.play.limits).shares

    @property
    def assignment(self) -> Assignment:
        """Assignment that the first site by name was told."""
        return self.told[min(self.told)]

    @property
    def clusters(self) -> AssignedClusters:
        """Clusters of that assignment."""
        return read_clusters(self.assignment)

    @property
    def broadcast(self) -> bytes:
        """Broadcast as that site binds it."""
        # By the name that a double may have been given.
        bind: Callable[[bytes, bytes], bytes] = vars(cluster_directions)["hash_broadcast"]
        return bind(super().broadcast, codec.encode_assignment(self.assignment))

    @property
    def fixed_point(self) -> FixedPoint:
        """Fixed point for that many clusters."""
        return self.play.agreement.fixed_point(len(self.clusters.labels))

    def summed(self, survivors: tuple[str, ...]) -> Vector:
        """VALUES to UNMASK among these sites, and the sum of prototypes of each cluster, (G, d)."""
        self.mask(*survivors)
        number = len(self.clusters.labels)
        return self.opened(survivors)[: number * DIM].reshape(number, DIM)

    def put(self, name: str) -> Vector:
        """Return a site's secret: what it adds to each cluster that it was told of, (G, d)."""
        (own,) = (each.clusters for each in self.told[name].sites if each.site == name)
        return contribution(self.play.local(name), own, len(self.clusters.labels)).sums


def encrypted_clusters(**changes: object) -> Agreement:
    """FedPLCC over the small federation's data."""
    return clustered_agreement(**{"protection": Protection.CKKS, "rounds": 5, **changes})


class EncryptedClusterAttempt(ClusterAttempt):
    """PRESENCE and DIRECTIONS of these sites are asked at once; SHARES there are none."""

    def __init__(self, play: ScriptedClusters, *names: str, round_number: int = 1, number: int = 1) -> None:
        begun = play.attempt(*names, round_number=round_number, attempt=number)
        super().__init__(play, begun.active, EVERYONE, round_number, number)
        for name in names:
            self.ask_directions(name)
        self.uploads: dict[str, Payload] = {}

    def tell(self, assignment: Assignment, *names: str) -> None:
        """VALUES of these sites under an assignment."""
        for name in names:
            self.told[name] = assignment
            answer = self.ask(name, Phase.VALUES, codec.encode_assignment(assignment))
            self.uploads[name] = self.play.payload(answer, self.round)

    @property
    def form(self) -> SumLayout:
        """Form of the sum, with as many clusters as the sites were told."""
        return EncryptedClusterSum(self.play.agreement, len(self.clusters.labels)).form

    def total(self, names: Iterable[str]) -> Payload:
        """Return the sum that an honest coordinator makes of these sites' values."""
        return self.result(SummingServer(self.form).add(self.uploads[name] for name in names))

    def result(self, total: Payload) -> Payload:
        """Return the sum as a result, with the clusters' classes."""
        return Payload(total.scheme, (self.clusters.labels.astype(np.float64),), total.blobs)

    def read(self, total: Payload) -> Vector:
        """Decrypt the sum as any site does, (L,)."""
        bare = Payload(total.scheme, blobs=total.blobs)
        return SummingSite(key_of(self.play), self.form).unprotect(bare, self.play.agreement.max_sites)

    def give(self, name: str, result: Payload) -> bytes:
        """RESULT."""
        return self.play.give_result(name, result, round_number=self.round, attempt=self.number)

    # Where in the vector the first cluster's numbers are

    @property
    def counts_at(self) -> int:
        """Its samples."""
        return len(self.clusters.labels) * self.play.agreement.dim

    @property
    def rows_at(self) -> int:
        """Its rows."""
        agreement, clusters = self.play.agreement, len(self.clusters.labels)
        return agreement.clustering.length(clusters, agreement.dim)

    @property
    def model_at(self) -> int:
        """The first parameter."""
        return self.rows_at + len(self.clusters.labels)
