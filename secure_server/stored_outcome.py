"""Outcome of an attempt as the coordinator stores it: results as bytes, groups of a clustering, failed groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protoseal_wire import codec
from secure_server.exchanges.base import GroupFailure, Outcome
from secure_server.rounds.state import Groups


@dataclass(frozen=True)
class EncodedOutcome:
    """Results of sites as bytes, the groups of a clustering, and the groups that get nothing."""

    results: Mapping[str, bytes]
    groups: Groups
    failures: tuple[GroupFailure, ...]


def encode_outcome(outcome: Outcome) -> EncodedOutcome:
    """Encode an outcome. A result that several sites share, of megabytes, is encoded once."""
    contents = {id(payload): codec.encode_payload(payload) for payload in outcome.results.values()}
    results = {site: contents[id(payload)] for site, payload in outcome.results.items()}
    return EncodedOutcome(results, outcome.groups, outcome.failures)
