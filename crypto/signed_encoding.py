"""Canonical encoding of values to bytes that are signed, hashed, or bound to a key.

The encoding is ``protoseal/v1/<label>`` followed by each field, prefixed with its length (8 bytes, big-endian). A
label has no zero byte and every length starts with a zero byte (no field reaches 2^56 bytes), so two different calls
never give the same bytes. The label contains the version, so that bytes of another version of this encoding never
verify as this version's.
"""

from __future__ import annotations

import re

_PREFIX = "protoseal/v1/"
_LABEL = re.compile(r"[a-z0-9-]+")


def encode(label: str, *fields: bytes) -> bytes:
    """Return the canonical bytes of ``fields`` for the purpose ``label`` (lower-case letters, digits, hyphens).

    Raises ``ValueError`` for any other label; labels are constants of the calling code.
    """
    if not _LABEL.fullmatch(label):
        raise ValueError(f"label {label!r} must consist of a-z, 0-9 and hyphens")
    parts = [f"{_PREFIX}{label}".encode()]
    for field in fields:
        parts += [len(field).to_bytes(8, "big"), field]
    return b"".join(parts)
