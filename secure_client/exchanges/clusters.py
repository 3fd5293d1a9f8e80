"""Clusters at a site (FedPLCC): local prototypes and a model leave, all clusters and the mean model come back.

:class:`ClusterExchange` holds a half of the agreed protection:

- ``plain``: local prototypes in the clear, in one step.
- ``masked``: directions, then a masked sum over the assigned clusters. Limits: **one site that helps the coordinator
  opens everyone's prototypes.** The helper undoes the rotation; then each cluster's sum gives d linear equations in the
  norms of its prototypes, whose directions are known. Only models and sample counts stay hidden by masks, as
  :mod:`secure_client.protocol.secure_aggregation` describes. Without a helper, G clusters of a class give G·(G + 1)/2
  equations in the norms; a site accepts an assignment only if that number is below the class's number of prototypes in
  the round. Zero prototypes are among that number and hide nothing.
- ``ckks``: directions, then an encrypted sum. The coordinator cannot read the sums, so the number of clusters may be
  the agreed maximum. Limit: **one site that helps the coordinator opens all prototypes**, since all sites have the seed
  and the key. No answer depends on a decryption, with one exception: a round's directions come from features that were
  trained from the sums of the previous round. **A coordinator that returns forged sums can read encrypted uploads and
  records through these directions, some bits in each round** (docs: threat model). With noise, the classes that a site
  states depend on cells around decrypted centres and reveal as much, with noise.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agreement import Agreement
from agreement.derived.encrypted_sums import EncryptedClusterSum
from agreement.derived.payload_shapes import longest_mean
from agreement.registry.round_plan import load_half
from algorithms.fedplcc import GlobalClusters
from algorithms.gram_matrix import Bool, Float
from crypto.ckks.sums import SummingSite
from crypto.errors import ImplausibleError, MalformedError
from crypto.pairwise.masks import SCHEME as PAIRWISE
from crypto.plain import SCHEME as PLAIN
from crypto.plain import PlainValues
from crypto.protection import Payload, ProtectedPayload, whole_numbers
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.error_containment import hide_decryption_errors
from secure_client.errors import Violation
from secure_client.exchanges.cluster_directions import DirectionsStep, sent_clusters
from secure_client.exchanges.exchange import ExchangeParts
from secure_client.exchanges.groups import GroupExchange, GroupMembers
from secure_client.privacy.bounds import model_weight
from secure_client.protocol.secure_aggregation import Group
from secure_client.protocol.sent_values import Answer, check_cleartext_agreed

_log = logging.getLogger("protoseal.site")

_WEIGHTS_OFF = 1e-9
"""Tolerance, from rounding, by which the weights of a class's clusters may differ from a sum of 1."""

Model = Callable[[], NDArray[np.float64]]
"""Function that returns the model's vector (p + q + 1,), in the order of the layout."""


class ClusterResult(NamedTuple):
    """Parts of a result: all clusters, and the mean model (p + q,)."""

    clusters: GlobalClusters
    averaged: Float


class ClusterExchange(GroupExchange):
    """Clustering method: all members are one group."""

    def __init__(self, parts: ExchangeParts) -> None:
        super().__init__(parts)
        self._half = build_cluster_half(parts, self._members)

    def step(self, key: PhaseKey, request: bytes) -> Answer:
        """See :class:`secure_client.exchanges.exchange.SiteExchange`."""
        return self._half.answer(key, request, partial(self._model, key))

    def take_catch_up(self, key: PhaseKey, base: bytes, payload: Payload) -> None:
        """See :class:`secure_client.exchanges.groups.GroupExchange`."""
        self._take(key.round - 1, base, payload)

    def take_result(self, key: PhaseKey, base: bytes, payload: Payload) -> Bool:
        """See :class:`secure_client.exchanges.groups.GroupExchange`."""
        self._half.check_result(key, payload)
        return self._take(key.round, base, payload)

    def _model(self, key: PhaseKey) -> NDArray[np.float64]:
        """Return the model's vector (p + q + 1,), in the order of the layout."""
        _, counts = self._learner.train_round(key.round)
        samples = model_weight(counts, self._agreement.averaging.most_samples)
        no_rows = np.empty((0, self._agreement.dim))
        return self._layout.contribution(no_rows, self._learner.values.averaged_part(), samples)

    def _take(self, round_number: int, base: bytes, payload: Payload) -> Bool:
        """Make a result the base of later rounds; return the classes (K,) of its clusters.

        If the decryption is implausible, keep only the result's hash: a site that left would show that it is.
        """
        classes = np.zeros(len(self._agreement.classes), dtype=np.bool_)
        try:
            result = self._half.read_result(payload)
        except ImplausibleError as error:
            _log.error("the result of round %d is discarded: %s", round_number, error)
            self._learner.received.keep_base(round_number, base)
            return classes
        self._learner.received.take_clusters(round_number, base, result.clusters, result.averaged)
        classes[result.clusters.labels] = True
        return classes


class ClusterHalf(ABC):
    """A protection's half of a run's clusters at one site."""

    @abstractmethod
    def answer(self, key: PhaseKey, request: bytes, model: Model) -> Answer:
        """Answer a step; only the step that sends values calls ``model``."""

    @abstractmethod
    def read_result(self, payload: Payload) -> ClusterResult:
        """Return the parts of a result; raise as :meth:`secure_client.exchanges.sum_halves.SumHalf.read_means`."""

    @abstractmethod
    def check_result(self, key: PhaseKey, payload: Payload) -> None:
        """Raise :class:`Violation` for a result that contradicts what this site received before it."""


def build_cluster_half(parts: ExchangeParts, members: GroupMembers) -> ClusterHalf:
    """Return the agreed protection's half; raise ``ValueError`` if the protection has none for clusters."""
    half: ClusterHalf = load_half(parts.agreement.plan.site_half, ClusterHalf)(parts, members)
    return half


class PlainClusterHalf(ClusterHalf):
    """Clusters in the clear. Raises :class:`secure_client.errors.Unprotected` at a run's start unless agreed."""

    def __init__(self, parts: ExchangeParts, members: GroupMembers) -> None:
        check_cleartext_agreed(parts.agreement)
        self._parts = parts
        self._members = members

    def answer(self, key: PhaseKey, request: bytes, model: Model) -> Answer:
        """Answer VALUES: local prototypes of the classes that are not withheld, and the model."""
        check_cleartext_agreed(self._parts.agreement)
        local = sent_clusters(self._parts, self._members.verify_listed(key, request))
        labels, counts = local.labels.astype(np.float64), local.counts.astype(np.float64)
        return ProtectedPayload(PlainValues(), local.rows, labels, counts, model())

    def read_result(self, payload: Payload) -> ClusterResult:
        """Return the clusters that the coordinator computed."""
        return read_cleartext_clusters(self._parts.agreement, payload, PLAIN)

    def check_result(self, key: PhaseKey, payload: Payload) -> None:
        """Do nothing: under ``plain`` no earlier message names clusters."""


class MaskedClusterHalf(ClusterHalf):
    """DIRECTIONS, then the steps of secure aggregation over the assigned clusters."""

    def __init__(self, parts: ExchangeParts, members: GroupMembers) -> None:
        self._agreement = parts.agreement
        self._masks = parts.masks
        self._directions = DirectionsStep(parts, members, assigned_in=Phase.SHARES)

    def answer(self, key: PhaseKey, request: bytes, model: Model) -> Answer:
        """Answer DIRECTIONS, or one of the steps of secure aggregation."""
        if key.phase is Phase.DIRECTIONS:
            return self._directions.answer(key, request)
        # SHARES brings the assignment; the later steps stand on the assignment that was accepted then.
        assignment = request if key.phase is Phase.SHARES else self._directions.assignment(key)
        group = self._directions.assigned_group(key, assignment)
        return self._masks.step(key, group, request, partial(self._vector, assignment, model))

    def read_result(self, payload: Payload) -> ClusterResult:
        """Return the clusters that the coordinator computed from the opened sum."""
        return read_cleartext_clusters(self._agreement, payload, PAIRWISE)

    def check_result(self, key: PhaseKey, payload: Payload) -> None:
        """Check the classes of the result's clusters against the assignment."""
        self._directions.check_labels(key, payload.arrays[1])

    def _vector(self, assignment: bytes, model: Model, group: Group) -> NDArray[np.float64]:
        """Return this site's part in each cluster, then its model."""
        part = self._directions.part(group, assignment)
        return np.concatenate([self._agreement.clustering.vector(part.sums, part.counts), model()])


class CkksClusterHalf(ClusterHalf):
    """DIRECTIONS, then VALUES with the encrypted term of a sum; the result is the sum."""

    def __init__(self, parts: ExchangeParts, members: GroupMembers) -> None:
        self._agreement = parts.agreement
        self._setup = parts.setup
        self._directions = DirectionsStep(parts, members, assigned_in=Phase.VALUES)

    def answer(self, key: PhaseKey, request: bytes, model: Model) -> Answer:
        """Answer DIRECTIONS, or VALUES, whose request is the assignment."""
        if key.phase is Phase.DIRECTIONS:
            return self._directions.answer(key, request)
        group = self._directions.assigned_group(key, request)
        layout = EncryptedClusterSum(self._agreement, len(group.clusters))
        vector = layout.vector(self._directions.part(group, request), model())
        return ProtectedPayload(SummingSite(self._setup.ckks_key(), layout.form), vector)

    def read_result(self, payload: Payload) -> ClusterResult:
        """Decrypt the sum and divide it into clusters and the mean model."""
        with hide_decryption_errors("a result"):
            labels = self._public_labels(payload.arrays[0])
            sums = replace(payload, arrays=())
            ends = len(EncryptedClusterSum(self._agreement, len(labels)).form.answers)
            if self._agreement.row_period == 1 or len(sums.blobs) <= ends:
                return self._open_sum(sums, labels)
            # The clusters repeat those of an earlier round; the model is this round's.
            last = self._open_sum(replace(sums, blobs=sums.blobs[:ends]), labels)
            now = self._open_sum(replace(sums, blobs=sums.blobs[ends:]), labels[:0])
            return last._replace(averaged=now.averaged)

    def check_result(self, key: PhaseKey, payload: Payload) -> None:
        """Check the classes of the result's clusters, which are public, against the assignment."""
        self._directions.check_labels(key, payload.arrays[0])

    def _open_sum(self, encrypted: Payload, labels: NDArray[np.int64]) -> ClusterResult:
        layout = EncryptedClusterSum(self._agreement, len(labels))
        values = SummingSite(self._setup.ckks_key(), layout.form).unprotect(
            encrypted, self._agreement.max_sites
        )
        clusters, averaged = layout.means(values, labels)
        return ClusterResult(clusters, averaged)

    def _public_labels(self, classes: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the labels of the sums, which are public, so that an error may describe them."""
        labels = whole_numbers(classes, len(self._agreement.classes))
        if (np.diff(labels) < 0).any():
            raise MalformedError("the result's clusters are not ordered by class")
        if np.bincount(labels).max(initial=0) > self._agreement.clustering.most_clusters:
            raise MalformedError("the result has more clusters of a class than agreed")
        return labels


def read_cleartext_clusters(agreement: Agreement, payload: Payload, scheme: str) -> ClusterResult:
    """Return the parts of a result that the coordinator could read.

    Raises :class:`Violation` for a result that an honest coordinator would not send, whoever corrupted it.
    """
    if payload.scheme != scheme:
        raise Violation(f"the result has scheme {payload.scheme!r}, but {scheme!r} is agreed")
    rows, classes, weights, averaged = payload.arrays
    try:
        labels = whole_numbers(classes, len(agreement.classes))
    except MalformedError as error:
        raise Violation(f"the result has clusters with invalid labels: {error}") from error
    longest = float(np.linalg.norm(rows, axis=1).max(initial=0.0))
    if longest > longest_mean(agreement):
        raise Violation("the result has a cluster centre longer than the norm bound")
    if (np.diff(labels) < 0).any() or (weights <= 0).any():
        raise Violation("the result's clusters are not ordered by class, or a cluster has no weight")
    together = np.bincount(labels, weights=weights)[labels]
    if (np.abs(together - 1.0) > _WEIGHTS_OFF).any():
        raise Violation("the weights of a class's clusters in the result do not sum to 1")
    if np.bincount(labels).max(initial=0) > agreement.clustering.most_clusters:
        raise Violation("the result has more clusters of a class than agreed")
    return ClusterResult(GlobalClusters(rows, labels, weights), averaged)
