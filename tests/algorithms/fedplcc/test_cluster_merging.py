"""Assignment of prototypes to clusters: inner products give what vectors give, and each cluster has enough sites."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms.fedplcc import WITHHELD, LocalClusters, assign, most_norm_hiding
from tests.algorithms import finch_reference as reference
from tests.algorithms.clustered_sites import DIM, SEEDS, by_class, grams, sites


@pytest.mark.parametrize("min_holders", [1, 2, 3])
def test_clusters_are_those_of_the_definition_on_the_vectors(min_holders: int) -> None:
    withheld = merged = 0
    for seed in SEEDS:
        rows, owners = by_class(sites(seed))
        found = assign(grams(rows), owners, min_holders)
        first = 0
        for vectors, who, got in zip(rows, owners, found.of_row, strict=True):
            if len(set(who.tolist())) < min_holders or not len(who):
                assert (got == WITHHELD).all()
                withheld += 1
                continue
            plain = reference.coarsest(reference.levels(vectors.tolist())) if len(who) > 1 else [0]
            expected = reference.merged(vectors.tolist(), plain, who.tolist(), min_holders)
            assert got.tolist() == [first + g for g in expected], seed
            first += max(expected) + 1
            merged += expected != plain
    assert withheld > 0
    assert (merged > 0) == (min_holders > 1)


@given(st.integers(0, 1000), st.integers(1, 3))
def test_rotated_vectors_of_length_one_are_assigned_alike(seed: int, min_holders: int) -> None:
    rows, owners = by_class(sites(seed))
    turn, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(DIM, DIM)))
    turned = [each / np.linalg.norm(each, axis=1, keepdims=True) @ turn for each in rows]
    plain, hidden = assign(grams(rows), owners, min_holders), assign(grams(turned), owners, min_holders)
    assert [each.tolist() for each in plain.of_row] == [each.tolist() for each in hidden.of_row]
    assert plain.labels.tolist() == hidden.labels.tolist()


@given(st.integers(0, 1000), st.integers(1, 4))
def test_each_cluster_has_enough_sites_and_one_class(seed: int, min_holders: int) -> None:
    rows, owners = by_class(sites(seed))
    found = assign(grams(rows), owners, min_holders)
    for k, (parts, who) in enumerate(zip(found.of_row, owners, strict=True)):
        held = set(parts.tolist()) - {WITHHELD}
        assert bool(held) == (len(set(who.tolist())) >= min_holders and len(who) > 0)
        for g in held:
            assert found.labels[g] == k
            assert found.sites[g] == len(set(who[parts == g].tolist())) >= min_holders
    assert sorted(set(np.concatenate(found.of_row).tolist()) - {WITHHELD}) == list(range(len(found.labels)))


def test_sites_are_counted_not_prototypes() -> None:
    """Three directions; the first has three prototypes, all of one site."""
    angles = np.radians([0.0, 1.0, 2.0, 45.0, 46.0, 90.0, 91.0])
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    owners = np.array([0, 0, 0, 1, 2, 1, 2])
    alone = assign([rows @ rows.T], [owners], 1)
    assert alone.of_row[0].tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert alone.sites.tolist() == [1, 2, 2]
    assert assign([rows @ rows.T], [owners], 2).of_row[0].tolist() == [0, 0, 0, 0, 0, 1, 1]
    assert assign([rows @ rows.T], [owners], 3).of_row[0].tolist() == [0] * 7
    assert assign([rows @ rows.T], [owners], 4).of_row[0].tolist() == [WITHHELD] * 7


def test_equally_near_clusters_are_joined_by_the_lowest_number() -> None:
    angles = np.radians([-45.0, -46.0, 45.0, 46.0, 0.0, 0.0])
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    owners = np.array([0, 1, 0, 1, 2, 2])
    assert assign([rows @ rows.T], [owners], 1).of_row[0].tolist() == [0, 0, 1, 1, 2, 2]
    assert assign([rows @ rows.T], [owners], 2).of_row[0].tolist() == [0, 0, 1, 1, 0, 0]


def test_a_zero_prototype_joins_a_cluster_when_it_may_not_stand_alone() -> None:
    rows = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0], [0.0, 0.0]])
    owners = np.array([0, 1, 0, 1, 2])
    for min_holders in (1, 2):
        found = assign([rows @ rows.T], [owners], min_holders)
        assert found.of_row[0].tolist() == [0, 0, 1, 1, 0]
        assert found.sites.tolist() == [2, 2]


@pytest.mark.parametrize("nothing", [0.0, 5e-324, 1e-160])
def test_a_zero_prototype_makes_its_site_no_holder(nothing: float) -> None:
    """Two sites have directions and a third has none: no cluster of three, whatever is joined."""
    rows = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [nothing, 0.0], [0.0, 0.0]])
    owners = np.array([0, 1, 0, 2, 3])
    assert assign([rows @ rows.T], [owners], 3).of_row[0].tolist() == [WITHHELD] * 5
    assert assign([rows @ rows.T], [owners], 2).sites.tolist() == [2]
    local = LocalClusters(rows, np.zeros(5, dtype=np.int64), np.ones(5, dtype=np.int64))
    assert len(local.without_zeros().rows) == 3


@given(st.integers(0, 1000), st.integers(1, 3), st.integers(1, 3))
def test_the_smallest_clusters_join_until_there_are_few_enough(
    seed: int, min_holders: int, most: int
) -> None:
    rows, owners = by_class(sites(seed))
    first, few = (
        assign(iter(grams(rows)), owners, min_holders, most=limit, hiding=hiding)
        for limit, hiding in ((None, False), (most, seed % 2 == 0))
    )
    for k, (vectors, who) in enumerate(zip(rows, owners, strict=True)):
        before, number = int((first.labels == k).sum()), int((few.labels == k).sum())
        limit = min(most, most_norm_hiding(len(who)) if seed % 2 == 0 else most)
        assert number == min(before, limit)
        if not number:
            continue
        expected = reference.merged(
            vectors.tolist(), first.of_row[k].tolist(), who.tolist(), min_holders, limit
        )
        offset = int((few.labels < k).sum())
        assert (few.of_row[k] - offset).tolist() == expected


def test_fewer_inner_products_than_prototypes_are_what_hides_norms() -> None:
    for rows in range(400):
        number = most_norm_hiding(rows)
        assert number == 1 or number * (number + 1) // 2 < rows
        assert (number + 1) * (number + 2) // 2 >= rows


def test_inner_products_that_do_not_fit_are_refused() -> None:
    one = np.array([[1.0]])
    owner = np.array([0])
    with pytest.raises(ValueError, match="min_holders"):
        assign([one], [owner], 0)
    with pytest.raises(ValueError, match="site lists"):
        assign([one], [], 1)
    with pytest.raises(ValueError, match="does not fit"):
        assign([one], [np.array([0, 1])], 1)
    with pytest.raises(ValueError, match="Gram"):
        assign([np.array([[np.nan]])], [owner], 1)
