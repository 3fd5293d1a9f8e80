"""Exchanges of a run at the coordinator, by the agreed method and protection, and the keys that they compute with.

Only this module and the exchanges know methods and protections; the rest of the coordinator does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from pathlib import Path

from agreement import Agreement
from agreement.derived.payload_shapes import limits_of
from crypto.ckks import peer_server
from crypto.errors import MalformedError
from crypto.protection import Payload, Pool
from protoseal_files import durable_files
from protoseal_wire import codec
from secure_server.exchanges.exchange import (
    Attempt,
    Exchange,
    ExchangeParts,
    GroupFailure,
    Outcome,
    build_half,
)
from secure_server.exchanges.site_grouping import SiteGrouping
from secure_server.process_pool import run_isolated
from secure_server.rounds.machine import Planned
from secure_server.rounds.state import Groups


class Aggregator:
    """Exchanges of a run's rounds, and their outcomes."""

    def __init__(self, agreement: Agreement, keys_path: Path, executor: Pool | None = None) -> None:
        self._agreement = agreement
        self._keys_path = keys_path
        self._executor = executor
        parts = ExchangeParts(agreement, limits_of(agreement), keys_path, executor)
        self._exchange = build_half(parts)
        self._grouping = SiteGrouping(parts) if agreement.method.is_grouped else None

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
    shared = {id(payload): payload for payload in payloads.values()}
    contents = {number: codec.encode_payload(payload) for number, payload in shared.items()}
    return {site: contents[id(payload)] for site, payload in payloads.items()}
