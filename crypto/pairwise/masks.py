"""A vector under masks that cancel in the sum, and one more of the site's own.

For each pair of members u < v both derive one stream from their mask keys; u adds it and v takes it away. The
self-mask stays until enough members release its seed, so that a vector that arrives late, after its owner's mask key
was put together again as a drop-out's, is still covered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from crypto.errors import MalformedError, VerificationError
from crypto.keys import derive
from crypto.pairwise.binding import Binding, check_sharers
from crypto.pairwise.keystream import add_streams
from crypto.pairwise.parts import MaskKeys
from crypto.pairwise.secrets import AttemptSecrets, agree, check_own, check_public
from crypto.protection import Words


def mask(
    words: Words,
    secrets: AttemptSecrets,
    binding: Binding,
    site: str,
    sharers: Sequence[str],
    public: Mapping[str, MaskKeys],
) -> Words:
    """words + self-mask + Σ over peers, in the full ring: uniform to whoever lacks one of the keys.

    ``words``: uint32 or uint64, shape (L,). ``sharers``: the members whose shares this site holds, itself among
    them, sorted. Call it for **one** vector per :class:`AttemptSecrets`: two under the same masks show their
    difference. Raises :class:`VerificationError` for sharers that are not members or too few, and for keys that are
    missing, unusable, there twice, or not the own ones; :class:`MalformedError` for anything but words.
    """
    check_words(words)
    check_sharers(binding, sharers)
    _check_among(site, sharers)
    check_public(binding, public)
    check_own(secrets, binding, site, public)
    plus, minus = [self_key(secrets.seed, binding, site)], list[bytes]()
    for peer in sharers:
        if peer != site:
            key = pair_key(secrets.mask, public[peer].mask, binding, site, peer)
            (plus if site < peer else minus).append(key)
    return add_streams(words, plus, minus)


def self_key(seed: bytes, binding: Binding, site: str) -> bytes:
    """The key (32 bytes) of a site's self-mask."""
    return derive(seed, "mask-self", *binding.fields(), site.encode())


def pair_key(private: bytes, public: bytes, binding: Binding, site: str, peer: str) -> bytes:
    """The key (32 bytes) of the mask of two sites, the same from either side."""
    first, second = sorted((site, peer))
    return derive(agree(private, public), "mask-pair", *binding.fields(), first.encode(), second.encode())


def check_words(words: Words) -> None:
    """Raise :class:`MalformedError` unless words are one vector of uint32 or uint64."""
    if words.dtype not in (np.dtype(np.uint32), np.dtype(np.uint64)) or words.ndim != 1:
        raise MalformedError(f"words are one vector of uint32 or uint64, not {words.dtype} of {words.shape}")


def _check_among(site: str, sharers: Sequence[str]) -> None:
    if site not in sharers:
        raise VerificationError(f"{site} is not among those who made shares")
