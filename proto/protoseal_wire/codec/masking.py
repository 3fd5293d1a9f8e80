"""Codec of a masked sum's contents and of the assignment before it: one ``encode_`` and one ``decode_`` for each kind.

The form is checked here: names, sizes, counts, distinctness. :mod:`crypto.pairwise` and its callers check group
membership, signatures and sealed messages.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized

import numpy as np

from crypto.pairwise.wire_values import ReleasedShare, SealedShare, ShareKind
from crypto.protection import PayloadForm, UpTo, Words
from protoseal_wire.codec.canonical import parse, serialise
from protoseal_wire.codec.errors import Malformed
from protoseal_wire.codec.fields import (
    check_bytes,
    check_count,
    check_distinct,
    check_exact,
    check_name,
    check_one_length,
    check_present,
    check_signature,
    check_sorted,
    decode_words,
    encode_words,
)
from protoseal_wire.codec.limits import SEALED_SHARE_BYTES, SHARE_BYTES, Limits
from protoseal_wire.codec.rounds import payload_message, read_payload
from protoseal_wire.messages import (
    AssignedRows,
    Assignment,
    MaskedValues,
    ReceivedShares,
    ReleasedShares,
    SharesMade,
    SignedSurvivors,
    SumMembers,
    SurvivorSet,
    SurvivorSignature,
)
from protoseal_wire.v1 import protoseal_pb2 as pb


def encode_assignment(assignment: Assignment) -> bytes:
    """Encode the request of SHARES if local prototypes are clustered."""
    sites = [
        pb.AssignedRows(
            site=each.site,
            classes=encode_words(each.classes.astype(np.uint32)),
            clusters=encode_words(each.clusters.astype(np.uint32)),
        )
        for each in assignment.sites
    ]
    return serialise(pb.Content(assignment=pb.Assignment(sites=sites)))


def decode_assignment(content: bytes, limits: Limits) -> Assignment:
    """Decode an assignment: sites sorted and distinct, classes and clusters within the run's bounds.

    Limit: the receiver must check that clusters are numbered without gaps and have one class each.
    """
    sites = parse(content, "assignment", limits.assignment).assignment.sites
    check_count("assigned sites", sites, 1, limits.sites)
    check_sorted("assigned sites", [each.site for each in sites])
    return Assignment(tuple(_read_assigned(each, limits) for each in sites))


def encode_shares_made(made: SharesMade) -> bytes:
    """Encode the answer to SHARES."""
    shares = [_sealed_share_message(share) for share in made.shares]
    return serialise(pb.Content(shares_made=pb.SharesMade(shares=shares)))


def decode_shares_made(content: bytes, limits: Limits) -> SharesMade:
    """Decode the answer to SHARES: all by one sender, to distinct recipients."""
    message = parse(content, "shares_made", limits.sealed_shares).shares_made
    shares = _read_sealed_shares(message.shares, limits)
    _check_same("senders", [share.sender for share in shares])
    check_distinct("recipients", [share.recipient for share in shares])
    return SharesMade(shares)


def encode_received_shares(received: ReceivedShares) -> bytes:
    """Encode the request of VALUES if masks are used."""
    shares = [_sealed_share_message(share) for share in received.shares]
    return serialise(pb.Content(received_shares=pb.ReceivedShares(shares=shares, sharers=received.sharers)))


def decode_received_shares(content: bytes, limits: Limits) -> ReceivedShares:
    """Decode the request of VALUES if masks are used: shares to one recipient, by distinct senders.

    There must be a share or the names of sharers.
    """
    message = parse(content, "received_shares", limits.received_shares).received_shares
    check_count("sharers", message.sharers, 0, limits.sites)
    sharers = check_sorted("sharers", message.sharers)
    shares = _read_sealed_shares(message.shares, limits, least=0 if sharers else 1)
    _check_same("recipients", [share.recipient for share in shares])
    check_distinct("senders", [share.sender for share in shares])
    return ReceivedShares(shares, sharers)


def encode_masked_values(values: MaskedValues) -> bytes:
    """Encode the answer to VALUES in a sparse graph."""
    message = pb.MaskedValues(payload=payload_message(values.payload), signature=values.signature)
    return serialise(pb.Content(masked_values=message))


def decode_masked_values(content: bytes, limits: Limits, form: PayloadForm) -> MaskedValues:
    """Decode the answer to VALUES in a sparse graph, with a payload of this ``form``."""
    message = parse(content, "masked_values", limits.payload).masked_values
    check_present(message, "payload")
    return MaskedValues(read_payload(message.payload, form), check_signature(message.signature))


def encode_survivor_set(survivors: SurvivorSet) -> bytes:
    """Encode the request of SURVIVORS."""
    return serialise(pb.Content(survivor_set=pb.SurvivorSet(sites=survivors.sites)))


def decode_survivor_set(content: bytes, limits: Limits) -> SurvivorSet:
    """Decode the request of SURVIVORS."""
    message = parse(content, "survivor_set", limits.survivor_set).survivor_set
    return SurvivorSet(_read_survivors(message.sites, limits))


def encode_survivor_signature(signature: SurvivorSignature) -> bytes:
    """Encode the answer to SURVIVORS."""
    return serialise(pb.Content(survivor_signature=_signature_message(signature)))


def decode_survivor_signature(content: bytes, limits: Limits) -> SurvivorSignature:
    """Decode the answer to SURVIVORS."""
    message = parse(content, "survivor_signature", limits.survivor_signature)
    return _read_signature(message.survivor_signature)


def encode_signed_survivors(signed: SignedSurvivors) -> bytes:
    """Encode the request of UNMASK."""
    return serialise(pb.Content(signed_survivors=_signed_message(signed)))


def decode_signed_survivors(content: bytes, limits: Limits) -> SignedSurvivors:
    """Decode the request of UNMASK: distinct signers in each list, and no more of them than survivors."""
    return _read_signed(parse(content, "signed_survivors", limits.signed_survivors).signed_survivors, limits)


def encode_sum_members(members: SumMembers) -> bytes:
    """Encode the members of a sum, which a result carries as a blob."""
    message = pb.SumMembers(
        round=members.round,
        attempt=members.attempt,
        listed=members.listed,
        base=members.base,
        signed=_signed_message(members.signed),
    )
    return serialise(pb.Content(sum_members=message))


def decode_sum_members(content: bytes, limits: Limits) -> SumMembers:
    """Decode the members of a sum: names sorted and distinct, and no signatures on sharers."""
    message = parse(content, "sum_members", limits.sum_members).sum_members
    check_count("listed sites", message.listed, 1, limits.sites)
    check_present(message, "signed")
    check_count("signatures of owners", message.signed.sharers, 0, 0)
    return SumMembers(
        message.round,
        message.attempt,
        check_sorted("listed sites", message.listed),
        check_exact("base", message.base) if message.base else b"",
        _read_signed(message.signed, limits),
    )


def _signed_message(signed: SignedSurvivors) -> pb.SignedSurvivors:
    return pb.SignedSurvivors(
        sites=signed.sites,
        signatures=[_signature_message(signature) for signature in signed.signatures],
        sharers=[_signature_message(signature) for signature in signed.sharers],
    )


def _read_signed(message: pb.SignedSurvivors, limits: Limits) -> SignedSurvivors:
    sites = _read_survivors(message.sites, limits)
    check_count("signatures", message.signatures, 1, len(sites))
    check_count("signatures of owners", message.sharers, 0, len(sites))
    signatures, sharers = (
        tuple(_read_signature(signature) for signature in each)
        for each in (message.signatures, message.sharers)
    )
    for signers in (signatures, sharers):
        check_distinct("signers", [signature.site for signature in signers])
    return SignedSurvivors(sites, signatures, sharers)


def encode_released_shares(released: ReleasedShares) -> bytes:
    """Encode the answer to UNMASK."""
    shares = [
        pb.ReleasedShare(owner=each.owner, kind=pb.ShareKind.ValueType(int(each.kind)), share=each.share)
        for each in released.shares
    ]
    return serialise(pb.Content(released_shares=pb.ReleasedShares(shares=shares)))


def decode_released_shares(content: bytes, limits: Limits) -> ReleasedShares:
    """Decode the answer to UNMASK: one share of each owner, so never both kinds."""
    message = parse(content, "released_shares", limits.released_shares).released_shares
    _check_shares(message.shares, limits)
    shares = tuple(_read_released_share(share) for share in message.shares)
    check_distinct("owners", [share.owner for share in shares])
    return ReleasedShares(shares)


def _read_assigned(message: pb.AssignedRows, limits: Limits) -> AssignedRows:
    check_present(message, "classes", "clusters")
    axis = UpTo(limits.rows)
    classes, clusters = (decode_words(each, 32, axis) for each in (message.classes, message.clusters))
    check_one_length([message.classes, message.clusters], [(axis,), (axis,)])
    _check_below("a class", classes, limits.classes)
    _check_below("a cluster", clusters, limits.rows)
    return AssignedRows(message.site, classes.astype(np.int64), clusters.astype(np.int64))


def _check_below(field: str, numbers: Words, most: int) -> None:
    if (numbers >= most).any():
        raise Malformed(f"{field} is not below {most}")


def _check_shares(shares: Sized, limits: Limits, least: int = 1) -> None:
    check_count("shares", shares, least, limits.sites)


def _check_same(field: str, names: Sequence[str]) -> None:
    if len(set(names)) > 1:
        raise Malformed(f"{field} are not all the same")


def _sealed_share_message(share: SealedShare) -> pb.SealedShare:
    return pb.SealedShare(
        sender=share.sender, recipient=share.recipient, sealed=share.sealed, signature=share.signature
    )


def _read_sealed_shares(
    messages: Sequence[pb.SealedShare], limits: Limits, least: int = 1
) -> tuple[SealedShare, ...]:
    _check_shares(messages, limits, least)
    return tuple(_read_sealed_share(message) for message in messages)


def _read_sealed_share(message: pb.SealedShare) -> SealedShare:
    return SealedShare(
        check_name("a share's sender", message.sender),
        check_name("a share's recipient", message.recipient),
        check_bytes("a sealed share", message.sealed, SEALED_SHARE_BYTES),
        check_signature(message.signature),
    )


def _read_survivors(sites: Sequence[str], limits: Limits) -> tuple[str, ...]:
    check_count("survivors", sites, 1, limits.sites)
    return check_sorted("survivors", sites)


def _signature_message(signature: SurvivorSignature) -> pb.SurvivorSignature:
    return pb.SurvivorSignature(site=signature.site, signature=signature.signature)


def _read_signature(message: pb.SurvivorSignature) -> SurvivorSignature:
    return SurvivorSignature(
        check_name("a signer of survivors", message.site), check_signature(message.signature)
    )


def _read_released_share(message: pb.ReleasedShare) -> ReleasedShare:
    return ReleasedShare(
        check_name("a share's owner", message.owner),
        _read_kind(message.kind),
        check_exact("a share", message.share, SHARE_BYTES),
    )


def _read_kind(kind: int) -> ShareKind:
    try:
        return ShareKind(kind)
    except ValueError as error:
        raise Malformed(f"kind of share {kind} does not exist") from error
