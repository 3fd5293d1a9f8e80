"""Codec of a run's calls, each message declared once for ``encode`` and ``decode``; and the chunks of a content.

Every ``decode_`` raises a :class:`protoseal_wire.codec.errors.CodecError` for a message with a field out of bounds or
unknown to this version. The protocol version is checked first, whatever the other fields are, so that a site of another
release is told to install a matching one.

Limit: calls are not signed. A coordinator can give any answer to Check; the hash that Join compares and that sites sign
binds a run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from google.protobuf.message import Message

from crypto.protection import PayloadShape
from protoseal_wire import messages
from protoseal_wire.codec.contents import ANCHOR, STATEMENT, content_hash
from protoseal_wire.codec.errors import Corrupted, Malformed, OtherProtocol, TooLarge
from protoseal_wire.codec.limits import CONTENT_CEILING, Limits
from protoseal_wire.codec.shapes import (
    PLAIN,
    Bounds,
    Field,
    check_distinct,
    checked,
    exact,
    matching,
    member,
    name,
    one_of,
    optional,
    positive,
    repeated,
    scalar,
    seconds,
    shape,
    sole,
)
from protoseal_wire.messages import PROTOCOL_VERSION, Phase, PhaseKey
from protoseal_wire.v1 import protoseal_pb2 as pb

LONGEST_POLL_SECONDS = 600.0
MOST_FIELDS = 512
"""Largest number of an agreement's fields in one reply to Check."""
LONGEST_TEXT = 160
"""Largest number of characters of a field's text; the hash covers the rest."""
_LONGEST_REASON = 500
_BEFORE_TRAINING = frozenset({Phase.ROSTER, Phase.SECRET, Phase.PRESENCE, Phase.VALUES})
_IN_ROUNDS = frozenset(Phase) - {Phase.ROSTER, Phase.SECRET}
_FIXED = Bounds(Limits(classes=1, dim=1), PayloadShape())
"""Bounds of calls: no field of a call depends on the run."""

M = TypeVar("M", bound=Message)
V = TypeVar("V")


def call(message: Field[M, V]) -> tuple[Callable[[V], M], Callable[[M], V]]:
    """Return ``encode`` and ``decode`` of a call's message."""

    def decode(wire: M) -> V:
        _check_release(wire)
        return message.read(wire, _FIXED)

    return message.write, decode


def _check_release(message: Any) -> None:
    """Raise for another protocol, and then for a field, at any depth, that the schema does not have."""
    descriptor = message.DESCRIPTOR
    if "protocol" in descriptor.fields_by_name and message.protocol != PROTOCOL_VERSION:
        raise OtherProtocol(
            f"the peer speaks protocol {message.protocol}, this build {PROTOCOL_VERSION}:"
            " install matching releases"
        )
    size = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != size:
        raise Malformed(f"a {descriptor.name} has fields that this version does not know")


# Join and Leave.


def _check_key(key: PhaseKey, _: Limits) -> None:
    if key.phase not in (_BEFORE_TRAINING if key.round == 0 else _IN_ROUNDS):
        raise Malformed(f"{key.phase.name} does not belong to round {key.round}")


def _check_left(key: PhaseKey) -> None:
    if key.phase is not Phase.PRESENCE:
        raise Malformed(f"left must be the PRESENCE of an attempt, not {key.phase.name}")


_KEY = shape(
    pb.PhaseKey,
    PhaseKey,
    phase=member("phase", Phase),
    round=PLAIN,
    attempt=positive("an attempt's number"),
    run=name("run"),
    check=_check_key,
)

encode_join, decode_join = call(
    shape(
        pb.JoinRequest,
        messages.JoinRequest,
        protocol=PLAIN,
        run=name("run"),
        agreement_hash=exact("agreement_hash"),
        statement=STATEMENT,
        anchor=optional(ANCHOR),
        left=optional(checked(_KEY, _check_left)),
    )
)
encode_join_reply, decode_join_reply = call(
    shape(
        pb.JoinReply,
        messages.JoinReply,
        protocol=PLAIN,
        poll_seconds=seconds("poll_seconds", LONGEST_POLL_SECONDS),
        session=positive("session"),
        anchor=optional(ANCHOR),
    )
)
encode_leave, decode_leave = call(shape(pb.LeaveRequest, messages.LeaveRequest, session=positive("session")))


# NextTask.


def _clean_reason(reason: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in reason[:_LONGEST_REASON])


def _check_reason(reason: str) -> str:
    """Return the reason if it is short and, because terminals show it, without control characters."""
    if len(reason) > _LONGEST_REASON or not reason.isprintable():
        raise Malformed(f"a reason must be at most {_LONGEST_REASON} printable characters")
    return reason


def _check_size(size: int) -> int:
    if size > CONTENT_CEILING:
        raise TooLarge(f"a header announces {size} bytes; at most {CONTENT_CEILING} are allowed")
    if size == 0:
        raise Malformed("a header announces an empty content")
    return size


_WORK = shape(
    pb.Work,
    messages.Work,
    key=_KEY,
    size=scalar(_check_size),
    sha256=exact("sha256"),
    seconds_left=seconds("seconds_left"),
)
_STOPPED = shape(pb.Stopped, messages.Stopped, reason=scalar(_check_reason, _clean_reason))
_TASK: Field[pb.Task, messages.Task] = one_of(
    pb.Task,
    wait=(messages.Wait, shape(pb.Wait, messages.Wait)),
    work=(messages.Work, _WORK),
    finished=(messages.Finished, shape(pb.Finished, messages.Finished, rounds=PLAIN)),
    stopped=(messages.Stopped, _STOPPED),
)

encode_task_request, decode_task_request = call(
    shape(pb.TaskRequest, messages.TaskRequest, protocol=PLAIN, run=name("run"))
)
encode_task, decode_task = call(_TASK)


# Upload and Download: a header, and then chunks, which :class:`protoseal_wire.codec.calls.Assembly` checks.

_HEADER = shape(
    pb.UploadHeader, messages.UploadHeader, key=_KEY, size=scalar(_check_size), sha256=exact("sha256")
)
_UPLOAD_CHUNK: Field[pb.UploadFrame, bytes] = sole(pb.UploadFrame, "chunk", PLAIN)
_DOWNLOAD_CHUNK: Field[pb.DownloadFrame, bytes] = sole(pb.DownloadFrame, "chunk", PLAIN)

encode_upload_header, decode_upload_header = call(sole(pb.UploadFrame, "header", _HEADER))
encode_upload_chunk, decode_upload_chunk = call(_UPLOAD_CHUNK)
encode_download, decode_download = call(shape(pb.DownloadRequest, messages.DownloadRequest, key=_KEY))
encode_download_chunk, decode_download_chunk = call(_DOWNLOAD_CHUNK)


# Check, by which a site compares its agreement with the coordinator's before it joins.


def _check_paths(fields: Sequence[messages.AgreementField]) -> None:
    check_distinct("fields", [field.path for field in fields])


_AGREEMENT_FIELD = shape(
    pb.AgreementField,
    messages.AgreementField,
    path=matching(
        re.compile(r"[A-Za-z0-9_.-]{1,200}"),
        "the path of an agreement's field must be 1 to 200 of a-z, A-Z, 0-9, '_', '.' and '-'",
    ),
    sha256=exact("a field's sha256"),
    # Terminals show the text, so it is printable ASCII, as canonical JSON always is.
    text=matching(
        re.compile(rf"[ -~]{{1,{LONGEST_TEXT}}}"),
        f"the text of an agreement's field must be 1 to {LONGEST_TEXT} printable ASCII characters",
        lambda text: text[:LONGEST_TEXT],
    ),
)
_LISTING = shape(
    pb.CheckReply,
    messages.Listing,
    elsewhere=("protocol", "run", "listed"),
    stage=member("stage", messages.RunStage),
    agreement_hash=exact("agreement_hash"),
    fields=repeated("fields", _AGREEMENT_FIELD, most=lambda _: MOST_FIELDS, check=_check_paths),
    round=PLAIN,
    may_join=PLAIN,
)

encode_check, decode_check = call(shape(pb.CheckRequest, messages.CheckRequest, protocol=PLAIN))


def encode_check_reply(reply: messages.CheckReply) -> pb.CheckReply:
    """Encode the coordinator's reply; a field's text is cut to 160 characters."""
    message = pb.CheckReply() if reply.listing is None else _LISTING.write(reply.listing)
    message.protocol = reply.protocol
    message.run = reply.run
    message.listed = reply.listing is not None
    return message


def decode_check_reply(message: pb.CheckReply) -> messages.CheckReply:
    """Decode the coordinator's reply; the reverse of :func:`encode_check_reply`."""
    _check_release(message)
    listing = _LISTING.read(message, _FIXED) if message.listed else None
    if listing is None and (message.fields or message.agreement_hash or message.stage):
        raise Malformed("a CheckReply must not have an agreement for a site that is not listed")
    return messages.CheckReply(message.protocol, name("run").read(message.run, _FIXED), listing)


CHUNK_BYTES = 256 * 1024


def chunks(content: bytes) -> Iterator[bytes]:
    """Yield the content in chunks of 256 KiB, the last possibly shorter."""
    for start in range(0, len(content), CHUNK_BYTES):
        yield content[start : start + CHUNK_BYTES]


class Assembly:
    """Assembly of a content that was announced with its size in bytes and its SHA-256.

    The buffer never exceeds ``size`` bytes, however many arrive.
    """

    def __init__(self, size: int, sha256: bytes) -> None:
        self._size = size
        self._sha256 = sha256
        self._content = bytearray()

    def add(self, chunk: bytes) -> None:
        """Add the next chunk, cut as :func:`chunks` does; raise :class:`TooLarge` if it exceeds the announced size.

        Raises :class:`Malformed` for a chunk of another length.
        """
        room = self._size - len(self._content)
        if len(chunk) > room:
            raise TooLarge(f"more than the announced {self._size} bytes arrived")
        # A content in chunks of one byte would cost the receiver 0.1 ms for each byte.
        length = min(CHUNK_BYTES, room)
        if not chunk or len(chunk) != length:
            raise Malformed(f"a chunk has {len(chunk)} bytes, not {length} as announced")
        self._content += chunk

    def content(self) -> bytes:
        """Return the whole content; raise :class:`Corrupted` unless it has the announced size and hash."""
        content = bytes(self._content)
        if len(content) != self._size:
            raise Corrupted(f"{len(content)} of the announced {self._size} bytes arrived")
        if content_hash(content) != self._sha256:
            raise Corrupted("the content does not have the announced SHA-256")
        return content
