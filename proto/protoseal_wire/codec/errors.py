"""What can be wrong with bytes from the wire.

CodecError
├── Malformed        not a message of its kind, not in canonical form, or a field out of its bounds
│   └── NotFinite    an array holds NaN or an infinity
├── UnknownVersion   a content's version marker is not one of this build's
├── OtherProtocol    the peer speaks another version of the protocol
├── TooLarge         more bytes than its kind may have
└── Corrupted        a content does not have its announced size or hash

Messages say which field is wrong and never repeat what was in it: they are logged and sent to peers.
"""

from __future__ import annotations


class CodecError(ValueError):
    """Base of all of these: bytes that do not decode."""


class Malformed(CodecError):
    """Not a message of its kind, not in canonical form, or a field out of its bounds."""


class NotFinite(Malformed):
    """An array holds NaN or an infinity."""


class UnknownVersion(CodecError):
    """A content's version marker is not one of this build's."""


class OtherProtocol(CodecError):
    """The peer speaks another version of the protocol."""


class TooLarge(CodecError):
    """More bytes than its kind may have."""


class Corrupted(CodecError):
    """A content does not have its announced size or hash, or its stream was cut short."""
