"""Graph of a masked sum: who holds shares of whose secrets, and which pairs have a mask; complete or sparse.

In a *complete* graph every member holds shares of every other and has a mask with it; ⌊2n/3⌋ + 1 shares open a secret.
In a *sparse* graph, for n in the hundreds (after Bell et al. 2020, CCS; docs/adr/0012-neighbour-graphs.md lists the
differences), a member draws a few holders by itself, once the group is fixed, and seals shares to them. A coin from the
secret that only two members share decides whether they have a mask, so that nobody else can see or influence the coin.

The guarantees of a sparse graph are statistical, against ``colluding`` members that help the coordinator and are fixed
before holders are drawn:

- Except with probability 2^-60 in each attempt, each other member has at most threshold − 2 colluders among its
  holders. So colluders alone open nothing, and for every opened seed an honest holder released a share too.
- Except with probability 2^-40 in each sum, the masks between honest survivors connect all of them, whichever signed
  set the coordinator picks, so that the sum opens as a whole or not at all.
- Except with probability 2^-20, a sum opens after ``dropped`` members, picked at random, have dropped out.

The coordinator sees holders, but not masks, and may restart attempts until it likes the holders; the extra 20 bits
cover that. Limits: there is no guarantee against more than ``colluding`` members, nor against side channels on masks,
such as how long a member takes.

All parties compute the same graph from the same numbers, in integers alone, so that platforms cannot round differently.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import comb

from crypto.errors import GraphError
from crypto.pairwise import attempt

HOLDER_BITS, LINK_BITS, OPENING_BITS = 60, 40, 20
"""Bits b of the failure probabilities 2^-b: of the holders of any member, of the masks, of opening the sum."""
CERTAIN = 1024
"""Unit of probabilities: p stands for p/1024."""

_SMALLEST = 2
"""Smallest threshold; with a threshold of 1 each share would be the secret."""
_EXACT_TERMS = 16
_FRACTION_BITS = 768


@dataclass(frozen=True)
class Graph:
    """Graph among ``members``; two members have a mask with probability ``linked``/1024.

    Each member has ``holders`` other members that hold its shares; ``threshold`` of these and its own share open a
    secret.
    """

    members: int
    holders: int
    threshold: int
    linked: int

    @property
    def sparse(self) -> bool:
        """True if some members hold no shares of some others."""
        return self.holders < self.members - 1


def graph_among(members: int, graph: Graph | None) -> Graph:
    """Return the graph, or the complete one for None; raise ``ValueError`` for another number of members."""
    if graph is not None and graph.members != members:
        raise ValueError(f"a graph for {graph.members} members does not fit a group of {members}")
    return graph or complete_graph(members)


def complete_graph(members: int) -> Graph:
    """Return the graph that links all members, with the threshold of a group."""
    return Graph(members, members - 1, attempt.threshold(members), CERTAIN)


@lru_cache(maxsize=256)
def sparse_graph(members: int, colluding: int, dropped: int) -> Graph:
    """Return the sparse graph with the fewest holders that resists ``colluding`` and tolerates ``dropped`` members.

    Raises :class:`GraphError` if none has fewer holders than the complete graph, e.g. if either number is large or
    ``members`` is small.
    """
    quorum = attempt.threshold(members)
    honest = quorum - colluding
    if not 0 <= colluding < 2 * quorum - members or not 0 <= dropped <= members - quorum or honest < 2:
        raise GraphError(
            f"a group of {members} resists fewer than {2 * quorum - members} colluding members, and works"
            f" without {members - quorum} at most, not {colluding} and {dropped}"
        )
    # The fewest holders that satisfy both bounds, since each holder costs a sealed share.
    for holders in range(_SMALLEST, members - 1):
        needed = _threshold_against(members, colluding, holders)
        if needed <= holders and _opens(members, dropped, holders, needed):
            return Graph(members, holders, needed, _least_mask_probability(honest))
    raise GraphError(
        f"{members} members with {colluding} colluding and {dropped} dropped need a complete graph: lower either number"
    )


def choose_graph(members: int, colluding: int, dropped: int) -> Graph:
    """Return the sparse graph, or the complete one if there is no sparse graph."""
    try:
        return sparse_graph(members, colluding, dropped)
    except GraphError:
        return complete_graph(members)


# Holders


def _threshold_against(members: int, colluding: int, holders: int) -> int:
    """Return the least t for which t − 1 colluders among the holders of any member have negligible probability."""
    counts = _counts(members - 1, colluding, holders)
    ways, least = 0, holders + 1
    while least > 0 and _unlikely(ways + counts[least - 1], members, holders, HOLDER_BITS):
        least -= 1
        ways += counts[least]
    return max(least + 1, _SMALLEST)


def _opens(members: int, dropped: int, holders: int, needed: int) -> bool:
    """Return True if the probability that too few of any member's holders stay is negligible."""
    too_many = sum(_counts(members - 1, dropped, holders)[holders - needed + 1 :])
    return _unlikely(too_many, members, holders, OPENING_BITS)


def _unlikely(ways: int, members: int, holders: int, bits: int) -> bool:
    """Return True if ``ways`` of the draws of one member's holders, times ``members``, have probability ≤ 2^-bits."""
    return (ways * members) << bits <= comb(members - 1, holders)


def _counts(others: int, marked: int, drawn: int) -> list[int]:
    """Return the numbers of draws with 0, 1, … ``drawn`` of the marked: the hypergeometric distribution."""
    return [comb(marked, x) * comb(others - marked, drawn - x) for x in range(drawn + 1)]


# Masks


@lru_cache(maxsize=256)
def _least_mask_probability(honest: int) -> int:
    """Return the smallest probability of a mask, of 1024, that connects ``honest`` members except with 2^-40."""
    low, high = 0, CERTAIN
    # Bisection: the bound falls as the probability grows.
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _connects(honest, middle) else (middle, high)
    return high


def _connects(honest: int, linked: int) -> bool:
    """Return True if the probability that masks do not connect all of the s ``honest`` members is at most 2^-40.

    The bound is Σ over a ≤ s/2 of C(s, a)·q^(a·(s − a)), a union over all sets of a of the s members. From a = 17 on
    the terms are bounded by a geometric series, since C(s, a) ≤ s^a and s − a ≥ s/2. All terms are rounded up.
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
        total += 2 * _power_of(ratio, _EXACT_TERMS + 1)
    return total << LINK_BITS <= one


def _power(missing: int, exponent: int) -> int:
    """Return (missing/1024)^exponent in units of 2^-768, rounded up."""
    return _power_of((missing << _FRACTION_BITS) // CERTAIN, exponent)


def _power_of(base: int, exponent: int) -> int:
    """Return base^exponent in units of 2^-768, rounded up, by squaring."""
    result = 1 << _FRACTION_BITS
    while exponent:
        if exponent & 1:
            result = _round_up(result * base)
        base, exponent = _round_up(base * base), exponent >> 1
    return result


def _round_up(product: int) -> int:
    return -(-product >> _FRACTION_BITS)
