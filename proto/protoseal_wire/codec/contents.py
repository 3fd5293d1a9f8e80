"""What Upload and Download carry, as bytes: one ``encode_`` and one ``decode_`` for each kind.

A content is a protobuf ``Content`` with a version marker. There is one byte string for each value: whatever
does not come out the same when serialised again (unknown fields, fields twice or out of order, defaults
written out) is :class:`Malformed`. Every ``decode_`` raises a :class:`CodecError` and nothing else, whatever
the bytes are. The limit: shapes and sizes are checked here, signatures are not.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from crypto.protection import Payload
from crypto.roster import Statement
from crypto.sealed import SealedSecret
from protoseal_wire.codec.errors import Malformed, TooLarge, UnknownVersion
from protoseal_wire.codec.fields import (
    check_bytes,
    check_count,
    check_exact,
    check_name,
    check_scheme,
    check_signature,
    check_there,
    decode_bools,
    decode_floats,
    encode_bools,
    encode_floats,
)
from protoseal_wire.codec.limits import (
    BLOB_BYTES,
    CERTIFICATE_BYTES,
    CHANNEL_KEY_BYTES,
    EVALUATION_KEYS_BYTES,
    SEALED_BYTES,
    Limits,
)
from protoseal_wire.messages import (
    Acknowledgement,
    ActiveList,
    GroupKeys,
    PresenceStatement,
    Roster,
    RosterAnswer,
    RoundStart,
)
from protoseal_wire.v1 import protoseal_pb2 as pb

CONTENT_VERSION = 1


def encode_statement(statement: Statement) -> bytes:
    """A site's signed channel key."""
    return _serialise(pb.Content(statement=statement_message(statement)))


def decode_statement(content: bytes, limits: Limits) -> Statement:
    """The reverse of :func:`encode_statement`."""
    return read_statement(_parse(content, "statement", limits.statement).statement)


def encode_roster(roster: Roster) -> bytes:
    """The request of ROSTER."""
    statements = [statement_message(statement) for statement in roster.statements]
    return _serialise(pb.Content(roster=pb.Roster(statements=statements)))


def decode_roster(content: bytes, limits: Limits) -> Roster:
    """The reverse of :func:`encode_roster`."""
    statements = _parse(content, "roster", limits.roster).roster.statements
    check_count("statements", statements, 1, limits.sites)
    return Roster(tuple(read_statement(statement) for statement in statements))


def encode_roster_answer(answer: RosterAnswer) -> bytes:
    """The answer to ROSTER."""
    keys = None if answer.keys is None else _group_keys_message(answer.keys)
    return _serialise(pb.Content(roster_answer=pb.RosterAnswer(roster_hash=answer.roster_hash, keys=keys)))


def decode_roster_answer(content: bytes, limits: Limits) -> RosterAnswer:
    """The reverse of :func:`encode_roster_answer`."""
    message = _parse(content, "roster_answer", limits.roster_answer).roster_answer
    keys = _read_group_keys(message.keys, limits) if message.HasField("keys") else None
    return RosterAnswer(check_exact("roster_hash", message.roster_hash), keys)


def encode_sealed_secret(sealed: SealedSecret) -> bytes:
    """The request of SECRET."""
    return _serialise(pb.Content(sealed_secret=_sealed_message(sealed)))


def decode_sealed_secret(content: bytes, limits: Limits) -> SealedSecret:
    """The reverse of :func:`encode_sealed_secret`."""
    return _read_sealed(_parse(content, "sealed_secret", limits.sealed_secret).sealed_secret)


def encode_round_start(_: RoundStart) -> bytes:
    """The request of PRESENCE."""
    return _serialise(pb.Content(round_start=pb.RoundStart()))


def decode_round_start(content: bytes, limits: Limits) -> RoundStart:
    """The reverse of :func:`encode_round_start`."""
    _parse(content, "round_start", limits.empty)
    return RoundStart()


def encode_presence(statement: PresenceStatement) -> bytes:
    """The answer to PRESENCE."""
    return _serialise(pb.Content(presence=_presence_message(statement)))


def decode_presence(content: bytes, limits: Limits) -> PresenceStatement:
    """The reverse of :func:`encode_presence`."""
    return _read_presence(_parse(content, "presence", limits.presence).presence, limits)


def encode_active_list(active: ActiveList) -> bytes:
    """The request of VALUES."""
    statements = [_presence_message(statement) for statement in active.statements]
    return _serialise(pb.Content(active_list=pb.ActiveList(statements=statements)))


def decode_active_list(content: bytes, limits: Limits) -> ActiveList:
    """The reverse of :func:`encode_active_list`."""
    statements = _parse(content, "active_list", limits.active_list).active_list.statements
    check_count("presence statements", statements, 1, limits.sites)
    return ActiveList(tuple(_read_presence(statement, limits) for statement in statements))


def encode_payload(payload: Payload) -> bytes:
    """The answer to VALUES, and the request of RESULT."""
    tensors = [encode_floats(array) for array in payload.arrays]
    return _serialise(
        pb.Content(payload=pb.Payload(scheme=payload.scheme, tensors=tensors, blobs=payload.blobs))
    )


def decode_payload(content: bytes, limits: Limits) -> Payload:
    """The reverse of :func:`encode_payload`: one finite float64 array of shape (K, d), or ciphertexts."""
    message = _parse(content, "payload", limits.payload).payload
    if bool(message.tensors) == bool(message.blobs):
        raise Malformed("a payload has either an array or ciphertexts")
    check_count("arrays", message.tensors, 0, 1)
    check_count("ciphertexts", message.blobs, 0, limits.blobs)
    return Payload(
        check_scheme(message.scheme),
        tuple(decode_floats(tensor, (limits.classes, limits.dim)) for tensor in message.tensors),
        tuple(check_bytes("a ciphertext", blob, BLOB_BYTES) for blob in message.blobs),
    )


def encode_acknowledgement(_: Acknowledgement) -> bytes:
    """The answer to SECRET and RESULT."""
    return _serialise(pb.Content(acknowledgement=pb.Acknowledgement()))


def decode_acknowledgement(content: bytes, limits: Limits) -> Acknowledgement:
    """The reverse of :func:`encode_acknowledgement`."""
    _parse(content, "acknowledgement", limits.empty)
    return Acknowledgement()


def statement_message(statement: Statement) -> pb.Statement:
    """A statement as a part of a larger message."""
    return pb.Statement(
        site=statement.site,
        certificate=statement.certificate,
        channel_key=statement.channel_key,
        signature=statement.signature,
    )


def read_statement(message: pb.Statement) -> Statement:
    """The reverse of :func:`statement_message`."""
    return Statement(
        check_name("a statement's site", message.site),
        check_bytes("a certificate", message.certificate, CERTIFICATE_BYTES),
        check_exact("a channel key", message.channel_key, CHANNEL_KEY_BYTES),
        check_signature(message.signature),
    )


def _serialise(content: pb.Content) -> bytes:
    content.version = CONTENT_VERSION
    return content.SerializeToString(deterministic=True)


def _parse(content: bytes, kind: str, most: int) -> pb.Content:
    """The content, if it is of this kind and version, in canonical form and not too large."""
    if len(content) > most:
        raise TooLarge(f"a {kind} has {len(content)} bytes, at most {most} are taken")
    try:
        message = pb.Content.FromString(content)
    except DecodeError as error:
        raise Malformed(f"a {kind} is not a protobuf message") from error
    _check_version(message, kind)
    _check_kind(message, kind)
    _check_canonical(message, content, kind)
    return message


def _check_version(message: pb.Content, kind: str) -> None:
    if message.version != CONTENT_VERSION:
        raise UnknownVersion(f"a {kind} is of version {message.version}; this build knows {CONTENT_VERSION}")


def _check_kind(message: pb.Content, kind: str) -> None:
    if message.WhichOneof("body") != kind:
        raise Malformed(f"a {message.WhichOneof('body')} came where a {kind} is due")


def _check_canonical(message: pb.Content, content: bytes, kind: str) -> None:
    message.DiscardUnknownFields()  # else they would be serialised again
    if message.SerializeToString(deterministic=True) != content:
        raise Malformed(f"a {kind} has unknown fields or is not in canonical form")


def _group_keys_message(keys: GroupKeys) -> pb.GroupKeys:
    return pb.GroupKeys(
        evaluation_keys=keys.evaluation_keys, sealed=[_sealed_message(sealed) for sealed in keys.sealed]
    )


def _read_group_keys(message: pb.GroupKeys, limits: Limits) -> GroupKeys:
    check_count("sealed secrets", message.sealed, 1, limits.sites)
    return GroupKeys(
        check_bytes("evaluation_keys", message.evaluation_keys, EVALUATION_KEYS_BYTES),
        tuple(_read_sealed(sealed) for sealed in message.sealed),
    )


def _sealed_message(sealed: SealedSecret) -> pb.SealedSecret:
    return pb.SealedSecret(
        maker=sealed.maker,
        recipient=sealed.recipient,
        roster_hash=sealed.roster_hash,
        public_hash=sealed.public_hash,
        sealed=sealed.sealed,
        signature=sealed.signature,
    )


def _read_sealed(message: pb.SealedSecret) -> SealedSecret:
    return SealedSecret(
        check_name("a sealed secret's maker", message.maker),
        check_name("a sealed secret's recipient", message.recipient),
        check_exact("roster_hash", message.roster_hash),
        check_exact("public_hash", message.public_hash),
        check_bytes("a sealed secret", message.sealed, SEALED_BYTES),
        check_signature(message.signature),
    )


def _presence_message(statement: PresenceStatement) -> pb.PresenceStatement:
    return pb.PresenceStatement(
        site=statement.site, holds=encode_bools(statement.holds), signature=statement.signature
    )


def _read_presence(message: pb.PresenceStatement, limits: Limits) -> PresenceStatement:
    check_there(message, "holds")
    return PresenceStatement(
        check_name("a presence statement's site", message.site),
        decode_bools(message.holds, (limits.classes,)),
        check_signature(message.signature),
    )
