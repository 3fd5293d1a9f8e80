"""Codec of the set-up's contents and the acknowledgement: one ``encode_`` and one ``decode_`` for each kind."""

from __future__ import annotations

from crypto.roster import Statement
from crypto.sealed_group_secret import SealedSecret
from protoseal_wire.codec.canonical import parse, serialise
from protoseal_wire.codec.fields import check_bytes, check_count, check_exact, check_name, check_signature
from protoseal_wire.codec.limits import (
    CERTIFICATE_BYTES,
    CHANNEL_KEY_BYTES,
    EVALUATION_KEYS_BYTES,
    SEALED_BYTES,
    Limits,
)
from protoseal_wire.messages import Acknowledgement, GroupKeys, Roster, RosterAnswer
from protoseal_wire.v1 import protoseal_pb2 as pb


def encode_statement(statement: Statement) -> bytes:
    """Encode a site's signed channel key."""
    return serialise(pb.Content(statement=statement_message(statement)))


def decode_statement(content: bytes, limits: Limits) -> Statement:
    """Decode a site's signed channel key."""
    return read_statement(parse(content, "statement", limits.statement).statement)


def encode_roster(roster: Roster) -> bytes:
    """Encode the request of ROSTER."""
    statements = [statement_message(statement) for statement in roster.statements]
    return serialise(pb.Content(roster=pb.Roster(statements=statements)))


def decode_roster(content: bytes, limits: Limits) -> Roster:
    """Decode the request of ROSTER."""
    statements = parse(content, "roster", limits.roster).roster.statements
    check_count("statements", statements, 1, limits.sites)
    return Roster(tuple(read_statement(statement) for statement in statements))


def encode_roster_answer(answer: RosterAnswer) -> bytes:
    """Encode the answer to ROSTER."""
    keys = None if answer.keys is None else _group_keys_message(answer.keys)
    return serialise(pb.Content(roster_answer=pb.RosterAnswer(roster_hash=answer.roster_hash, keys=keys)))


def decode_roster_answer(content: bytes, limits: Limits) -> RosterAnswer:
    """Decode the answer to ROSTER."""
    message = parse(content, "roster_answer", limits.roster_answer).roster_answer
    keys = _read_group_keys(message.keys, limits) if message.HasField("keys") else None
    return RosterAnswer(check_exact("roster_hash", message.roster_hash), keys)


def encode_sealed_secret(sealed: SealedSecret) -> bytes:
    """Encode the request of SECRET."""
    return serialise(pb.Content(sealed_secret=_sealed_message(sealed)))


def decode_sealed_secret(content: bytes, limits: Limits) -> SealedSecret:
    """Decode the request of SECRET."""
    return _read_sealed(parse(content, "sealed_secret", limits.sealed_secret).sealed_secret)


def encode_acknowledgement(_: Acknowledgement) -> bytes:
    """Encode the answer to SECRET and RESULT."""
    return serialise(pb.Content(acknowledgement=pb.Acknowledgement()))


def decode_acknowledgement(content: bytes, limits: Limits) -> Acknowledgement:
    """Decode the answer to SECRET and RESULT."""
    parse(content, "acknowledgement", limits.empty)
    return Acknowledgement()


def statement_message(statement: Statement) -> pb.Statement:
    """Return a statement as a part of a larger message."""
    return pb.Statement(
        site=statement.site,
        certificate=statement.certificate,
        channel_key=statement.channel_key,
        signature=statement.signature,
    )


def read_statement(message: pb.Statement) -> Statement:
    """Read a statement from a part of a larger message."""
    return Statement(
        check_name("a statement's site", message.site),
        check_bytes("a certificate", message.certificate, CERTIFICATE_BYTES),
        check_exact("a channel key", message.channel_key, CHANNEL_KEY_BYTES),
        check_signature(message.signature),
    )


def _group_keys_message(keys: GroupKeys) -> pb.GroupKeys:
    return pb.GroupKeys(
        evaluation_keys=keys.evaluation_keys, sealed=[_sealed_message(sealed) for sealed in keys.sealed]
    )


def _read_group_keys(message: pb.GroupKeys, limits: Limits) -> GroupKeys:
    check_count("sealed secrets", message.sealed, 1, limits.sites)
    return GroupKeys(
        check_bytes("evaluation_keys", message.evaluation_keys, EVALUATION_KEYS_BYTES, least=0),
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
