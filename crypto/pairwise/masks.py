"""A vector under masks that cancel in the sum, and one more of the site's own.

For each pair of members u < v, or for those pairs that a sparse graph has, both derive one stream from their mask keys;
u adds it and v takes it away. The
self-mask stays until enough members release its seed, so that a vector that arrives late, after its owner's mask key
was put together again as a drop-out's, is still covered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from crypto.errors import MalformedError, VerificationError
from crypto.keys import derive
from crypto.pairwise.binding import Binding, check_sharers
from crypto.pairwise.graph import CERTAIN, Graph, graph_among
from crypto.pairwise.keystream import add_streams
from crypto.pairwise.parts import MaskKeys
from crypto.pairwise.secrets import AttemptSecrets, agree, agreeing, check_own, check_public
from crypto.protection import Words


def mask(
    words: Words,
    secrets: AttemptSecrets,
    binding: Binding,
    site: str,
    sharers: Sequence[str],
    public: Mapping[str, MaskKeys],
    graph: Graph | None = None,
) -> Words:
    """words + self-mask + Σ over peers, in the full ring: uniform to whoever lacks one of the keys.

    ``words``: uint32 or uint64, shape (L,). ``sharers``: the members that made shares, this site among them, sorted.
    ``graph``: who has masks with whom, everyone with everyone if None. Call it for **one** vector per
    :class:`AttemptSecrets`: two under the same masks show their difference. Raises :class:`VerificationError` for
    sharers that are not members or too few, and for keys that are missing, unusable, there twice, or not the own ones;
    :class:`MalformedError` for anything but words.
    """
    check_words(words)
    check_sharers(binding, sharers)
    _check_among(site, sharers)
    check_public(binding, public)
    check_own(secrets, binding, site, public)
    plus, minus = [self_key(secrets.seed, binding, site)], list[bytes]()
    for peer, key in pair_keys(secrets.mask, public, binding, site, sharers, graph).items():
        (plus if site < peer else minus).append(key)
    return add_streams(words, plus, minus)


def self_key(seed: bytes, binding: Binding, site: str) -> bytes:
    """The key (32 bytes) of a site's self-mask."""
    return derive(seed, "mask-self", *binding.fields(), site.encode())


def pair_key(private: bytes, public: bytes, binding: Binding, site: str, peer: str) -> bytes:
    """The key (32 bytes) of the mask of two sites, the same from either side."""
    return derive(agree(private, public), "mask-pair", *_pair(binding, site, peer))


def pair_keys(
    private: bytes,
    public: Mapping[str, MaskKeys],
    binding: Binding,
    site: str,
    peers: Iterable[str],
    graph: Graph | None = None,
) -> dict[str, bytes]:
    """:func:`pair_key` with each of ``peers`` that a site has a mask with, which is never itself.

    ``private``: its mask key. ``public`` is as :func:`crypto.pairwise.secrets.check_public` let it through.
    """
    chance = graph_among(len(binding.group), graph).linked
    secret_with, keys = agreeing(private), dict[str, bytes]()
    for peer in peers:
        if peer != site:
            secret, pair = secret_with(public[peer].mask), _pair(binding, site, peer)
            if linked(secret, pair, chance):
                keys[peer] = derive(secret, "mask-pair", *pair)
    return keys


def linked(secret: bytes, pair: Sequence[bytes], chance: int) -> bool:
    """Whether two sites have a mask, by a coin that shows heads ``chance`` times of 1024, the same from either side.

    ``secret``: of their mask keys, so that nobody else sees the coin or has a say in it. ``pair``: what the mask's key
    is bound to. Of a certain mask there is no coin.
    """
    return chance == CERTAIN or int.from_bytes(derive(secret, "mask-coin", *pair), "big") % CERTAIN < chance


def _pair(binding: Binding, site: str, peer: str) -> tuple[bytes, ...]:
    first, second = sorted((site, peer))
    return (*binding.fields(), first.encode(), second.encode())


def check_words(words: Words) -> None:
    """Raise :class:`MalformedError` unless words are one vector of uint32 or uint64."""
    if words.dtype not in (np.dtype(np.uint32), np.dtype(np.uint64)) or words.ndim != 1:
        raise MalformedError(f"words are one vector of uint32 or uint64, not {words.dtype} of {words.shape}")


def _check_among(site: str, sharers: Sequence[str]) -> None:
    if site not in sharers:
        raise VerificationError(f"{site} is not among those who made shares")
