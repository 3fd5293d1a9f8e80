"""Codec of contents, which Upload and Download carry: each kind is declared once for ``encode`` and ``decode``.

A content is a protobuf ``Content`` with a version marker, in canonical form: each value has one byte string, so that a
hash of the bytes is a hash of the value. Bytes that differ when serialised again (unknown fields, fields twice or out
of order, defaults written out) are :class:`Malformed`.

:class:`protoseal_wire.messages.Phase` says which phase carries which content.

Limit: names, sizes, counts and repetitions are checked here. :mod:`crypto` and its callers check group membership,
signatures and sealed messages.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from crypto.pairwise.attempt import MaskKeys
from crypto.pairwise.shares import ReleasedShare, SealedShare, ShareKind
from crypto.protection import Payload, PayloadShape, UpTo
from crypto.roster import Statement
from crypto.sealed_group_secret import SealedSecret
from protoseal_wire import messages
from protoseal_wire.codec import limits as sizes
from protoseal_wire.codec.errors import Malformed, TooLarge, UnknownVersion
from protoseal_wire.codec.limits import Limits
from protoseal_wire.codec.shapes import (
    PLAIN,
    SIGNATURE,
    Bounds,
    Field,
    bounded,
    check_ascending,
    check_count,
    check_distinct,
    check_names,
    checked,
    exact,
    matching,
    member,
    name,
    optional,
    repeated,
    scalar,
    shape,
    sole,
    sorted_names,
)
from protoseal_wire.codec.tensors import (
    check_one_length,
    decode_bools,
    decode_floats,
    decode_words,
    encode_bools,
    encode_floats,
    encode_words,
)
from protoseal_wire.v1 import protoseal_pb2 as pb

CONTENT_VERSION = 1

_LARGE = 64 * 1024
_last_large = [(b"", hashlib.sha256(b"").digest())]

V = TypeVar("V")

_kinds: set[str] = set()


def content_hash(content: bytes) -> bytes:
    """Return the SHA-256 (32 bytes) of a content, computed once for a large content that comes again.

    A site needs the hash of a result for the transfer, for its journal and as the base of later rounds; a coordinator
    needs it for each site that shares the result. Limit: the last large content of the process stays in memory.
    """
    last, digest = _last_large[0]
    # Identity suffices, since bytes cannot change: a comparison would cost a pass over them.
    if content is last:
        return digest
    digest = hashlib.sha256(content).digest()
    if len(content) >= _LARGE:
        _last_large[0] = content, digest  # in one step, since other threads read the pair
    return digest


def content_with_payload(
    kind: str, most: Callable[[Limits], int], body: Field[Any, V]
) -> tuple[Callable[[V], bytes], Callable[[bytes, Limits, PayloadShape], V]]:
    """Return ``encode`` and ``decode`` of a kind of content with a payload; ``most`` is its largest size in bytes.

    ``decode`` raises a ``CodecError``, and no other error, for all bytes that ``encode`` does not return. The payload
    must have exactly the arrays and words of its shape, or at most its number of ciphertexts, and finite arrays. The
    shape depends on the agreement and the phase.
    """
    _kinds.add(kind)

    def encode(value: V) -> bytes:
        message = pb.Content(**{kind: body.write(value)})
        message.version = CONTENT_VERSION
        return message.SerializeToString(deterministic=True)

    def decode(content: bytes, limits: Limits, payload: PayloadShape) -> V:
        return body.read(getattr(_parse(content, kind, most(limits)), kind), Bounds(limits, payload))

    return encode, decode


def content(
    kind: str, most: Callable[[Limits], int], body: Field[Any, V]
) -> tuple[Callable[[V], bytes], Callable[[bytes, Limits], V]]:
    """Return ``encode`` and ``decode`` of a kind of content without a payload; see :func:`content_with_payload`."""
    encode, decode = content_with_payload(kind, most, body)
    return encode, lambda content, limits: decode(content, limits, PayloadShape())


def _parse(content: bytes, kind: str, most: int) -> pb.Content:
    """Return the content if it is of this kind and version, in canonical form and not too large."""
    if len(content) > most:  # before parsing, which takes several times the memory
        raise TooLarge(f"a {kind} has {len(content)} bytes; at most {most} are allowed")
    try:
        message = pb.Content.FromString(content)
    except DecodeError as error:
        raise Malformed(f"a {kind} is not a protobuf message") from error
    if message.version != CONTENT_VERSION:
        raise UnknownVersion(f"a {kind} has version {message.version}; this build knows {CONTENT_VERSION}")
    if message.WhichOneof("body") != kind:
        raise Malformed(f"expected a {kind}, not a {message.WhichOneof('body')}")
    message.DiscardUnknownFields()  # otherwise unknown fields would be serialised again, and look canonical
    if message.SerializeToString(deterministic=True) != content:
        raise Malformed(f"a {kind} has unknown fields or is not in canonical form")
    return message


# Payload.


def _write_payload(payload: Payload) -> dict[str, Any]:
    """Return the fields of a ``pb.Payload``: see :mod:`protoseal_wire.codec.tensors`."""
    return {
        "scheme": payload.scheme,
        "tensors": [encode_floats(array) for array in payload.arrays],
        "blobs": payload.blobs,
        "words": [encode_words(words) for words in payload.words],
    }


def _read_payload(message: pb.Payload, bounds: Bounds) -> Payload:
    """Return a payload, whose shape is in the bounds instead of a table."""
    expected = bounds.payload
    check_count("arrays", message.tensors, len(expected.arrays), len(expected.arrays))
    check_count("vectors of words", message.words, len(expected.words), len(expected.words))
    check_count("ciphertexts", message.blobs, min(1, expected.blobs), expected.blobs)
    arrays = tuple(
        decode_floats(tensor, axes) for tensor, axes in zip(message.tensors, expected.arrays, strict=True)
    )
    check_one_length(message.tensors, expected.arrays)
    return Payload(
        _SCHEME.read(message.scheme, bounds),
        arrays,
        tuple(_CIPHERTEXT.read(blob, bounds) for blob in message.blobs),
        tuple(
            decode_words(tensor, bits, length)
            for tensor, (bits, length) in zip(message.words, expected.words, strict=True)
        ),
    )


# Protections check that they know the scheme.
_SCHEME = matching(
    re.compile(r"[a-z][a-z0-9-]{0,30}/[1-9][0-9]{0,2}"), "a payload's scheme is not of the form name/version"
)
_CIPHERTEXT = bounded("a ciphertext", sizes.BLOB_BYTES)
_PAYLOAD: Field[Any, Payload] = Field(_write_payload, _read_payload)
check_names("Payload", pb.Payload.DESCRIPTOR.fields_by_name, ("scheme", "tensors", "blobs", "words"))
encode_payload, decode_payload = content_with_payload("payload", lambda limits: limits.payload, _PAYLOAD)


# Set-up.

STATEMENT = shape(
    pb.Statement,
    Statement,
    site=name("a statement's site"),
    certificate=bounded("a certificate", sizes.CERTIFICATE_BYTES),
    channel_key=exact("a channel key", sizes.CHANNEL_KEY_BYTES),
    signature=SIGNATURE,
)
_SEALED_SECRET = shape(
    pb.SealedSecret,
    SealedSecret,
    maker=name("a sealed secret's maker"),
    recipient=name("a sealed secret's recipient"),
    roster_hash=exact("roster_hash"),
    public_hash=exact("public_hash"),
    sealed=bounded("a sealed secret", sizes.SEALED_BYTES),
    signature=SIGNATURE,
)
_GROUP_KEYS = shape(
    pb.GroupKeys,
    messages.GroupKeys,
    evaluation_keys=bounded("evaluation_keys", sizes.EVALUATION_KEYS_BYTES, least=0),
    sealed=repeated("sealed secrets", _SEALED_SECRET),
)
encode_statement, decode_statement = content("statement", lambda limits: limits.statement, STATEMENT)
encode_roster, decode_roster = content(
    "roster",
    lambda limits: limits.roster,
    shape(pb.Roster, messages.Roster, statements=repeated("statements", STATEMENT)),
)
encode_roster_answer, decode_roster_answer = content(
    "roster_answer",
    lambda limits: limits.roster_answer,
    shape(
        pb.RosterAnswer, messages.RosterAnswer, keys=optional(_GROUP_KEYS), roster_hash=exact("roster_hash")
    ),
)
encode_sealed_secret, decode_sealed_secret = content(
    "sealed_secret", lambda limits: limits.sealed_secret, _SEALED_SECRET
)
encode_acknowledgement, decode_acknowledgement = content(
    "acknowledgement", lambda limits: limits.empty, shape(pb.Acknowledgement, messages.Acknowledgement)
)


# Start of a round, and presence.


def _check_groups(start: messages.RoundStart, limits: Limits) -> None:
    if start.catch_up is not None and not start.base:
        raise Malformed("a result to catch up with lacks its hash")
    check_ascending("the groups' first sites", [group[0] for group in start.groups])
    members = list(chain.from_iterable(start.groups))
    check_distinct("the sites of all groups", members)
    check_count("sites in groups", members, 0, limits.sites)


def _check_entry(number: int) -> int:
    if number > sizes.MOST_ENTRIES:
        raise Malformed(f"the number of a ledger's entry is above {sizes.MOST_ENTRIES}")
    return number


ANCHOR = shape(
    pb.LedgerAnchor,
    messages.LedgerAnchor,
    key=exact("an anchor's key"),
    seq=scalar(_check_entry),
    head=exact("an anchor's head"),
)
_PRESENCE = shape(
    pb.PresenceStatement,
    messages.PresenceStatement,
    site=name("a presence statement's site"),
    holds=Field(encode_bools, lambda tensor, bounds: decode_bools(tensor, (bounds.limits.classes,))),
    signature=SIGNATURE,
    base=exact("base", or_empty=True),
    keys=optional(
        shape(
            pb.MaskKeys,
            MaskKeys,
            mask=exact("a mask key", sizes.CHANNEL_KEY_BYTES),
            share=exact("a share key", sizes.CHANNEL_KEY_BYTES),
        )
    ),
    anchor=optional(ANCHOR),
)
encode_round_start, decode_round_start = content_with_payload(
    "round_start",
    lambda limits: limits.round_start,
    shape(
        pb.RoundStart,
        messages.RoundStart,
        catch_up=optional(_PAYLOAD),
        base=exact("base", or_empty=True),
        groups=repeated("groups", sole(pb.Group, "sites", sorted_names("sites of a group")), least=0),
        check=_check_groups,
    ),
)
"""Limit: the receiver must check that ``catch_up`` has the hash ``base``."""
encode_presence, decode_presence = content("presence", lambda limits: limits.presence, _PRESENCE)
encode_active_list, decode_active_list = content(
    "active_list",
    lambda limits: limits.active_list,
    shape(pb.ActiveList, messages.ActiveList, statements=repeated("presence statements", _PRESENCE)),
)


# Assignment of local prototypes to clusters.


def _indices(label: str, end: Callable[[Limits], int]) -> Field[Any, NDArray[np.int64]]:
    """Return a field of one number below ``end`` for each of a site's local prototypes."""

    def read(tensor: pb.Tensor, bounds: Bounds) -> NDArray[np.int64]:
        numbers = decode_words(tensor, 32, UpTo(bounds.limits.rows))
        if (numbers >= end(bounds.limits)).any():
            raise Malformed(f"{label} is not below {end(bounds.limits)}")
        return numbers.astype(np.int64)

    return Field(lambda numbers: encode_words(numbers.astype(np.uint32)), read)


def _check_rows(rows: messages.AssignedRows, _: Limits) -> None:
    if len(rows.classes) != len(rows.clusters):
        raise Malformed("arrays that belong together differ in length")


def _check_assigned(sites: Sequence[messages.AssignedRows]) -> None:
    check_ascending("assigned sites", [rows.site for rows in sites])


_ASSIGNED_ROWS = shape(
    pb.AssignedRows,
    messages.AssignedRows,
    site=name("assigned sites"),
    classes=_indices("a class", lambda limits: limits.classes),
    clusters=_indices("a cluster", lambda limits: limits.rows),
    check=_check_rows,
)
encode_assignment, decode_assignment = content(
    "assignment",
    lambda limits: limits.assignment,
    shape(
        pb.Assignment,
        messages.Assignment,
        sites=repeated("assigned sites", _ASSIGNED_ROWS, check=_check_assigned),
    ),
)
"""Limit: the receiver must check that clusters are numbered without gaps and have one class each."""


# Masked sum.


def _check_same(label: str, names: Sequence[str]) -> None:
    if len(set(names)) > 1:
        raise Malformed(f"{label} are not all the same")


def _check_made(shares: Sequence[SealedShare]) -> None:
    _check_same("senders", [share.sender for share in shares])
    check_distinct("recipients", [share.recipient for share in shares])


def _check_received(shares: Sequence[SealedShare]) -> None:
    _check_same("recipients", [share.recipient for share in shares])
    check_distinct("senders", [share.sender for share in shares])


def _check_any_received(received: messages.ReceivedShares, limits: Limits) -> None:
    if not received.sharers:
        check_count("shares", received.shares, 1, limits.sites)


def _check_signers(signatures: Sequence[messages.SurvivorSignature]) -> None:
    check_distinct("signers", [signature.site for signature in signatures])


def _check_signed(signed: messages.SignedSurvivors, _: Limits) -> None:
    check_count("signatures", signed.signatures, 1, len(signed.sites))
    check_count("signatures of owners", signed.sharers, 0, len(signed.sites))


def _check_no_sharers(signed: messages.SignedSurvivors) -> None:
    check_count("signatures of owners", signed.sharers, 0, 0)


def _check_owners(shares: Sequence[ReleasedShare]) -> None:
    # Both kinds of one owner would open its values: the seed removes its own mask, the key those that it shares.
    check_distinct("owners", [share.owner for share in shares])


_SEALED_SHARE = shape(
    pb.SealedShare,
    SealedShare,
    sender=name("a share's sender"),
    recipient=name("a share's recipient"),
    sealed=bounded("a sealed share", sizes.SEALED_SHARE_BYTES),
    signature=SIGNATURE,
)
_RELEASED_SHARE = shape(
    pb.ReleasedShare,
    ReleasedShare,
    owner=name("a share's owner"),
    kind=member("kind of share", ShareKind),
    share=exact("a share", sizes.SHARE_BYTES),
)
_SURVIVOR_SIGNATURE = shape(
    pb.SurvivorSignature,
    messages.SurvivorSignature,
    site=name("a signer of survivors"),
    signature=SIGNATURE,
)
_SIGNED_SURVIVORS = shape(
    pb.SignedSurvivors,
    messages.SignedSurvivors,
    sites=sorted_names("survivors"),
    signatures=repeated("signatures", _SURVIVOR_SIGNATURE, check=_check_signers),
    sharers=repeated("signatures of owners", _SURVIVOR_SIGNATURE, least=0, check=_check_signers),
    check=_check_signed,
)
encode_shares_made, decode_shares_made = content(
    "shares_made",
    lambda limits: limits.sealed_shares,
    shape(pb.SharesMade, messages.SharesMade, shares=repeated("shares", _SEALED_SHARE, check=_check_made)),
)
encode_received_shares, decode_received_shares = content(
    "received_shares",
    lambda limits: limits.received_shares,
    shape(
        pb.ReceivedShares,
        messages.ReceivedShares,
        sharers=sorted_names("sharers", least=0),
        shares=repeated("shares", _SEALED_SHARE, least=0, check=_check_received),
        check=_check_any_received,
    ),
)
encode_masked_values, decode_masked_values = content_with_payload(
    "masked_values",
    lambda limits: limits.payload,
    shape(pb.MaskedValues, messages.MaskedValues, payload=_PAYLOAD, signature=SIGNATURE),
)
encode_survivor_set, decode_survivor_set = content(
    "survivor_set",
    lambda limits: limits.survivor_set,
    shape(pb.SurvivorSet, messages.SurvivorSet, sites=sorted_names("survivors")),
)
encode_survivor_signature, decode_survivor_signature = content(
    "survivor_signature", lambda limits: limits.survivor_signature, _SURVIVOR_SIGNATURE
)
encode_signed_survivors, decode_signed_survivors = content(
    "signed_survivors", lambda limits: limits.signed_survivors, _SIGNED_SURVIVORS
)
encode_released_shares, decode_released_shares = content(
    "released_shares",
    lambda limits: limits.released_shares,
    shape(
        pb.ReleasedShares,
        messages.ReleasedShares,
        shares=repeated("shares", _RELEASED_SHARE, check=_check_owners),
    ),
)
encode_sum_members, decode_sum_members = content(
    "sum_members",
    lambda limits: limits.sum_members,
    shape(
        pb.SumMembers,
        messages.SumMembers,
        round=PLAIN,
        attempt=PLAIN,
        listed=sorted_names("listed sites"),
        base=exact("base", or_empty=True),
        signed=checked(_SIGNED_SURVIVORS, _check_no_sharers),
    ),
)

check_names("Content", [body.name for body in pb.Content.DESCRIPTOR.oneofs_by_name["body"].fields], _kinds)
