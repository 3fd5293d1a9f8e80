"""Chunking of contents: the sender splits a content, the receiver assembles and checks it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from protoseal_wire.codec.errors import Corrupted, Malformed, TooLarge

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
        if hashlib.sha256(content).digest() != self._sha256:
            raise Corrupted("the content does not have the announced SHA-256")
        return content
