"""The largest of every kind fits its bound, and one that is larger is refused before it is parsed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from crypto.keys import ChannelKey, seal
from crypto.pairwise.attempt import MaskKeys
from crypto.pairwise.shares import ReleasedShare, SealedShare, ShareKind
from crypto.protection import Payload, PayloadShape, UpTo
from crypto.roster import Statement
from crypto.sealed_group_secret import SealedSecret
from protoseal_wire import codec
from protoseal_wire.codec import Limits, Malformed, TooLarge
from protoseal_wire.codec.limits import CONTENT_CEILING, SEALED_SHARE_BYTES, SHARE_BYTES
from protoseal_wire.messages import (
    Acknowledgement,
    ActiveList,
    AssignedRows,
    Assignment,
    GroupKeys,
    LedgerAnchor,
    MaskedValues,
    Phase,
    PresenceStatement,
    ReceivedShares,
    ReleasedShares,
    Roster,
    RosterAnswer,
    RoundStart,
    SharesMade,
    SignedSurvivors,
    SumMembers,
    SurvivorSet,
    SurvivorSignature,
)
from protoseal_wire.v1 import protoseal_pb2 as pb
from tests.protoseal_wire.codec.test_content_bytes import decode, encode
from tests.protoseal_wire.values import plain

LARGE = Limits(classes=100, dim=128, sites=5, parameters=500_000)
LENGTH = 100 * 128 + 500_000
SCHEME = "c" * 31 + "/999"
SITES = tuple(sorted(letter * 63 for letter in "abcde"))
SIGNATURE = bytes(72)
STATEMENT = Statement("a" * 63, bytes(4096), bytes(32), SIGNATURE)
SEALED = SealedSecret("a" * 63, "b" * 63, bytes(32), bytes(32), bytes(2**19), SIGNATURE)
PRESENCE = PresenceStatement(
    "a" * 63,
    np.ones(100, dtype=np.bool_),
    SIGNATURE,
    bytes(32),
    MaskKeys(bytes(32), bytes(32)),
    LedgerAnchor(bytes(32), 2**63 - 1, bytes(32)),
)
RESULT = Payload(SCHEME, (np.ones(LENGTH), np.ones(100)))
SHARES = tuple(SealedShare("f" * 63, site, bytes(192), SIGNATURE) for site in SITES)
SIGNED = tuple(SurvivorSignature(site, SIGNATURE) for site in SITES)
LARGEST: Mapping[str, object] = {
    "statement": STATEMENT,
    "roster": Roster((STATEMENT,) * 5),
    "roster_answer": RosterAnswer(bytes(32), GroupKeys(bytes(2**24), (SEALED,) * 5)),
    "sealed_secret": SEALED,
    "round_start": RoundStart(tuple((site,) for site in SITES), bytes(32), RESULT),
    "presence": PRESENCE,
    "active_list": ActiveList((PRESENCE,) * 5),
    "payload": RESULT,
    "assignment": Assignment(tuple(AssignedRows(site, np.full(100, 99), np.full(100, 99)) for site in SITES)),
    "acknowledgement": Acknowledgement(),
    "shares_made": SharesMade(SHARES),
    "received_shares": ReceivedShares(
        tuple(replace(share, sender=share.recipient, recipient="f" * 63) for share in SHARES), SITES
    ),
    "masked_values": MaskedValues(RESULT, bytes(72)),
    "survivor_set": SurvivorSet(SITES),
    "survivor_signature": SIGNED[0],
    "signed_survivors": SignedSurvivors(SITES, SIGNED, SIGNED),
    "sum_members": SumMembers(2**64 - 1, 2**64 - 1, SITES, bytes(32), SignedSurvivors(SITES, SIGNED)),
    "released_shares": ReleasedShares(tuple(ReleasedShare(site, ShareKind.KEY, bytes(33)) for site in SITES)),
}
BOUNDS = {
    **{kind: kind for kind in LARGEST},
    "acknowledgement": "empty",
    "shares_made": "sealed_shares",
    "masked_values": "payload",
}
FORMS = dict.fromkeys(("round_start", "payload", "masked_values"), PayloadShape(arrays=((LENGTH,), (100,))))


@pytest.mark.parametrize("kind", LARGEST)
def test_limits_largest_content_accepted(kind: str) -> None:
    content = encode(kind, LARGEST[kind])
    assert plain(decode(kind, content, LARGE, FORMS.get(kind))) == plain(LARGEST[kind])


@pytest.mark.parametrize("kind", LARGEST)
def test_limits_larger_content_refused_before_parsing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    most = getattr(LARGE, BOUNDS[kind])
    monkeypatch.setattr(pb, "Content", None)
    with pytest.raises(TooLarge):
        decode(kind, bytes(most + 1), LARGE, FORMS.get(kind))


def test_limits_most_ciphertexts_accepted() -> None:
    limits = replace(LARGE, parameters=0)
    value = Payload(SCHEME, (), (bytes(2**19),) * limits.blobs)
    content = codec.encode_payload(value)
    assert codec.decode_payload(content, limits, PayloadShape(blobs=limits.blobs)) == value
    with pytest.raises(Malformed, match="ciphertexts"):
        codec.decode_payload(content, limits, PayloadShape(blobs=limits.blobs - 1))


@pytest.mark.parametrize("bits", [32, 64])
def test_limits_most_words_accepted(bits: int) -> None:
    value = Payload(SCHEME, words=(np.full(LENGTH, 2**bits - 1, f"u{bits // 8}"),))
    form = PayloadShape(words=((bits, LENGTH),))
    assert plain(codec.decode_payload(codec.encode_payload(value), LARGE, form)) == plain(value)


@pytest.mark.parametrize("classes", [1, 100])
def test_limits_most_prototypes_of_a_class_accepted(classes: int) -> None:
    """The most prototypes fit as sent under `plain` with a model and its weight, in a result, and when assigned."""
    limits = Limits(classes=classes, dim=3, sites=5, parameters=1000, per_class=256)
    rows = UpTo(256 * classes)
    form = PayloadShape(arrays=((rows, 3), (rows,), (rows,), (1001,)))
    value = Payload(SCHEME, tuple(np.ones([rows.most, 3][: len(axes)]) for axes in form.arrays[:3]))
    value = replace(value, arrays=(*value.arrays, np.ones(1001)))
    assert plain(codec.decode_payload(codec.encode_payload(value), limits, form)) == plain(value)
    last = np.full(rows.most, rows.most - 1)
    assignment = Assignment(tuple(AssignedRows(site, last // 256, last) for site in SITES))
    assert plain(codec.decode_assignment(codec.encode_assignment(assignment), limits)) == plain(assignment)


def test_limits_sum_with_signed_members_accepted() -> None:
    form = PayloadShape(arrays=((2 * 10**6,), (2,)), blobs=1)
    members = codec.encode_sum_members(SumMembers(1, 1, SITES, bytes(32), SignedSurvivors(SITES, SIGNED)))
    value = Payload(SCHEME, (np.ones(2 * 10**6), np.ones(2)), (members,))
    limits = Limits(classes=2, dim=10**6, sites=5, members=True)
    assert plain(codec.decode_payload(codec.encode_payload(value), limits, form)) == plain(value)


def test_limits_plain_payload_of_one_class_accepted() -> None:
    limits, form = Limits(classes=1, dim=10**6), PayloadShape(arrays=((1, 10**6),))
    value = Payload("plain/1", (np.ones((1, 10**6)),))
    assert plain(codec.decode_payload(codec.encode_payload(value), limits, form)) == plain(value)


def test_limits_two_sealed_shares_accepted() -> None:
    sealed = seal(ChannelKey.generate().public_bytes, bytes(2 * SHARE_BYTES), b"info")
    assert len(sealed) <= SEALED_SHARE_BYTES


@pytest.mark.parametrize(("classes", "dim", "blobs"), [(10, 512, 6), (10, 256, 4), (16, 257, 6), (1, 1, 4)])
def test_limits_ciphertexts_by_classes_and_dimension(classes: int, dim: int, blobs: int) -> None:
    assert Limits(classes, dim).blobs == blobs


def test_limits_bytes_by_phase() -> None:
    assert {phase: LARGE.answer_bytes(phase) for phase in Phase} == {
        Phase.ROSTER: LARGE.roster_answer,
        Phase.SECRET: LARGE.empty,
        Phase.PRESENCE: LARGE.presence,
        Phase.DIRECTIONS: LARGE.payload,
        Phase.SHARES: LARGE.sealed_shares,
        Phase.VALUES: LARGE.payload,
        Phase.SURVIVORS: LARGE.survivor_signature,
        Phase.UNMASK: LARGE.released_shares,
        Phase.MEANS: LARGE.payload,
        Phase.RESULT: LARGE.empty,
    }
    assert {phase: LARGE.request_bytes(phase) for phase in Phase} == {
        Phase.ROSTER: LARGE.roster,
        Phase.SECRET: LARGE.sealed_secret,
        Phase.PRESENCE: LARGE.round_start,
        Phase.DIRECTIONS: LARGE.active_list,
        Phase.SHARES: max(LARGE.active_list, LARGE.assignment),
        Phase.VALUES: max(LARGE.active_list, LARGE.received_shares),
        Phase.SURVIVORS: LARGE.survivor_set,
        Phase.UNMASK: LARGE.signed_survivors,
        Phase.MEANS: LARGE.payload,
        Phase.RESULT: LARGE.payload,
    }


@pytest.mark.parametrize("sites", [5, 256, 1024])
def test_limits_values_request_fits_active_list_and_shares(sites: int) -> None:
    """The number of classes decides which is larger: a request by an active list or a request by shares."""
    for classes in (1, 10_000):
        limits = Limits(classes, 1, sites)
        assert limits.request_bytes(Phase.VALUES) >= limits.active_list
        assert limits.request_bytes(Phase.VALUES) >= limits.received_shares


@pytest.mark.parametrize("fields", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1, 1, 1025)])
def test_limits_impossible_run_raises_value_error(fields: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="sites"):
        Limits(*fields)


def test_limits_negative_parameters_raise_value_error() -> None:
    with pytest.raises(ValueError, match="parameters"):
        Limits(3, 2, parameters=-1)


LARGEST_EXTRACTOR = 134_215_031
"""Largest extractor for three classes, two features and 256 sites, counted from the ceiling."""


def test_limits_model_above_ceiling_raises_value_error() -> None:
    limits = Limits(3, 2, 256, parameters=LARGEST_EXTRACTOR)
    for phase in Phase:
        assert limits.answer_bytes(phase) <= CONTENT_CEILING
        assert limits.request_bytes(phase) <= CONTENT_CEILING
    with pytest.raises(ValueError, match="numbers"):
        replace(limits, parameters=LARGEST_EXTRACTOR + 1)


def test_limits_too_large_for_ciphertexts_alone_accepted() -> None:
    limits = Limits(classes=10, dim=2**20)
    assert limits.blobs * 2**19 > CONTENT_CEILING
    assert max(limits.payload, limits.round_start) <= CONTENT_CEILING
