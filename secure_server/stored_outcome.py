"""Outcome of an attempt as the coordinator stores it: results as bytes, groups of a clustering, failed groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from crypto.protection import Payload
from protoseal_wire import codec
from secure_server.exchanges.exchange import GroupFailure, Outcome
from secure_server.rounds.state import Groups


@dataclass(frozen=True)
class EncodedOutcome:
    """Results and sums of sites as bytes, the groups of a clustering, and the groups that get nothing."""

    results: Mapping[str, bytes]
    groups: Groups
    failures: tuple[GroupFailure, ...]
    sums: Mapping[str, bytes]


def encode_outcome(outcome: Outcome) -> EncodedOutcome:
    """Encode an outcome."""
    return EncodedOutcome(_encoded(outcome.results), outcome.groups, outcome.failures, _encoded(outcome.sums))


def _encoded(payloads: Mapping[str, Payload]) -> dict[str, bytes]:
    """Encode payloads by site. A payload that several sites share, of megabytes, is encoded once."""
    contents = {id(payload): codec.encode_payload(payload) for payload in payloads.values()}
    return {site: contents[id(payload)] for site, payload in payloads.items()}
