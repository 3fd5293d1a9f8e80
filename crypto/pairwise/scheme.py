"""Scheme marker of pairwise-masked vectors, and the payload that carries one vector."""

from __future__ import annotations

import numpy as np

from crypto.errors import MalformedError, UnknownSchemeError
from crypto.protection import Payload, Words

SCHEME = "pairwise/1"
WORDS = {32: np.dtype(np.uint32), 64: np.dtype(np.uint64)}
"""Type of a word, by ring bits."""


def payload_of(words: Words) -> Payload:
    """Return the payload that carries masked words."""
    return Payload(SCHEME, words=(words,))


def words_of(payload: Payload, ring_bits: int, length: int) -> Words:
    """Return the words of a payload, shape (length,).

    Raises :class:`UnknownSchemeError` for another scheme, and :class:`MalformedError` unless the payload is
    exactly one vector of this ring and length.
    """
    if payload.scheme != SCHEME:
        raise UnknownSchemeError(f"expected a payload of scheme {SCHEME!r}, not {payload.scheme!r}")
    if len(payload.words) != 1 or payload.arrays or payload.blobs:
        raise MalformedError(f"a payload of scheme {SCHEME!r} must be one vector of words")
    (words,) = payload.words
    if words.dtype != WORDS[ring_bits] or words.shape != (length,):
        raise MalformedError(
            f"words must be {WORDS[ring_bits]} of shape ({length},), not {words.dtype} of {words.shape}"
        )
    return words
