"""The form of every content: a protobuf ``Content`` with a version marker.

There is one byte string for each value: whatever does not come out the same when serialised again (unknown fields,
fields twice or out of order, defaults written out) is :class:`Malformed`.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from protoseal_wire.codec.errors import Malformed, TooLarge, UnknownVersion
from protoseal_wire.v1 import protoseal_pb2 as pb

CONTENT_VERSION = 1


def serialise(content: pb.Content) -> bytes:
    """The bytes of a content, which gets the version marker."""
    content.version = CONTENT_VERSION
    return content.SerializeToString(deterministic=True)


def parse(content: bytes, kind: str, most: int) -> pb.Content:
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
