"""Values that members of a masked sum exchange: public keys, sealed shares, released shares, and the masked vector."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from crypto.errors import MalformedError, UnknownSchemeError
from crypto.protection import Payload, Words


@dataclass(frozen=True)
class MaskKeys:
    """Public X25519 keys (32 bytes each) of a site for one attempt.

    Masks come from ``mask``; shares are sealed to ``share``. There are two keys because the private half of ``mask`` is
    reconstructed if its owner drops out, and must then decrypt nothing.
    """

    mask: bytes
    share: bytes


@dataclass(frozen=True)
class SealedShare:
    """Shares of the sender's two secrets, sealed to the recipient and signed by the sender."""

    sender: str
    recipient: str
    sealed: bytes = field(repr=False)
    signature: bytes = field(repr=False)


class ShareKind(IntEnum):
    """Kind of a share: the secret, of a site's two, that it belongs to."""

    SEED = 1
    """Seed of the self-mask, released for a site whose values are in the sum."""
    KEY = 2
    """Private half of the mask key, released for a site that dropped out after it made shares."""


@dataclass(frozen=True)
class ReleasedShare:
    """Share of one of ``owner``'s secrets that a holder gives to the coordinator."""

    owner: str
    kind: ShareKind
    share: bytes = field(repr=False)


SCHEME = "pairwise/1"
WORDS = {32: np.dtype(np.uint32), 64: np.dtype(np.uint64)}
"""Type of a word, by ring bits."""


def masked_payload(words: Words) -> Payload:
    """Return the payload that carries masked words."""
    return Payload(SCHEME, words=(words,))


def masked_words(payload: Payload, ring_bits: int, length: int) -> Words:
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
