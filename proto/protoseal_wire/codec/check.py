"""Codec of the call Check, by which a site compares its agreement with the coordinator's before it joins.

Limit: Check is not signed, so a coordinator can give any answer. The hash that Join compares and that sites sign binds
a run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from protoseal_wire.codec.calls import check_fields, check_protocol
from protoseal_wire.codec.errors import Malformed
from protoseal_wire.codec.fields import check_count, check_distinct, check_exact, check_name
from protoseal_wire.messages import AgreementField, CheckReply, CheckRequest, Listing, RunStage
from protoseal_wire.v1 import protoseal_pb2 as pb

MOST_FIELDS = 512
"""Largest number of an agreement's fields in one reply."""
LONGEST_TEXT = 160
"""Largest number of characters of a field's text; the hash covers the rest."""
_PATH = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_TEXT = re.compile(rf"[ -~]{{1,{LONGEST_TEXT}}}")


def encode_check(request: CheckRequest) -> pb.CheckRequest:
    """Encode a site's question."""
    return pb.CheckRequest(protocol=request.protocol)


def decode_check(message: pb.CheckRequest) -> CheckRequest:
    """Decode a site's question; the reverse of :func:`encode_check`."""
    check_protocol(message.protocol)
    check_fields(message)
    return CheckRequest(message.protocol)


def encode_check_reply(reply: CheckReply) -> pb.CheckReply:
    """Encode the coordinator's reply; a field's text is cut to 160 characters."""
    message = pb.CheckReply(protocol=reply.protocol, run=reply.run, listed=reply.listing is not None)
    if reply.listing is not None:
        listing = reply.listing
        message.agreement_hash = listing.agreement_hash
        message.fields.extend(
            pb.AgreementField(path=each.path, sha256=each.sha256, text=each.text[:LONGEST_TEXT])
            for each in listing.fields
        )
        message.stage = pb.RunStage.ValueType(int(listing.stage))
        message.round, message.may_join = listing.round, listing.may_join
    return message


def decode_check_reply(message: pb.CheckReply) -> CheckReply:
    """Decode the coordinator's reply; the reverse of :func:`encode_check_reply`.

    Texts are shown on terminals, so they must be printable ASCII, as canonical JSON always is.
    """
    check_protocol(message.protocol)
    check_fields(message)
    listing = _read_listing(message) if message.listed else None
    if listing is None and (message.fields or message.agreement_hash or message.stage):
        raise Malformed("a CheckReply must not have an agreement for a site that is not listed")
    return CheckReply(message.protocol, check_name("run", message.run), listing)


def _read_listing(message: pb.CheckReply) -> Listing:
    try:
        stage = RunStage(message.stage)
    except ValueError as error:
        raise Malformed(f"stage {message.stage} of a run does not exist") from error
    return Listing(
        check_exact("agreement_hash", message.agreement_hash),
        _read_fields(message.fields),
        stage,
        message.round,
        message.may_join,
    )


def _read_fields(messages: Sequence[pb.AgreementField]) -> tuple[AgreementField, ...]:
    check_count("fields", messages, 1, MOST_FIELDS)
    check_distinct("fields", [each.path for each in messages])
    return tuple(_read_field(each) for each in messages)


def _read_field(message: pb.AgreementField) -> AgreementField:
    if not _PATH.fullmatch(message.path):
        raise Malformed(
            "the path of an agreement's field must be 1 to 200 of a-z, A-Z, 0-9, '_', '.' and '-'"
        )
    if not _TEXT.fullmatch(message.text):
        raise Malformed(
            f"the text of an agreement's field must be 1 to {LONGEST_TEXT} printable ASCII characters"
        )
    return AgreementField(message.path, check_exact("a field's sha256", message.sha256), message.text)
