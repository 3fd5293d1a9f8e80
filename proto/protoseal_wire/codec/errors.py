"""Exceptions for bytes from the wire that do not decode.

CodecError
├── Malformed        not a message of its kind, not in canonical form, or a field is out of bounds
│   └── NotFinite    an array has NaN or an infinity
├── UnknownVersion   this build does not know the content's version marker
├── OtherProtocol    the peer uses another version of the protocol
├── TooLarge         more bytes than the kind of content may have
└── Corrupted        a content does not have its announced size or hash

Messages name the wrong field and never repeat its content, because they are logged and sent to peers.
"""

from __future__ import annotations


class CodecError(ValueError):
    """Base class of the codec's errors: bytes do not decode."""


class Malformed(CodecError):
    """Error: not a message of its kind, not in canonical form, or a field is out of bounds."""


class NotFinite(Malformed):
    """Error: an array has NaN or an infinity."""


class UnknownVersion(CodecError):
    """Error: this build does not know the content's version marker."""


class OtherProtocol(CodecError):
    """Error: the peer uses another version of the protocol."""


class TooLarge(CodecError):
    """Error: more bytes than the kind of content may have."""


class Corrupted(CodecError):
    """Error: a content does not have its announced size or hash, or its stream was cut short."""
