"""Canonical form of every content: a protobuf ``Content`` with a version marker.

Each value has one byte string: bytes that differ when serialised again (unknown fields, fields twice or out of order,
defaults written out) are :class:`Malformed`.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from protoseal_wire.codec.errors import Malformed, TooLarge, UnknownVersion
from protoseal_wire.v1 import protoseal_pb2 as pb

CONTENT_VERSION = 1


def serialise(content: pb.Content) -> bytes:
    """Set the version marker of a content and return its bytes."""
    content.version = CONTENT_VERSION
    return content.SerializeToString(deterministic=True)


def parse(content: bytes, kind: str, most: int) -> pb.Content:
    """Return the content if it is of this kind and version, in canonical form and not too large."""
    if len(content) > most:
        raise TooLarge(f"a {kind} has {len(content)} bytes; at most {most} are allowed")
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
        raise UnknownVersion(f"a {kind} has version {message.version}; this build knows {CONTENT_VERSION}")


def _check_kind(message: pb.Content, kind: str) -> None:
    if message.WhichOneof("body") != kind:
        raise Malformed(f"expected a {kind}, not a {message.WhichOneof('body')}")


def _check_canonical(message: pb.Content, content: bytes, kind: str) -> None:
    message.DiscardUnknownFields()  # otherwise unknown fields would be serialised again
    if message.SerializeToString(deterministic=True) != content:
        raise Malformed(f"a {kind} has unknown fields or is not in canonical form")
