"""Clusters at a site: the site sends local prototypes and a model, and receives all clusters and the mean model."""

from __future__ import annotations

import hashlib
import logging
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agreement.derived.payload_forms import limits_of, longest_mean, result_form
from agreement.schema.layout import counted_samples
from algorithms.fedplcc import GlobalClusters, LocalClusters
from algorithms.gram_matrix import Float
from crypto.errors import ImplausibleError, MalformedError
from crypto.pairwise.wire_values import MaskKeys
from crypto.plain import SCHEME as PLAIN
from crypto.protection import Payload, ProtectedPayload
from crypto.prototype_row_checks import whole_numbers
from protoseal_wire import codec
from protoseal_wire.messages import PhaseKey, RoundStart
from secure_client.errors import Violation
from secure_client.exchanges.exchange import ExchangeParts, ResultSummary
from secure_client.exchanges.groups import GroupMembers, RoundStartCheck
from secure_client.exchanges.row_protection import plain_values
from secure_client.privacy.bounds import model_weight
from secure_client.protocol.secure_aggregation import Group
from secure_client.protocol.sent_values import Answer

_log = logging.getLogger("protoseal.site")

_WEIGHTS_OFF = 1e-9
"""Tolerance, from rounding, by which the weights of a class's clusters may differ from a sum of 1."""


class Received(NamedTuple):
    """Parts of a decoded result of clusters."""

    clusters: GlobalClusters
    averaged: Float


class PlainClusters:
    """Clustering method under ``plain``: all members are one group, and each sends all values in one step."""

    scheme = PLAIN
    """Scheme of results."""

    def __init__(self, parts: ExchangeParts) -> None:
        self._agreement, self._site, self._trainee = parts.agreement, parts.site, parts.trainee
        self._journal, self._setup, self._masks = parts.journal, parts.setup, parts.masks
        self._participants = parts.participants
        self._limits = limits_of(parts.agreement)
        self._starts = RoundStartCheck(parts)
        self._members = GroupMembers(parts, self._starts)

    def start(self, key: PhaseKey, start: RoundStart) -> None:
        """See :class:`secure_client.exchanges.exchange.SiteExchange`, here and below."""
        caught_up = self._starts.checked(key, start, self._trainee.base_hash)
        if caught_up is not None:
            # The base belongs to the round before: a model already trained in this round from another base is
            # discarded.
            self._take(key.round - 1, start.base, caught_up)

    def stated(self, key: PhaseKey) -> tuple[bytes, MaskKeys | None]:
        """Return the hash of the base that the model was trained from, and fresh keys where the sum is masked."""
        keys = self._masks.fresh_keys(key) if self._agreement.plan.masked else None
        return self._trainee.base_hash, keys

    def step(self, key: PhaseKey, request: bytes) -> Answer:
        """Answer VALUES: local prototypes of the classes that are not withheld, and the model."""
        local = self._local(self._members.asked(key, request))
        labels, counts = local.labels.astype(np.float64), local.counts.astype(np.float64)
        half = plain_values(self._agreement)
        return ProtectedPayload(half, local.rows, labels, counts, self._model(key))

    def result(self, key: PhaseKey, request: bytes) -> ResultSummary:
        """Take the base from which all sites train next."""
        payload = codec.decode_payload(request, self._limits, result_form(self._agreement))
        self._check_result(key, payload)
        received = self._take(key.round, hashlib.sha256(request).digest(), payload)
        self._masks.forget(key)
        classes = np.zeros(len(self._agreement.classes), dtype=np.bool_)
        classes[received.clusters.labels] = True
        return ResultSummary(self._members.known(key), classes)

    def end(self) -> None:
        """Erase the secrets of an attempt that had no result, if there is one."""
        self._masks.leave()

    # Values sent

    def _local(self, group: Group) -> LocalClusters:
        """Return the local prototypes of classes that are active in the group, with counts as they are sent."""
        local, holds = self._trainee.values.local(), group.cohort.holds[group.cohort.index(self._site)]
        sent = holds[local.labels]
        counts = counted_samples(local.counts, self._agreement.averaging.most_samples)
        return LocalClusters(local.rows[sent], local.labels[sent], counts[sent])

    def _model(self, key: PhaseKey) -> NDArray[np.float64]:
        """Return the model's vector (p + q + 1,), in the order of the layout."""
        _, counts = self._trainee.train_round(key.round)
        samples = model_weight(counts, self._agreement.averaging.most_samples)
        none = np.empty((0, self._agreement.dim))
        return self._agreement.layout.contribution(none, self._trainee.values.averaged(), samples)

    # Results received

    def _check_result(self, key: PhaseKey, payload: Payload) -> None:
        """Check a result against this site's earlier messages; under ``plain`` none names clusters."""

    def _take(self, round_number: int, base: bytes, payload: Payload) -> Received:
        """Make a result the base of later rounds.

        If the decryption is implausible, keep only the result's hash: a site that left would show that it is.
        """
        try:
            return self._use(round_number, base, payload)
        except ImplausibleError as error:
            _log.error("the result of round %d is discarded: %s", round_number, error)
            self._trainee.keep_base(round_number, base)
            none = np.zeros(0, dtype=np.int64)
            return Received(
                GlobalClusters(np.zeros((0, self._agreement.dim)), none, np.zeros(0)), np.zeros(0)
            )

    def _use(self, round_number: int, base: bytes, payload: Payload) -> Received:
        received = self._read(payload)
        self._trainee.take_clusters(round_number, base, received.clusters, received.averaged)
        return received

    def _read(self, payload: Payload) -> Received:
        """Return the parts of a result whose form is checked."""
        if payload.scheme != self.scheme:
            raise Violation(f"the result has scheme {payload.scheme!r}, but {self.scheme!r} is agreed")
        rows, classes, weights, averaged = payload.arrays
        try:
            labels = whole_numbers(classes, len(self._agreement.classes))
        except MalformedError as error:
            raise Violation(f"the result has clusters with invalid labels: {error}") from error
        clusters = GlobalClusters(rows, labels, weights)
        self._check_plausible(clusters)
        return Received(clusters, averaged)

    def _check_plausible(self, clusters: GlobalClusters) -> None:
        """Check a result as the coordinator does before sending, whoever corrupted the result."""
        longest = float(np.linalg.norm(clusters.rows, axis=1).max(initial=0.0))
        if longest > longest_mean(self._agreement):
            raise Violation("the result has a cluster centre longer than the norm bound")
        if (np.diff(clusters.labels) < 0).any() or (clusters.weights <= 0).any():
            raise Violation("the result's clusters are not ordered by class, or a cluster has no weight")
        together = np.bincount(clusters.labels, weights=clusters.weights)[clusters.labels]
        if (np.abs(together - 1.0) > _WEIGHTS_OFF).any():
            raise Violation("the weights of a class's clusters in the result do not sum to 1")
        if np.bincount(clusters.labels).max(initial=0) > self._agreement.clustering.most_clusters:
            raise Violation("the result has more clusters of a class than agreed")
