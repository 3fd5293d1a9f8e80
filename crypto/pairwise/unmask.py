"""Unmasking of the sum at the coordinator: released shares give the masks that remain in the sum.

The coordinator learns the sum, the self-masks of survivors and the mask keys of drop-outs. Limit: with no more shares
of a seed than the threshold, a wrong share is not noticed here. The sum is then random, which
:meth:`crypto.fixed_point.FixedPoint.decode_sum` detects; the member at fault is not identified.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from crypto.errors import MalformedError
from crypto.pairwise.attempt import Binding, MaskKeys, check_mask_keys, check_survivors, public_half
from crypto.pairwise.masks import add_streams, check_words, pair_keys, self_key
from crypto.pairwise.neighbour_graph import Graph, graph_among
from crypto.pairwise.shares import ReleasedShare, ShareKind, check_released
from crypto.protection import Words
from crypto.shamir import combine


def unmask(
    masked: Mapping[str, Words],
    released: Mapping[str, tuple[ReleasedShare, ...]],
    binding: Binding,
    sharers: Sequence[str],
    survivors: Sequence[str],
    public: Mapping[str, MaskKeys],
    graph: Graph | None = None,
) -> Words:
    """Return Σ of the survivors' words in the full ring, shape (L,).

    ``masked`` has each survivor's masked words, each read once, so that they need not be in memory together;
    ``released`` the answers of at least the group's threshold of survivors; ``graph`` who held shares and had masks
    with whom, everyone if None. Raises :class:`MalformedError` if an answer does not have the required shares, shares
    contradict each other, or a reconstructed key differs from the stated key, and
    :class:`crypto.errors.VerificationError` for sets and keys that no site would have accepted.
    """
    # The coordinator checks what every honest site checked: with other sets its sum would not open anyway, but late
    # and without a reason.
    check_survivors(binding, sharers, survivors)
    check_mask_keys(binding, public)
    if set(masked) != set(survivors):
        raise MalformedError("masked vectors must be exactly one of each survivor")
    if not set(released) <= set(survivors) or len(released) < binding.threshold:
        raise MalformedError(
            f"{len(released)} answers with shares; {binding.threshold} are needed, all from survivors"
        )
    for answer in released.values():
        check_released(answer, binding, sharers, survivors)
    # All shares of each secret, by x: those beyond the threshold expose a wrong one.
    shares: defaultdict[tuple[str, ShareKind], dict[int, bytes]] = defaultdict(dict)
    for site, answer in released.items():
        for item in answer:
            shares[item.owner, item.kind][binding.position(site)] = item.share
    needed = graph_among(len(binding.group), graph).threshold
    # Each survivor added its self-mask; the pairwise masks among survivors cancel in the total.
    minus = [
        self_key(_reconstruct(owner, ShareKind.SEED, shares, needed), binding, owner) for owner in survivors
    ]
    plus: list[bytes] = []
    for owner in sorted(set(sharers) - set(survivors)):
        private = _reconstruct(owner, ShareKind.KEY, shares, needed)
        # With a wrong key, other streams would be subtracted than the survivors added: the sum would stay masked.
        if public_half(private) != public[owner].mask:
            raise MalformedError(f"the reconstructed mask key of {owner} differs from the stated key")
        for peer, key in pair_keys(private, public, binding, owner, survivors, graph).items():
            # The peer added the stream if its name comes first, so the stream is subtracted again.
            (minus if peer < owner else plus).append(key)
    return add_streams(_total(masked, survivors), plus, minus)


def _total(masked: Mapping[str, Words], survivors: Sequence[str]) -> Words:
    first, *others = survivors
    total = masked[first].copy()
    check_words(total)
    for site in others:
        words = masked[site]
        if (words.dtype, words.shape) != (total.dtype, total.shape):
            raise MalformedError("masked vectors differ in length or ring")
        np.add(total, words, out=total)
    return total


def _reconstruct(
    owner: str, kind: ShareKind, shares: Mapping[tuple[str, ShareKind], Mapping[int, bytes]], needed: int
) -> bytes:
    try:
        return combine(shares.get((owner, kind), {}), needed)
    except MalformedError as error:
        raise MalformedError(f"a secret of {owner}: {error}") from error
