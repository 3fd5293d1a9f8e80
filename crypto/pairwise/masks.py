"""Masking of a vector by pairwise masks, which cancel in the sum, and a self-mask (Bonawitz et al. 2017, section 4).

For each pair of members u < v (in a sparse graph, for each pair with a mask) both derive one stream from their mask
keys; u adds the stream and v subtracts it. The self-mask stays until enough members release its seed. So a vector that
arrives late, after its owner was counted as a drop-out and its mask key was reconstructed, is still hidden.

A stream is ChaCha20 output as words of the ring. Every platform gets the same bits (words are little-endian). A key
always gives the same stream from its first byte, so never use a key for two vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms

from crypto.errors import MalformedError, UnknownSchemeError, VerificationError
from crypto.fixed_point import FixedPoint, Float
from crypto.keys import derive
from crypto.pairwise.attempt import (
    AttemptSecrets,
    Binding,
    MaskKeys,
    check_mask_keys,
    check_own,
    check_sharers,
)
from crypto.pairwise.neighbour_graph import CERTAIN, Graph, graph_among
from crypto.protection import Payload, Words

__all__ = ["add_streams"]

SCHEME = "pairwise/1"


WORDS = {32: np.dtype(np.uint32), 64: np.dtype(np.uint64)}
"""Type of a word, by ring bits."""


_CHUNK_BYTES = 1 << 18
"""Size of a chunk, small enough that its words stay in the processor's cache while all streams are applied."""
_NONCE = bytes(16)
"""Counter and nonce of zero, since each key is derived for one stream."""


def add_streams(words: Words, plus: Sequence[bytes], minus: Sequence[bytes]) -> Words:
    """Return words + Σ stream(plus) − Σ stream(minus), modulo the ring's size, as a new array.

    Keys have 32 bytes. Besides the result, memory for one chunk is needed, whatever the number of keys.
    """
    masked = words.copy()
    streams = [
        (Cipher(algorithms.ChaCha20(key, _NONCE), mode=None).encryptor(), operation)
        for keys, operation in ((plus, np.add), (minus, np.subtract))
        for key in keys
    ]
    zeros, buffer = bytes(_CHUNK_BYTES), bytearray(_CHUNK_BYTES)
    step = _CHUNK_BYTES // masked.itemsize
    # Chunk by chunk through all streams: stream by stream would move the whole vector through memory once per peer.
    for start in range(0, masked.size, step):
        chunk = masked[start : start + step]
        for stream, operation in streams:
            operation(chunk, _next_words(stream, chunk, zeros, buffer), out=chunk)
    return masked


def _next_words(stream: CipherContext, chunk: Words, zeros: bytes, buffer: bytearray) -> Words:
    """Return the stream's next words, as many as the chunk has, as a view of ``buffer`` that the next call reuses."""
    stream.update_into(memoryview(zeros)[: chunk.nbytes], buffer)
    little_endian: np.dtype[Any] = chunk.dtype.newbyteorder("<")
    words: Words = np.frombuffer(buffer, dtype=little_endian, count=chunk.size)
    return words


@dataclass(frozen=True)
class MaskingSite:
    """Site half of a masked sum in one attempt; the arguments are those of :func:`mask`, and ``fixed`` the agreed ring.

    Protect **one** vector: see :func:`mask`.
    """

    fixed: FixedPoint
    secrets: AttemptSecrets = field(repr=False)
    binding: Binding
    site: str
    sharers: Sequence[str]
    public: Mapping[str, MaskKeys]
    graph: Graph

    def protect(self, vector: Float) -> Payload:
        """Return ``vector`` (L,) in fixed point and masked.

        Raises :class:`crypto.errors.BoundError` for a value beyond its bound, and as :func:`mask`.
        """
        words = self.fixed.encode(vector)
        return masked_payload(
            mask(words, self.secrets, self.binding, self.site, self.sharers, self.public, self.graph)
        )


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


def mask(
    words: Words,
    secrets: AttemptSecrets,
    binding: Binding,
    site: str,
    sharers: Sequence[str],
    public: Mapping[str, MaskKeys],
    graph: Graph | None = None,
) -> Words:
    """Return words + self-mask + Σ pairwise masks in the full ring, uniform to everyone who lacks one of the keys.

    ``words`` are uint32 or uint64, shape (L,); ``sharers`` the members that made shares, sorted, this site included;
    ``graph`` decides which pairs have masks, all pairs if None. Mask **one** vector per :class:`AttemptSecrets`: two
    vectors under the same masks reveal their difference. Raises :class:`VerificationError` for sharers that are not
    members or too few, and for keys that are missing, unusable, repeated, or not this site's own, and
    :class:`MalformedError` for values that are not words.
    """
    # Bonawitz et al., round 2 (masked input collection): a site masks only among a quorum of those that made shares.
    check_words(words)
    check_sharers(binding, sharers)
    if site not in sharers:
        raise VerificationError(f"{site} is not among those who made shares")
    check_mask_keys(binding, public)
    check_own(secrets, binding, site, public)
    # The self-mask hides a late vector; the pairwise masks cancel because u < v adds what v subtracts.
    plus, minus = [self_key(secrets.seed, binding, site)], list[bytes]()
    for peer, key in pair_keys(secrets.mask, public, binding, site, sharers, graph).items():
        (plus if site < peer else minus).append(key)
    return add_streams(words, plus, minus)


def self_key(seed: bytes, binding: Binding, site: str) -> bytes:
    """Return the key (32 bytes) of a site's self-mask."""
    return derive(seed, "mask-self", *binding.fields(), site.encode())


def pair_keys(
    private: bytes,
    public: Mapping[str, MaskKeys],
    binding: Binding,
    site: str,
    peers: Iterable[str],
    graph: Graph | None = None,
) -> dict[str, bytes]:
    """Return the key (32 bytes) of the mask with each of ``peers`` that has one, equal at both ends of a pair.

    ``private`` is the mask key of ``site``, which has no mask with itself.
    :func:`crypto.pairwise.attempt.check_mask_keys` must have accepted ``public``. Raises :class:`VerificationError` for
    a key of low order, with which everyone would know the secret.
    """
    chance = graph_among(len(binding.group), graph).linked
    private_key, keys = X25519PrivateKey.from_private_bytes(private), dict[str, bytes]()
    for peer in peers:
        if peer == site:
            continue
        try:
            secret = private_key.exchange(X25519PublicKey.from_public_bytes(public[peer].mask))
        except ValueError as error:
            raise VerificationError("a mask key gives a shared secret of zero") from error
        # Both ends bind the same facts in the same order, or their streams do not cancel.
        first, second = sorted((site, peer))
        pair = (*binding.fields(), first.encode(), second.encode())
        if have_mask(secret, pair, chance):
            keys[peer] = derive(secret, "mask-pair", *pair)
    return keys


def have_mask(secret: bytes, pair: Sequence[bytes], chance: int) -> bool:
    """Return True if two sites have a mask, by a coin with probability ``chance``/1024, equal at both.

    The coin follows from the ``secret`` that the two mask keys share, so that nobody else can see or influence it, and
    from ``pair``, the fields that the mask's key is bound to. With ``chance`` 1024 no coin is drawn.
    """
    return chance == CERTAIN or int.from_bytes(derive(secret, "mask-coin", *pair), "big") % CERTAIN < chance


def check_words(words: Words) -> None:
    """Raise :class:`MalformedError` unless words are one vector of uint32 or uint64."""
    if words.dtype not in (np.dtype(np.uint32), np.dtype(np.uint64)) or words.ndim != 1:
        raise MalformedError(
            f"words must be one vector of uint32 or uint64, not {words.dtype} of {words.shape}"
        )
