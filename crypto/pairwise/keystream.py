"""Keystreams of masks: ChaCha20 output as words of the ring, added and subtracted in place.

Every platform gets the same bits (words are little-endian). A key always gives the same stream from its first byte, so
never use a key for two vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms

from crypto.protection import Words

__all__ = ["add_streams"]

_CHUNK_BYTES = 1 << 18
"""Size of a chunk, small enough that its words stay in the processor's cache while all streams are applied."""
_NONCE = bytes(16)
"""Counter and nonce of zero, since each key is derived for one stream."""


def add_streams(words: Words, plus: Sequence[bytes], minus: Sequence[bytes]) -> Words:
    """Return words + Σ stream(plus) − Σ stream(minus), modulo the ring's size, as a new array.

    Keys have 32 bytes. Besides the result, memory for one chunk is needed, whatever the number of keys.
    """
    masked = words.copy()
    streams = [(_stream(key), np.add) for key in plus] + [(_stream(key), np.subtract) for key in minus]
    zeros, buffer = bytes(_CHUNK_BYTES), bytearray(_CHUNK_BYTES)
    step = _CHUNK_BYTES // masked.itemsize
    for start in range(0, masked.size, step):
        chunk = masked[start : start + step]
        for stream, operation in streams:
            operation(chunk, _next(stream, chunk, zeros, buffer), out=chunk)
    return masked


def _stream(key: bytes) -> CipherContext:
    return Cipher(algorithms.ChaCha20(key, _NONCE), mode=None).encryptor()


def _next(stream: CipherContext, chunk: Words, zeros: bytes, buffer: bytearray) -> Words:
    """Return the stream's next words, as many as the chunk has, as a view of ``buffer`` that the next call reuses."""
    stream.update_into(memoryview(zeros)[: chunk.nbytes], buffer)
    little_endian: np.dtype[Any] = chunk.dtype.newbyteorder("<")
    words: Words = np.frombuffer(buffer, dtype=little_endian, count=chunk.size)
    return words
