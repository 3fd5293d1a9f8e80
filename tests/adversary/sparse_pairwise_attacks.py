"""Attacks on a masked sum over a sparse graph by a coordinator with or without members: each aims at one vector.

Members answer each question once, as in :mod:`tests.adversary.pairwise_attacks`, whose graph is complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import crypto.pairwise.masks as code
from crypto.pairwise.masks import add_streams, pair_keys, self_key
from crypto.pairwise.neighbour_graph import CERTAIN, Graph, sparse_graph
from crypto.pairwise.shares import ReleasedShare, ShareKind
from crypto.protection import Words
from crypto.shamir import combine
from tests.adversary.attack import KINDS, QUORUM, SIGNATURES_ENOUGH
from tests.adversary.pairwise_attacks import (
    LENGTH,
    SECRET,
    Attack,
    gained,
    shares_of,
)
from tests.crypto.masked_group import Group, binding_of, names

N = 30
MEMBERS = names(N)
VICTIM, *OTHERS = MEMBERS
GRAPH = sparse_graph(N, 3, 9)

OWNERS_WORD = "crypto.pairwise.member_signatures.verify"
COIN = "crypto.pairwise.masks.have_mask"
DRAW = "crypto.pairwise.shares.SystemRandom"


class _Foreseen:
    """Draws the first, which anybody can tell beforehand."""

    def sample(self, others: Sequence[str], count: int) -> Sequence[str]:
        return others[:count]


DOUBLES: dict[str, Any] = {
    COIN: lambda _secret, pair, _chance: sum(pair[-1] + pair[-2]) % 4 == 0,
    DRAW: _Foreseen,
}
"""A coin that follows from names, and holders that follow from the list of members."""


def _scene(graph: Graph, members: Sequence[str] = MEMBERS) -> Group:
    group = Group.of(binding_of(members), graph)
    group.share()
    return group


def _vectors(members: Sequence[str] = MEMBERS) -> dict[str, Words]:
    zeros = np.zeros(LENGTH, np.uint64)
    return {name: SECRET if name == members[0] else zeros for name in members}


def _alone(
    group: Group,
    masked: Words,
    released: Mapping[str, Sequence[ReleasedShare]],
    dropped: Sequence[str],
) -> Words:
    """The victim's vector, if all of its masks are with those said to have dropped out: ``unmask`` for one."""
    victim, graph = group.binding.group[0], group.graph
    seed, plus = _secret(group, released, victim, ShareKind.SEED), list[bytes]()
    minus = [self_key(seed, group.binding, victim)]
    for owner in dropped:
        private = _secret(group, released, owner, ShareKind.KEY)
        for key in pair_keys(private, group.public, group.binding, owner, (victim,), graph).values():
            (minus if victim < owner else plus).append(key)
    return add_streams(masked, plus, minus)


def _secret(
    group: Group, released: Mapping[str, Sequence[ReleasedShare]], owner: str, kind: ShareKind
) -> bytes:
    assert group.graph is not None
    return combine(shares_of(released, owner, kind, group.binding), group.graph.threshold)


def isolated_by_reported_drop_outs() -> None:
    """The victim is told that only nine others made shares, and then everyone that these nine dropped out."""
    group = _scene(GRAPH)
    dropped = OTHERS[:9]
    stay = tuple(name for name in MEMBERS if name not in dropped)
    told = tuple(sorted([VICTIM, *dropped]))
    masked = group.sites[VICTIM].mask(SECRET, told, group.public)
    signatures = {name: group.sites[name].sign(stay) for name in stay}
    words = {name: group.sites[name].sign_sharers(MEMBERS) for name in stay if name != VICTIM}
    words[VICTIM] = group.sites[VICTIM].sign_sharers(told)
    released = {
        name: group.sites[name].release(MEMBERS, stay, signatures, words) for name in stay if name != VICTIM
    }
    gained(_alone(group, masked, released, dropped))


def isolated_by_its_neighbours() -> None:
    """The victim's mask partners are reported as dropped out: they are fewer than may drop out.

    Without 17 of its 25 holders the 8 are left that open a secret. By chance the victim has no mask with any of the
    other 42 once in 2^42.
    """
    members = names(60)
    graph = Graph(60, 25, 8, CERTAIN // 2)
    group = _scene(graph, members)
    masked = group.mask(_vectors(members), members, members)
    fields = group.binding.fields()
    neighbours = [
        name
        for name in members[1:]
        if code.have_mask(bytes(32), (*fields, members[0].encode(), name.encode()), graph.linked)
    ]
    dropped = sorted(neighbours[:17])
    stay = tuple(name for name in members if name not in dropped)
    released = group.release(members, stay, stay)
    gained(_alone(group, masked[members[0]], released, dropped))


def holders_that_were_foreseen() -> None:
    """Ten members collude; the coordinator lists members so that these ten are the victim's holders, if it can predict
    holders.

    By chance they are all of its holders once in C(49, 10), which is 8·10^9.
    """
    members = names(50)
    helpers = members[1:11]
    graph = Graph(50, 10, 10, 855)
    group = _scene(graph, members)
    masked = group.mask(_vectors(members), members, members)
    known = {name: group.sites[name].held for name in helpers}
    pairs = {
        name: (
            ReleasedShare(VICTIM, ShareKind.SEED, held[VICTIM].seed),
            ReleasedShare(VICTIM, ShareKind.KEY, held[VICTIM].key),
        )
        for name, held in known.items()
        if VICTIM in held
    }
    gained(_opened(group, masked[VICTIM], pairs))


def _opened(group: Group, masked: Words, released: Mapping[str, Sequence[ReleasedShare]]) -> Words:
    """The victim's vector, from both of its secrets."""
    seed, key = (_secret(group, released, VICTIM, kind) for kind in (ShareKind.SEED, ShareKind.KEY))
    masks = pair_keys(key, group.public, group.binding, VICTIM, group.binding.group, group.graph)
    return add_streams(masked, [], [self_key(seed, group.binding, VICTIM), *masks.values()])


def both_kinds_of_a_neighbours_shares() -> None:
    """Each holder is asked for both of its shares of the victim's secrets, in one answer."""
    group = _scene(GRAPH)
    masked = group.mask(_vectors(), MEMBERS, MEMBERS)
    gained(_opened(group, masked[VICTIM], group.release(MEMBERS, MEMBERS, MEMBERS)))


def two_survivor_sets() -> None:
    """Half of the members are told that the victim survived, and half that it dropped out.

    Who holds shares of its secrets shows, so that half of them are in each, seven where five open a secret.
    """
    group = _scene(GRAPH)
    masked = group.mask(_vectors(), MEMBERS, MEMBERS)
    by_holding = sorted(OTHERS, key=lambda name: VICTIM in group.sites[name].held)
    released: dict[str, Sequence[ReleasedShare]] = {}
    words = {name: group.sites[name].sign_sharers(MEMBERS) for name in MEMBERS}
    for half, stay in ((by_holding[::2], MEMBERS), (by_holding[1::2], MEMBERS[1:])):
        signatures = {name: group.sites[name].sign(stay) for name in half}
        released |= {name: group.sites[name].release(MEMBERS, stay, signatures, words) for name in half}
    gained(_opened(group, masked[VICTIM], released))


SPARSE_ATTACKS: dict[str, Attack] = {
    "told that others made shares": Attack((QUORUM, OWNERS_WORD), isolated_by_reported_drop_outs),
    "neighbours said to have dropped out": Attack((COIN,), isolated_by_its_neighbours),
    "holders that follow from the members": Attack((DRAW,), holders_that_were_foreseen),
    "both kinds of a neighbour's shares": Attack((KINDS,), both_kinds_of_a_neighbours_shares),
    "two survivor sets": Attack((SIGNATURES_ENOUGH,), two_survivor_sets),
}
