"""Factory of a run's exchange at the coordinator, by the agreed method and protection; executor of its computations.

A method states the weights or groups that it needs, a protection states how it combines. Only this module and the
exchanges that it selects know methods and protections; the rest of the coordinator does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agreement import Agreement
from agreement.derived.payload_shapes import limits_of
from agreement.registry.round_plan import ExchangeKind, PayloadKind
from algorithms.gram_matrix import convex
from algorithms.pfpl import peer_weights
from crypto.ckks import peer_server
from crypto.ckks.peer_server import CkksServer
from crypto.errors import MalformedError
from crypto.plain import PlainServer, Weights
from crypto.protection import Combination, Payload, Pool, ServerHalf
from protoseal_files import durable_files
from protoseal_wire import codec
from protoseal_wire.codec import Limits
from protoseal_wire.messages import Phase
from secure_server.exchanges.clusters import EncryptedClusters, MaskedClusters, PlainClusters
from secure_server.exchanges.exchange import Attempt, Exchange, GroupFailure, Outcome
from secure_server.exchanges.peers import PeerExchange
from secure_server.exchanges.secure_aggregation import MaskedSumExchange
from secure_server.exchanges.site_grouping import SiteGrouping
from secure_server.exchanges.sums import EncryptedGroupSums, EncryptedSums, PlainSums
from secure_server.process_pool import run_isolated
from secure_server.rounds.events import Planned
from secure_server.rounds.state import Groups


@dataclass(frozen=True)
class ExchangeInputs:
    """Everything that an exchange is built of.

    ``keys_path`` is the file of the group's evaluation keys once a site has made them (``ckks`` only). Heavy work
    goes to ``executor``, or is done in the caller's thread when it is None.
    """

    agreement: Agreement
    limits: Limits
    keys_path: Path
    executor: Pool | None


def server_half(agreement: Agreement, keys_path: Path, executor: Pool | None) -> ServerHalf:
    """Return the server's half of the agreed protection for a method of ``PEERS``, with the method's weights."""
    plan, protection = agreement.plan, agreement.protection
    if plan.values is PayloadKind.CIPHERTEXTS:
        return CkksServer(Combination(agreement.pfpl.weighting.value), keys_path, executor)
    weights = weights_of(agreement)
    if plan.values is not PayloadKind.EXTENSION:
        return PlainServer(weights, plan.row_scheme)
    if protection.peers is None:
        raise ValueError(f"protection {protection.value!r} does not serve method {agreement.method.value}")
    return protection.peers.server(agreement.settings_of(protection), weights)


def weights_of(agreement: Agreement) -> Weights:
    """Return the weights by which a method of ``PEERS`` combines prototypes, from visible inner products."""
    method, pfpl = agreement.method, agreement.pfpl
    if method.weights is not None:
        return convex(method.weights(agreement.settings_of(method)))
    return partial(peer_weights, weighting=pfpl.weighting, tau=agreement.agreement_threshold)


class Aggregator:
    """Exchanges of a run's rounds, and their outcomes."""

    def __init__(self, agreement: Agreement, keys_path: Path, executor: Pool | None = None) -> None:
        self._agreement = agreement
        self._keys_path = keys_path
        self._executor = executor
        self._limits = limits_of(agreement)
        run = ExchangeInputs(agreement, self._limits, keys_path, executor)
        self._exchange = build_exchange(run)
        self._grouping = (
            SiteGrouping(agreement, self._limits, agreement.plan.row_scheme, executor)
            if agreement.method.is_grouped
            else None
        )

    def exchange(self, round_number: int) -> Exchange:
        """Return the exchange of a round; raise ``ValueError`` for round 0 where there is no grouping."""
        if round_number:
            return self._exchange
        if self._grouping is None:
            raise ValueError(f"method {self._agreement.method.value} has no round 0")
        return self._grouping

    def plan(self, attempt: Attempt) -> Planned:
        """Return the quorum of each step of an attempt."""
        return Planned(self.exchange(attempt.key.round).quorums(attempt))

    def combine(self, attempt: Attempt) -> Outcome:
        """Return the outcome of an attempt whose steps are all over."""
        return self.exchange(attempt.key.round).outcome(attempt)

    def check_keys(self, evaluation_keys: bytes) -> bytes:
        """Return the keys' SHA-256; raise :class:`crypto.errors.MalformedError` unless the keys can be used.

        Only ``ckks`` has keys; another protection must have none. Once bad keys are accepted, every round fails
        through no fault of its sites. Where heavy work goes to processes, the check takes a process of its own, with
        bounded memory and time (:func:`run_isolated`). This thread waits for it, so a maker of keys can keep the thread
        busy for as long, again with each try until the set-up's deadline. Without processes nothing is bounded: the
        sites are then this process's own.
        """
        if not self._agreement.protection.ckks_key:
            return _hash_of_none(evaluation_keys)
        if self._executor is None:
            return peer_server.check_keys(evaluation_keys)
        try:
            return run_isolated(peer_server.check_keys, evaluation_keys)
        except BrokenExecutor as error:
            raise MalformedError("evaluation keys take too much time or memory to load") from error

    def write_group_keys(self, evaluation_keys: bytes) -> None:
        """Write the group's evaluation keys, which are public, to the file that the worker processes read."""
        if not evaluation_keys:
            return
        if self._keys_path.exists() and self._keys_path.read_bytes() == evaluation_keys:
            return
        durable_files.write(self._keys_path, evaluation_keys)


def build_exchange(run: ExchangeInputs) -> Exchange:
    """Return the coordinator's half of the agreed exchange; raise ``ValueError`` for a protection that has none."""
    agreement, limits = run.agreement, run.limits
    match agreement.plan.exchange:
        case ExchangeKind.PEERS:
            return PeerExchange(agreement, limits, server_half(agreement, run.keys_path, run.executor))
        case ExchangeKind.SUMS | ExchangeKind.PEER_SUMS:
            return _build_sums(run)
        case ExchangeKind.CLUSTERS:
            return _CLUSTERS[agreement.plan.values](agreement, limits)


def _build_sums(run: ExchangeInputs) -> Exchange:
    agreement, limits, protection = run.agreement, run.limits, run.agreement.protection
    match agreement.plan.values:
        case PayloadKind.VECTOR:
            return PlainSums(agreement, limits)
        case PayloadKind.WORDS:
            return MaskedSumExchange(agreement, limits)
        case PayloadKind.CIPHERTEXTS if Phase.MEANS in agreement.plan.phases:
            return EncryptedGroupSums(agreement, limits, run.keys_path, run.executor)
        case PayloadKind.CIPHERTEXTS:
            return EncryptedSums(agreement, limits)
        case PayloadKind.EXTENSION if protection.sums is not None:
            server = protection.sums.server(agreement.settings_of(protection), agreement.sum_facts)
            return EncryptedSums(agreement, limits, server)
        case _:
            raise ValueError(
                f"protection {protection.value!r} does not serve method {agreement.method.value}"
            )


_CLUSTERS: Mapping[PayloadKind, Callable[[Agreement, Limits], Exchange]] = {
    PayloadKind.LOCAL_CLUSTERS: PlainClusters,
    PayloadKind.WORDS: MaskedClusters,
    PayloadKind.CIPHERTEXTS: EncryptedClusters,
}


def _hash_of_none(evaluation_keys: bytes) -> bytes:
    if evaluation_keys:
        raise MalformedError("evaluation keys were sent, but the agreed protection uses none")
    return hashlib.sha256(b"").digest()


@dataclass(frozen=True)
class EncodedOutcome:
    """Results and sums of sites as bytes, the groups of a clustering, and the groups that get nothing."""

    results: Mapping[str, bytes]
    groups: Groups
    failures: tuple[GroupFailure, ...]
    sums: Mapping[str, bytes]


def encode_outcome(outcome: Outcome) -> EncodedOutcome:
    """Encode an outcome."""
    return EncodedOutcome(
        _encode_by_site(outcome.results), outcome.groups, outcome.failures, _encode_by_site(outcome.sums)
    )


def _encode_by_site(payloads: Mapping[str, Payload]) -> dict[str, bytes]:
    """Encode payloads by site. A payload that several sites share, of megabytes, is encoded once."""
    contents = {id(payload): codec.encode_payload(payload) for payload in payloads.values()}
    return {site: contents[id(payload)] for site, payload in payloads.items()}
