"""The marker of pairwise-masked vectors, and the payload that carries one."""

from __future__ import annotations

import numpy as np

from crypto.errors import MalformedError, UnknownSchemeError
from crypto.protection import Payload, Words

SCHEME = "pairwise/1"
WORDS = {32: np.dtype(np.uint32), 64: np.dtype(np.uint64)}
"""Ring bits: the type of a word."""


def payload_of(words: Words) -> Payload:
    """Masked words as they travel."""
    return Payload(SCHEME, words=(words,))


def words_of(payload: Payload, ring_bits: int, length: int) -> Words:
    """The words of a payload, shape (length,).

    Raises :class:`UnknownSchemeError` for another scheme, and :class:`MalformedError` unless the payload is
    exactly one vector of this ring and length.
    """
    if payload.scheme != SCHEME:
        raise UnknownSchemeError(f"expected a payload of scheme {SCHEME!r}, not {payload.scheme!r}")
    if len(payload.words) != 1 or payload.arrays or payload.blobs:
        raise MalformedError(f"a payload of scheme {SCHEME!r} is one vector of words")
    (words,) = payload.words
    if words.dtype != WORDS[ring_bits] or words.shape != (length,):
        raise MalformedError(
            f"words are {WORDS[ring_bits]} of shape ({length},), not {words.dtype} of {words.shape}"
        )
    return words
