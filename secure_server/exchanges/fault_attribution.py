"""Attribution of a failed masked sum: which sites' released shares contradict the shares of the others.

The limits: members who lie together can point at others, and a wrong share does not show whether it was made or
released wrongly. A site that adds wrong values is not found at all. Suspicions are for the operator to read; the
protocol does not act on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from crypto.errors import MalformedError
from crypto.pairwise.attempt import Binding, MaskKeys, public_half
from crypto.pairwise.neighbour_graph import Graph, graph_among
from crypto.pairwise.shares import ReleasedShare, ShareKind
from crypto.shamir import combine

Released = Mapping[str, tuple[ReleasedShare, ...]]
"""Shares that each site released in UNMASK, by site."""


def suspicions(
    released: Released,
    binding: Binding,
    sharers: Sequence[str],
    public: Mapping[str, MaskKeys],
    graph: Graph | None = None,
) -> tuple[str, ...]:
    """Return the suspicions, a sentence each, from the answers of at least the threshold of members.

    The duration is that of combining one secret of each kind, times the number of answers.
    """
    omitted = (
        f"{owner}: no other site that answered could open a share of {owner}'s secrets"
        for owner in sharers
        if _omitted_by_all(owner, released)
    )
    needed = graph_among(len(binding.group), graph).threshold
    odd = (_odd_one_out(kind, released, binding, sharers, public, needed) for kind in ShareKind)
    return (*omitted, *(suspicion for suspicion in odd if suspicion))


def _omitted_by_all(owner: str, released: Released) -> bool:
    others = [site for site in released if site != owner]
    return len(others) > 1 and not any(share.owner == owner for site in others for share in released[site])


def _odd_one_out(
    kind: ShareKind,
    released: Released,
    binding: Binding,
    sharers: Sequence[str],
    public: Mapping[str, MaskKeys],
    needed: int,
) -> str:
    """Return the site without whose share the shares of the first inconsistent secret of this kind are consistent."""
    for owner in sharers:
        shares = {
            site: share.share
            for site, answer in released.items()
            for share in answer
            if (share.owner, share.kind) == (owner, kind)
        }
        stated = public[owner].mask if kind is ShareKind.KEY else None
        if shares and not _fit(shares, binding, stated, needed, needed):
            # Without the secret's public key, any threshold of shares is consistent, so one more share is needed.
            least = needed + (stated is None)
            odd = [site for site in shares if _fit(_without(site, shares), binding, stated, needed, least)]
            return _named(odd[0], owner) if len(odd) == 1 else ""
    return ""


def _named(site: str, owner: str) -> str:
    return (
        f"{site}: its share of a secret of {owner} contradicts the other shares, unless {owner} made "
        "the share wrongly"
    )


def _without(site: str, shares: Mapping[str, bytes]) -> dict[str, bytes]:
    return {other: share for other, share in shares.items() if other != site}


def _fit(
    shares: Mapping[str, bytes], binding: Binding, stated: bytes | None, needed: int, least: int
) -> bool:
    """Return True if these shares, at least the threshold, give a secret that fits the stated public key."""
    if len(shares) < least:
        return False
    try:
        secret = combine({binding.position(site): share for site, share in shares.items()}, needed)
    except MalformedError:
        return False
    return stated is None or public_half(secret) == stated
