"""Sizes of the messages that sites and coordinator would exchange under ``plain``, from their forms alone.

The sizes of payloads are exact. Those of statements are exact but for their signatures and certificates, which differ
by a byte or two from run to run: signatures count as 71 bytes, the mean of their sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from agreement import Agreement
from agreement.derived.cohorts import has_result
from algorithms.gram_matrix import Bool
from crypto.plain import SCHEME
from crypto.roster import Statement
from protoseal.simulation.tensors.exchanges import Shapes
from protoseal_wire import codec
from protoseal_wire.messages import (
    Acknowledgement,
    ActiveList,
    Phase,
    PresenceStatement,
    Roster,
    RosterAnswer,
    RoundStart,
)
from secure_server.rounds.state import Groups

_HASH, _KEY, _SIGNATURE = bytes(32), bytes(32), bytes(71)
Message = tuple[str, Phase, int, bool]
"""A message's site, phase and size in bytes, and True for an answer of the site."""


def setup_messages(agreement: Agreement, names: Sequence[str]) -> Iterator[Message]:
    """Yield the messages of a run's set-up: the roster of all sites, and its acknowledgement."""
    statements = (
        Statement(name, bytes(_certificate_bytes(agreement.federation, name)), _KEY, _SIGNATURE)
        for name in names
    )
    roster = len(codec.encode_roster(Roster(tuple(statements))))
    answer = len(codec.encode_roster_answer(RosterAnswer(_HASH)))
    for name in names:
        yield name, Phase.ROSTER, roster, False
        yield name, Phase.ROSTER, answer, True


@dataclass(frozen=True)
class RoundFacts:
    """Participants of a round, the classes that they state (n, K), all groups, and True if they have a base."""

    names: tuple[str, ...]
    holds: Bool
    groups: Groups
    has_base: bool


def round_messages(
    round_number: int, facts: RoundFacts, sent: Sequence[Shapes], result: Sequence[Shapes]
) -> Iterator[Message]:
    """Yield the messages of a round, in which the participants' payloads have the shapes ``sent`` and ``result``."""
    base = _HASH if facts.has_base else b""
    start = len(codec.encode_round_start(RoundStart(facts.groups, base)))
    statements = [
        PresenceStatement(name, held, _SIGNATURE, base)
        for name, held in zip(facts.names, facts.holds, strict=True)
    ]
    everyone = len(codec.encode_active_list(ActiveList(tuple(statements))))
    acknowledged = len(codec.encode_acknowledgement(Acknowledgement()))
    for statement, values, means in zip(statements, sent, result, strict=True):
        name = statement.site
        yield name, Phase.PRESENCE, start, False
        yield name, Phase.PRESENCE, len(codec.encode_presence(statement)), True
        yield name, Phase.VALUES, everyone, False
        yield name, Phase.VALUES, payload_bytes(values), True
        if has_result(round_number):
            yield name, Phase.RESULT, payload_bytes(means), False
            yield name, Phase.RESULT, acknowledged, True


def payload_bytes(shapes: Shapes) -> int:
    """Return the size of an encoded payload of float64 arrays of these shapes, which are not made."""
    tensors = sum(_field(_tensor_bytes(shape)) for shape in shapes)
    version = 2
    return version + _field(_field(len(SCHEME)) + tensors)


def _tensor_bytes(shape: tuple[int, ...]) -> int:
    data = 8 * prod(shape)
    dtype = 2
    return dtype + _field(sum(map(_varint, shape))) + (_field(data) if data else 0)


def _field(length: int) -> int:
    """Return the size of a protobuf field of ``length`` bytes, with its tag and length."""
    return 1 + _varint(length) + length


def _varint(number: int) -> int:
    return max(1, -(-number.bit_length() // 7))


def _certificate_bytes(federation: str, site: str) -> int:
    """Return the mean size of a site's certificate, which names the federation three times and the site twice."""
    return 466 + 3 * len(federation) + 2 * len(site)
