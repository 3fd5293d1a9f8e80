"""Sparse graphs: their numbers of holders and masks against probabilities that are counted and sampled."""

from __future__ import annotations

from itertools import combinations
from math import comb, log2, sqrt

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import hypergeom  # type: ignore[import-untyped]  # it ships no types

from crypto.errors import GraphError
from crypto.pairwise import neighbour_graph as under_test
from crypto.pairwise.attempt import threshold
from crypto.pairwise.neighbour_graph import (
    CERTAIN,
    HOLDER_BITS,
    LINK_BITS,
    OPENING_BITS,
    Graph,
    choose_graph,
    complete_graph,
    graph_among,
    sparse_graph,
)

SIZES = [
    (n, -(-n // 10), min(3 * n // 10, n - threshold(n))) for n in (9, 12, 30, 60, 101, 200, 256, 500, 1000)
]


def captured(graph: Graph, colluding: int, holders: int) -> float:
    """log2 of the chance, for all members, that threshold − 1 colluders or more are among the holders of one."""
    tail = hypergeom.logsf(graph.threshold - 2, graph.members - 1, colluding, holders) / np.log(2.0)
    return float(tail + log2(graph.members))


def starved(graph: Graph, dropped: int, holders: int) -> float:
    """log2 of the chance, for all members, that fewer than the threshold of the holders of one stay."""
    too_many = holders - graph.threshold
    tail = hypergeom.logsf(too_many, graph.members - 1, dropped, holders) / np.log(2.0)
    return float(tail + log2(graph.members))


def apart(linked: int, honest: int) -> float:
    """log2 of the union bound over all sets of a of the honest, in floating point."""
    missing = log2((CERTAIN - linked) / CERTAIN)
    terms = [log2(comb(honest, a)) + a * (honest - a) * missing for a in range(1, honest // 2 + 1)]
    return float(np.logaddexp2.reduce(terms))


@pytest.mark.parametrize(("members", "colluding", "dropped"), SIZES)
def test_sparse_graph_probabilities_tight(members: int, colluding: int, dropped: int) -> None:
    """scipy's tails. One threshold, or one unit of a chance, less would not do; nor would one holder less."""
    graph = sparse_graph(members, colluding, dropped)
    assert graph.sparse
    assert captured(graph, colluding, graph.holders) <= -HOLDER_BITS + 1e-6
    assert starved(graph, dropped, graph.holders) <= -OPENING_BITS + 1e-6
    honest = threshold(members) - colluding
    assert apart(graph.linked, honest) <= -LINK_BITS
    lower = Graph(members, graph.holders, graph.threshold - 1, graph.linked)
    assert graph.threshold == 2 or captured(lower, colluding, graph.holders) > -HOLDER_BITS
    assert apart(graph.linked - 1, honest) > -LINK_BITS - 0.1
    for fewer in range(max(2, graph.holders - 8), graph.holders):
        assert not any(_would_do(members, t, fewer, colluding, dropped) for t in range(2, fewer + 1))


def _would_do(members: int, needed: int, holders: int, colluding: int, dropped: int) -> bool:
    graph = Graph(members, holders, needed, CERTAIN)
    return (
        starved(graph, dropped, holders) <= -OPENING_BITS - 1e-6
        and captured(graph, colluding, holders) <= -HOLDER_BITS - 1e-6
    )


def test_sparse_graph_holders_grow_logarithmically() -> None:
    """Each of 16 times as many members has less than twice as many holders and masks."""
    few, many = sparse_graph(256, 25, 76), sparse_graph(4096, 409, 1228)
    assert many.holders < 2 * few.holders
    assert many.linked * 4096 < 2 * few.linked * 256


@pytest.mark.parametrize("colluding", [0.0, 0.05, 0.1, 0.2, 0.33])
@pytest.mark.parametrize("dropped", [0.0, 0.1, 0.3, 0.33])
def test_sparse_graph_exists_for_every_agreed_share(colluding: float, dropped: float) -> None:
    graph = sparse_graph(256, int(colluding * 256), int(dropped * 256))
    assert graph.holders < 160


@pytest.mark.parametrize(
    ("members", "colluding", "dropped"),
    [(30, 12, 0), (30, 0, 10), (100, 34, 0), (5, 1, 1), (4, 0, 0), (30, -1, 0), (30, 0, -1)],
)
def test_sparse_graph_impossible_refused_and_graph_of_complete(
    members: int, colluding: int, dropped: int
) -> None:
    if (members, colluding, dropped) == (4, 0, 0):
        assert choose_graph(4, 0, 0).holders == 2
        return
    with pytest.raises(GraphError, match=rf"{members}"):
        sparse_graph(members, colluding, dropped)
    assert choose_graph(members, colluding, dropped) == complete_graph(members)


def test_complete_graph_links_all() -> None:
    assert complete_graph(30) == Graph(30, 29, 21, CERTAIN)
    assert not complete_graph(30).sparse
    assert graph_among(30, None) == complete_graph(30)
    with pytest.raises(ValueError, match=r"30.*31"):
        graph_among(31, complete_graph(30))


# Against what happens


def _captures(graph: Graph, colluding: int, tries: int) -> int:
    """Count, by sampling, how often a member has threshold − 1 of so many colluders among its holders."""
    generator = np.random.default_rng(1)
    others = graph.members - 1
    holders = np.argsort(generator.random((tries, others)), axis=1)[:, : graph.holders]
    return int(((holders < colluding).sum(axis=1) >= graph.threshold - 1).sum())


def _disconnected(linked: int, honest: int, tries: int) -> int:
    """Count, by sampling, how often a graph with that chance of a link falls apart."""
    generator, count = np.random.default_rng(2), 0
    for _ in range(tries):
        draws = np.triu(generator.integers(0, CERTAIN, (honest, honest)) < linked, 1)
        count += not _joined(draws | draws.T)
    return count


def _joined(links: NDArray[np.bool_]) -> bool:
    reached = np.zeros(len(links), dtype=np.bool_)
    reached[0], before = True, 0
    while reached.sum() > before:
        before = int(reached.sum())
        reached |= links[reached].any(axis=0)
    return bool(reached.all())


@pytest.mark.parametrize("bits", [6, 10])
def test_threshold_against_colluders_by_sampling(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chances are large enough to be sampled, and a threshold that is too low by two is found out."""
    monkeypatch.setattr(under_test, "HOLDER_BITS", bits)
    sparse_graph.cache_clear()
    graph = sparse_graph(120, 12, 36)
    sparse_graph.cache_clear()
    tries, allowed = 60_000, 2.0**-bits / 120
    assert _captures(graph, 12, tries) <= _most(tries, allowed)
    too_low = Graph(120, graph.holders, graph.threshold - 2, graph.linked)
    assert _captures(too_low, 12, tries) > _most(tries, allowed)


@pytest.mark.parametrize("bits", [6, 9])
def test_links_connect_survivors_by_sampling(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chance that is three quarters of the one it has to be is found out."""
    monkeypatch.setattr(under_test, "LINK_BITS", bits)
    under_test._least_mask_probability.cache_clear()
    linked = under_test._least_mask_probability(60)
    under_test._least_mask_probability.cache_clear()
    tries, allowed = 2000, 2.0**-bits
    assert _disconnected(linked, 60, tries) <= _most(tries, allowed)
    assert _disconnected(3 * linked // 4, 60, tries) > _most(tries, allowed)


def _most(tries: int, chance: float) -> float:
    """Return the bound, five standard deviations up, on a count of events with that chance."""
    return tries * chance + 5 * sqrt(tries * chance) + 1


def test_union_bound_above_exact_probability() -> None:
    """The exact probability for five members is counted over all their graphs."""
    honest, linked = 5, 700
    p = linked / CERTAIN
    pairs = list(combinations(range(honest), 2))
    exact = 0.0
    for chosen in range(2 ** len(pairs)):
        there = [pair for i, pair in enumerate(pairs) if chosen >> i & 1]
        links = np.zeros((honest, honest), dtype=np.bool_)
        for u, v in there:
            links[u, v] = links[v, u] = True
        exact += (not _joined(links)) * p ** len(there) * (1 - p) ** (len(pairs) - len(there))
    assert 0.5 * 2.0 ** apart(linked, honest) < exact <= 2.0 ** apart(linked, honest)


@pytest.mark.parametrize("honest", [20, 40, 300])
def test_links_connect_larger_sets_more_surely(honest: int) -> None:
    """The bound is for the fewest honest survivors; the coordinator may leave more."""
    linked = under_test._least_mask_probability(honest)
    assert all(apart(linked, more) <= -LINK_BITS for more in range(honest, 2 * honest))
