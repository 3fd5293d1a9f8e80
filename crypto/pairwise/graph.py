"""Who holds shares of whose secrets, and who has a mask with whom: everyone, or a few that chance picks.

*Complete*: every member holds shares of every other and has a mask with it; ⌊2n/3⌋ + 1 shares open a secret. *Sparse*,
for n in the hundreds (Bell et al. 2020, CCS, from whom it departs: docs/adr/0012-neighbour-graphs.md): a member seals
shares to a few others that it draws by itself, once it knows who takes part; whether two members have a mask between
them follows from the secret that only these two share, so that nobody else sees it and neither can be told otherwise.

What a sparse graph promises is statistical, against ``colluding`` members that help the coordinator and are fixed
before holders are drawn. But for 2^-60 in each attempt, none of the other members has more than threshold − 2 of them
among its holders, so that they open nothing, and a seed that opens was released by an honest holder too. But for 2^-40
in each sum, the masks between honest survivors join all of them, whichever of the sets that members sign the
coordinator picks, so that the sum opens as a whole or not at all. Holders show, so that a coordinator may begin
attempts until it likes what it sees: that is what the 20 bits are for. Masks do not. Beyond ``colluding`` there is no
promise at all, nor for what else tells on masks, such as how long a member takes. But for 2^-20 a sum opens when
``dropped`` members, picked by chance, are gone.

Every party computes the same numbers from the same few: in integers alone, so that no platform rounds otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import comb

from crypto.errors import GraphError
from crypto.pairwise import binding

HOLDER_BITS, LINK_BITS, OPENING_BITS = 60, 40, 20
"""Chances of failure are at most 2^-bits: of the holders of any member, of the masks, of a sum that should open."""
CERTAIN = 1024
"""A chance is so many of 1024."""

_SMALLEST = 2
"""A threshold of 1 would make each share the secret."""
_EXACT_TERMS = 16
_FRACTION_BITS = 768


@dataclass(frozen=True)
class Graph:
    """Among ``members``: each has ``holders`` others that hold shares, ``threshold`` of the holders' and its own open.

    Two members have a mask between them with a chance of ``linked`` of 1024.
    """

    members: int
    holders: int
    threshold: int
    linked: int

    @property
    def sparse(self) -> bool:
        """Whether some members hold no shares of some others."""
        return self.holders < self.members - 1


def graph_among(members: int, graph: Graph | None) -> Graph:
    """The graph, or the complete one for None. ``ValueError`` if it is one of another number of members."""
    if graph is not None and graph.members != members:
        raise ValueError(f"a graph of {graph.members} among {members} members")
    return graph or complete_graph(members)


def complete_graph(members: int) -> Graph:
    """Everyone with everyone, and the threshold of a group."""
    return Graph(members, members - 1, binding.threshold(members), CERTAIN)


@lru_cache(maxsize=256)
def sparse_graph(members: int, colluding: int, dropped: int) -> Graph:
    """The sparse graph with the fewest holders that holds off so many, and opens without so many.

    Raises :class:`GraphError` if none has fewer holders than a complete one, as with many of either or few members.
    """
    quorum = binding.threshold(members)
    honest = quorum - colluding
    if not 0 <= colluding < 2 * quorum - members or not 0 <= dropped <= members - quorum or honest < 2:
        raise GraphError(
            f"a group of {members} withstands fewer than {2 * quorum - members} members that collude, and goes on"
            f" without {members - quorum} at most: not {colluding} and {dropped}"
        )
    for holders in range(_SMALLEST, members - 1):
        needed = _threshold_against(members, colluding, holders)
        if needed <= holders and _opens(members, dropped, holders, needed):
            return Graph(members, holders, needed, _linked(honest))
    raise GraphError(
        f"{members} members of whom {colluding} collude and {dropped} drop out need a complete graph: lower"
        " either number"
    )


def graph_of(members: int, colluding: int, dropped: int) -> Graph:
    """The sparse graph, or the complete one where there is none."""
    try:
        return sparse_graph(members, colluding, dropped)
    except GraphError:
        return complete_graph(members)


# The holders


def _threshold_against(members: int, colluding: int, holders: int) -> int:
    """The least t for which t − 1 colluders among the holders of any member are as good as impossible."""
    counts = _counts(members - 1, colluding, holders)
    ways, least = 0, holders + 1
    while least > 0 and _unlikely(ways + counts[least - 1], members, holders, HOLDER_BITS):
        least -= 1
        ways += counts[least]
    return max(least + 1, _SMALLEST)


def _opens(members: int, dropped: int, holders: int, needed: int) -> bool:
    """Whether that too few of the holders of any member stay is as good as impossible."""
    too_many = sum(_counts(members - 1, dropped, holders)[holders - needed + 1 :])
    return _unlikely(too_many, members, holders, OPENING_BITS)


def _unlikely(ways: int, members: int, holders: int, bits: int) -> bool:
    """For one member's holders in so many ways, of all; and there are ``members`` of them."""
    return (ways * members) << bits <= comb(members - 1, holders)


def _counts(others: int, marked: int, drawn: int) -> list[int]:
    """In how many ways 0, 1, … ``drawn`` of the marked are among those drawn: the hypergeometric distribution."""
    return [comb(marked, x) * comb(others - marked, drawn - x) for x in range(drawn + 1)]


# The masks


@lru_cache(maxsize=256)
def _linked(honest: int) -> int:
    """The smallest chance of a mask, of 1024, that joins so many as surely as is wanted."""
    low, high = 0, CERTAIN
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _joins(honest, middle) else (middle, high)
    return high


def _joins(honest: int, linked: int) -> bool:
    """Whether it is as good as impossible that some of them have no mask with any of the others.

    Σ over a ≤ s/2 of C(s, a)·q^(a·(s − a)), the union over all sets of a of the s; from some a on by the terms of a
    geometric series, since C(s, a) ≤ s^a and s − a ≥ s/2. Rounded up.
    """
    one, half = 1 << _FRACTION_BITS, honest // 2
    total = sum(
        comb(honest, size) * _power(CERTAIN - linked, size * (honest - size))
        for size in range(1, min(half, _EXACT_TERMS) + 1)
    )
    if half > _EXACT_TERMS:
        ratio = honest * _power(CERTAIN - linked, honest - half)
        if 2 * ratio > one:
            return False
        total += 2 * _raised(ratio, _EXACT_TERMS + 1)
    return total << LINK_BITS <= one


def _power(missing: int, exponent: int) -> int:
    """(missing/1024)^exponent in units of 2^-768, rounded up."""
    return _raised((missing << _FRACTION_BITS) // CERTAIN, exponent)


def _raised(base: int, exponent: int) -> int:
    """base^exponent in units of 2^-768, rounded up: by squaring."""
    result = 1 << _FRACTION_BITS
    while exponent:
        if exponent & 1:
            result = _up(result * base)
        base, exponent = _up(base * base), exponent >> 1
    return result


def _up(product: int) -> int:
    return -(-product >> _FRACTION_BITS)
