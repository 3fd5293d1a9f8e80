"""A coordinator of FedPLCC under `ckks` in the tests' hands: directions first, then encrypted sums of clusters."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from agreement import Agreement, Protection
from agreement.derived.encrypted_sums import EncryptedClusterSum
from crypto.ckks.sums import SumLayout, SummingServer, SummingSite
from crypto.protection import Payload
from protoseal_wire import codec
from protoseal_wire.messages import Assignment, Phase
from tests.adversary.cluster_play import ClusterAttempt, ClusterPlay, clustered_agreement
from tests.adversary.encrypted_play import Vector, key_of
from tests.support.grouped import EVERYONE


def encrypted_clusters(**changes: object) -> Agreement:
    """FedPLCC over the small federation's data."""
    return clustered_agreement(**{"protection": Protection.CKKS, "rounds": 5, **changes})


class EncryptedClusterAttempt(ClusterAttempt):
    """PRESENCE and DIRECTIONS of these sites are asked at once; SHARES there are none."""

    def __init__(self, play: ClusterPlay, *names: str, round_number: int = 1, number: int = 1) -> None:
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
