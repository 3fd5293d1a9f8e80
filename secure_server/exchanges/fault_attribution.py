"""Whose fault it may be that a masked sum did not come out, as far as the released shares tell.

The limits: members who lie together can point at others, and of a wrong share it does not show whether it was made
or released wrongly. A site that adds what it should not is not found at all. So this is for the operator to read,
and nothing follows from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from crypto.errors import MalformedError
from crypto.pairwise.attempt_binding import Binding
from crypto.pairwise.attempt_secrets import public_of
from crypto.pairwise.neighbour_graph import Graph, graph_among
from crypto.pairwise.wire_values import MaskKeys, ReleasedShare, ShareKind
from crypto.shamir import combine

Released = Mapping[str, tuple[ReleasedShare, ...]]
"""By site that answered UNMASK: the shares that it released."""


def suspicions(
    released: Released,
    binding: Binding,
    sharers: Sequence[str],
    public: Mapping[str, MaskKeys],
    graph: Graph | None = None,
) -> tuple[str, ...]:
    """What there is to suspect, a sentence each: for answers of at least the threshold of members.

    Takes as long as it took to put one secret of each kind together, times the answers.
    """
    omitted = (
        f"{owner}: of all who answered, nobody else had a share of its secrets that opened"
        for owner in sharers
        if _omitted_by_all(owner, released)
    )
    needed = graph_among(len(binding.group), graph).threshold
    odd = (_odd_one_out(kind, released, binding, sharers, public, needed) for kind in ShareKind)
    return (*omitted, *(each for each in odd if each))


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
    """Of the first secret of this kind that its shares do not give: the one without which they do."""
    for owner in sharers:
        shares = {
            site: share.share
            for site, answer in released.items()
            for share in answer
            if (share.owner, share.kind) == (owner, kind)
        }
        stated = public[owner].mask if kind is ShareKind.KEY else None
        if shares and not _fit(shares, binding, stated, needed, needed):
            # Any threshold of shares fits, unless the secret's public key is there to tell.
            least = needed + (stated is None)
            odd = [site for site in shares if _fit(_without(site, shares), binding, stated, needed, least)]
            return _named(odd[0], owner) if len(odd) == 1 else ""
    return ""


def _named(site: str, owner: str) -> str:
    return f"{site}: its share of a secret of {owner} does not fit the others', unless {owner} made it so"


def _without(site: str, shares: Mapping[str, bytes]) -> dict[str, bytes]:
    return {other: share for other, share in shares.items() if other != site}


def _fit(
    shares: Mapping[str, bytes], binding: Binding, stated: bytes | None, needed: int, least: int
) -> bool:
    """Whether these shares, at least so many, give a secret, and the one whose public key was stated."""
    if len(shares) < least:
        return False
    try:
        secret = combine({binding.position(site): share for site, share in shares.items()}, needed)
    except MalformedError:
        return False
    return stated is None or public_of(secret) == stated
