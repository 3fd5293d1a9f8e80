"""Codec of a round's contents: one ``encode_`` and one ``decode_`` for each kind.

The form of a payload depends on the agreement and the phase, so functions that decode a payload take its form.
"""

from __future__ import annotations

from itertools import chain

from crypto.pairwise.wire_values import MaskKeys
from crypto.protection import Payload, PayloadForm
from protoseal_wire.codec.canonical import parse, serialise
from protoseal_wire.codec.errors import Malformed
from protoseal_wire.codec.fields import (
    anchor_message,
    check_bytes,
    check_count,
    check_distinct,
    check_exact,
    check_name,
    check_one_length,
    check_present,
    check_scheme,
    check_signature,
    check_sorted,
    decode_bools,
    decode_floats,
    decode_words,
    encode_bools,
    encode_floats,
    encode_words,
    read_anchor,
)
from protoseal_wire.codec.limits import BLOB_BYTES, CHANNEL_KEY_BYTES, Limits
from protoseal_wire.messages import ActiveList, PresenceStatement, RoundStart
from protoseal_wire.v1 import protoseal_pb2 as pb


def encode_round_start(start: RoundStart) -> bytes:
    """Encode the request of PRESENCE."""
    groups = [pb.Group(sites=group) for group in start.groups]
    catch_up = None if start.catch_up is None else payload_message(start.catch_up)
    return serialise(pb.Content(round_start=pb.RoundStart(groups=groups, base=start.base, catch_up=catch_up)))


def decode_round_start(content: bytes, limits: Limits, form: PayloadForm) -> RoundStart:
    """Decode the request of PRESENCE; ``catch_up`` must have the ``form`` of a result.

    Limit: the receiver must check that ``catch_up`` has the hash ``base``.
    """
    message = parse(content, "round_start", limits.round_start).round_start
    catch_up = read_payload(message.catch_up, form) if message.HasField("catch_up") else None
    base = _check_base(message.base)
    if catch_up is not None and not base:
        raise Malformed("a result to catch up with lacks its hash")
    return RoundStart(_read_groups(message, limits), base, catch_up)


def encode_presence(statement: PresenceStatement) -> bytes:
    """Encode the answer to PRESENCE."""
    return serialise(pb.Content(presence=_presence_message(statement)))


def decode_presence(content: bytes, limits: Limits) -> PresenceStatement:
    """Decode the answer to PRESENCE."""
    return _read_presence(parse(content, "presence", limits.presence).presence, limits)


def encode_active_list(active: ActiveList) -> bytes:
    """Encode the request of VALUES, or of SHARES if masks are used."""
    statements = [_presence_message(statement) for statement in active.statements]
    return serialise(pb.Content(active_list=pb.ActiveList(statements=statements)))


def decode_active_list(content: bytes, limits: Limits) -> ActiveList:
    """Decode the request of VALUES, or of SHARES if masks are used."""
    statements = parse(content, "active_list", limits.active_list).active_list.statements
    check_count("presence statements", statements, 1, limits.sites)
    return ActiveList(tuple(_read_presence(statement, limits) for statement in statements))


def encode_payload(payload: Payload) -> bytes:
    """Encode the answer to VALUES, or the request of RESULT."""
    return serialise(pb.Content(payload=payload_message(payload)))


def decode_payload(content: bytes, limits: Limits, form: PayloadForm) -> Payload:
    """Decode a payload with exactly the arrays and words of ``form``, or at most its number of ciphertexts.

    Arrays must be finite. Limit: the protections check that the scheme is known.
    """
    return read_payload(parse(content, "payload", limits.payload).payload, form)


def payload_message(payload: Payload) -> pb.Payload:
    """Return a payload as a field of a content."""
    return pb.Payload(
        scheme=payload.scheme,
        tensors=[encode_floats(array) for array in payload.arrays],
        blobs=payload.blobs,
        words=[encode_words(words) for words in payload.words],
    )


def read_payload(message: pb.Payload, form: PayloadForm) -> Payload:
    """Read a payload from a field of a content, with the checks of :func:`decode_payload`."""
    check_count("arrays", message.tensors, len(form.arrays), len(form.arrays))
    check_count("vectors of words", message.words, len(form.words), len(form.words))
    check_count("ciphertexts", message.blobs, min(1, form.blobs), form.blobs)
    arrays = tuple(decode_floats(each, axes) for each, axes in zip(message.tensors, form.arrays, strict=True))
    check_one_length(message.tensors, form.arrays)
    return Payload(
        check_scheme(message.scheme),
        arrays,
        tuple(check_bytes("a ciphertext", blob, BLOB_BYTES) for blob in message.blobs),
        tuple(decode_words(each, *shape) for each, shape in zip(message.words, form.words, strict=True)),
    )


def _read_groups(message: pb.RoundStart, limits: Limits) -> tuple[tuple[str, ...], ...]:
    """Read groups, each sorted, in the order of their first names, with no site in two groups."""
    check_count("groups", message.groups, 0, limits.sites)
    for group in message.groups:
        check_count("sites in a group", group.sites, 1, limits.sites)
    groups = tuple(check_sorted("a group's sites", group.sites) for group in message.groups)
    check_sorted("the groups' first sites", [group[0] for group in groups])
    everyone = list(chain.from_iterable(groups))
    check_distinct("the sites of all groups", everyone)
    check_count("sites in groups", everyone, 0, limits.sites)
    return groups


def _check_base(base: bytes) -> bytes:
    return check_exact("base", base) if base else base


def _presence_message(statement: PresenceStatement) -> pb.PresenceStatement:
    keys = statement.keys
    return pb.PresenceStatement(
        site=statement.site,
        holds=encode_bools(statement.holds),
        signature=statement.signature,
        base=statement.base,
        keys=None if keys is None else pb.MaskKeys(mask=keys.mask, share=keys.share),
        anchor=anchor_message(statement.anchor),
    )


def _read_presence(message: pb.PresenceStatement, limits: Limits) -> PresenceStatement:
    check_present(message, "holds")
    return PresenceStatement(
        check_name("a presence statement's site", message.site),
        decode_bools(message.holds, (limits.classes,)),
        check_signature(message.signature),
        _check_base(message.base),
        _read_keys(message.keys) if message.HasField("keys") else None,
        read_anchor(message.anchor) if message.HasField("anchor") else None,
    )


def _read_keys(message: pb.MaskKeys) -> MaskKeys:
    return MaskKeys(
        check_exact("a mask key", message.mask, CHANNEL_KEY_BYTES),
        check_exact("a share key", message.share, CHANNEL_KEY_BYTES),
    )
