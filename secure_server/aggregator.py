"""The one bridge between methods and protections at the coordinator.

A method says which weights or groups it wants, a protection says how it can combine; here the two meet. Nothing
else in the coordinator, but the exchanges that are picked here, knows either.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor
from functools import partial
from pathlib import Path
from typing import assert_never

from agreement import AddedMethod, AddedProtection, Agreement, AnyProtection, Family, Protection
from agreement.payload_forms import limits_of
from algorithms.gram import convex
from algorithms.pfpl.aggregation import peer_weights
from crypto import durable_files, plain, rotation
from crypto.ckks import worker_tasks
from crypto.ckks.server import CkksServer
from crypto.errors import MalformedError
from crypto.plain import PlainServer, Weights
from crypto.protection import Combination, ServerHalf
from crypto.work_pool import Pool
from protoseal_wire.codec import Limits
from secure_server.exchanges.base import Attempt, Exchange, Outcome
from secure_server.exchanges.encrypted_clusters import EncryptedClusters
from secure_server.exchanges.encrypted_groups import EncryptedGroupSums
from secure_server.exchanges.encrypted_sums import EncryptedSums
from secure_server.exchanges.masked_clusters import MaskedClusters
from secure_server.exchanges.masked_sums import PairwiseSums
from secure_server.exchanges.peer_combinations import Peers
from secure_server.exchanges.plain_clusters import PlainClusters
from secure_server.exchanges.plain_sums import GroupSums
from secure_server.exchanges.site_grouping import Clustering
from secure_server.process_pool import run_apart
from secure_server.rounds.events import Planned

_OF_SUMS: Mapping[AnyProtection, Callable[[Agreement, Limits], Exchange]] = {
    Protection.PLAIN: GroupSums,
    Protection.MASKED: PairwiseSums,
    Protection.CKKS: EncryptedSums,
}
_OF_CLUSTERS: Mapping[AnyProtection, Callable[[Agreement, Limits], Exchange]] = {
    Protection.PLAIN: PlainClusters,
    Protection.MASKED: MaskedClusters,
    Protection.CKKS: EncryptedClusters,
}


def server_half(agreement: Agreement, keys_path: Path, executor: Pool | None) -> ServerHalf:
    """The server's half of the agreed protection, set up for the agreed method's weights.

    ``keys_path`` is where the group's evaluation keys lie once a site has made them (``ckks`` only). Heavy work
    goes to ``executor``, or is done in this thread when there is none.
    """
    pfpl = agreement.pfpl
    if agreement.protection is Protection.CKKS:
        return CkksServer(Combination(pfpl.weighting.value), keys_path, executor)
    protection, weights = agreement.protection, weights_of(agreement)
    if not isinstance(protection, AddedProtection):
        return PlainServer(weights, _scheme(agreement))
    if protection.peers is None:
        raise ValueError(f"protection {protection.value!r} does not serve method {agreement.method.value}")
    return protection.peers.server(agreement.settings_of(protection), weights)


def weights_of(agreement: Agreement) -> Weights:
    """The weights by which a method of ``PEERS`` combines, of inner products that are seen."""
    method, pfpl = agreement.method, agreement.pfpl
    if isinstance(method, AddedMethod) and method.weights is not None:
        return convex(method.weights(agreement.settings_of(method)))
    return partial(
        peer_weights, weighting=pfpl.weighting, squared=pfpl.squared, tau=agreement.agreement_threshold
    )


class Aggregator:
    """What the rounds of a run consist of, and what each comes to."""

    def __init__(self, agreement: Agreement, keys_path: Path, executor: Pool | None = None) -> None:
        self._agreement, self._keys_path, self._executor = agreement, keys_path, executor
        self._limits = limits_of(agreement)
        self._exchange = self._exchange_of_rounds()
        self._clustering = (
            Clustering(agreement, self._limits, _scheme(agreement), executor)
            if agreement.method.is_grouped
            else None
        )

    def exchange(self, round_number: int) -> Exchange:
        """The steps of a round. ``ValueError`` for round 0 where there is no clustering."""
        if round_number:
            return self._exchange
        if self._clustering is None:
            raise ValueError(f"method {self._agreement.method.value} has no round 0")
        return self._clustering

    def plan(self, attempt: Attempt) -> Planned:
        """How many answers each step of an attempt needs."""
        return Planned(self.exchange(attempt.key.round).quorums(attempt))

    def combine(self, attempt: Attempt) -> Outcome:
        """What an attempt comes to, all of whose steps are over."""
        return self.exchange(attempt.key.round).outcome(attempt)

    def check_keys(self, evaluation_keys: bytes) -> bytes:
        """The keys' SHA-256; :class:`crypto.errors.MalformedError` unless they can be computed with.

        Only ``ckks`` has any: with another protection there must be none. Once they are accepted, a round that
        fails for want of good keys is not its sites' fault and fails again. Where heavy work goes to processes, this
        takes one of its own, with bounded memory and time (:func:`run_apart`). It is waited for, so that a maker can
        keep this thread busy for as long, and again with each try until its set-up's deadline. Without processes
        nothing is bounded: the sites are then this process's own.
        """
        if self._agreement.protection is not Protection.CKKS:
            return _hash_of_none(evaluation_keys)
        if self._executor is None:
            return worker_tasks.check_keys(evaluation_keys)
        try:
            return run_apart(worker_tasks.check_keys, evaluation_keys)
        except BrokenExecutor as error:
            raise MalformedError("evaluation keys that take too much time or memory to load") from error

    def keep_keys(self, evaluation_keys: bytes) -> None:
        """Put the group's evaluation keys, which are public, where the worker processes read them."""
        if not evaluation_keys:
            return
        if self._keys_path.exists() and self._keys_path.read_bytes() == evaluation_keys:
            return
        durable_files.write(self._keys_path, evaluation_keys)

    def _exchange_of_rounds(self) -> Exchange:
        agreement, protection = self._agreement, self._agreement.protection
        match agreement.method.traits.family:
            case Family.PEERS:
                return Peers(agreement, self._limits, server_half(agreement, self._keys_path, self._executor))
            case Family.SUMS if isinstance(protection, AddedProtection):
                return self._added_sums(protection)
            case Family.GROUPS if protection is Protection.CKKS:
                return EncryptedGroupSums(agreement, self._limits, self._keys_path, self._executor)
            case Family.GROUPS | Family.SUMS:
                return _OF_SUMS[protection](agreement, self._limits)
            case Family.CLUSTERS:
                return _OF_CLUSTERS[protection](agreement, self._limits)
            case Family.ALONE:
                raise ValueError(f"no coordinator serves method {agreement.method.value}")
            case family:
                assert_never(family)

    def _added_sums(self, protection: AddedProtection) -> Exchange:
        agreement = self._agreement
        if protection.sums is None:
            raise ValueError(
                f"protection {protection.value!r} does not serve method {agreement.method.value}"
            )
        server = protection.sums.server(agreement.settings_of(protection), agreement.sum_facts)
        return EncryptedSums(agreement, self._limits, server)


def _scheme(agreement: Agreement) -> str:
    """Of rows that the coordinator computes on by itself: unless they are plain they are turned by a rotation."""
    return plain.SCHEME if agreement.protection is Protection.PLAIN else rotation.SCHEME


def _hash_of_none(evaluation_keys: bytes) -> bytes:
    if evaluation_keys:
        raise MalformedError("evaluation keys came with a secret that needs none")
    return hashlib.sha256(b"").digest()
