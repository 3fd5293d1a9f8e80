"""Masks: ChaCha20 keystreams as words of the ring, added and taken away in place.

Every platform gets the same bits (words are little-endian). A key gives one stream, from its first byte: never use
one for two vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms

from crypto.protection import Words

_CHUNK_BYTES = 1 << 18
"""Small enough for the processor's cache, which the words of a chunk stay in while every stream passes over them."""
_NONCE = bytes(16)
"""Counter and nonce of zero: keys are derived for one stream each."""


def add_streams(words: Words, plus: Sequence[bytes], minus: Sequence[bytes]) -> Words:
    """words + Σ stream(plus) − Σ stream(minus), wrapping around in the full ring; a new array.

    Keys have 32 bytes. Besides the result it needs memory for one chunk, whatever the number of keys.
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
    """The stream's next words, as many as the chunk has; they stand in ``buffer`` until it is used again."""
    stream.update_into(memoryview(zeros)[: chunk.nbytes], buffer)
    little_endian: np.dtype[Any] = chunk.dtype.newbyteorder("<")
    words: Words = np.frombuffer(buffer, dtype=little_endian, count=chunk.size)
    return words
