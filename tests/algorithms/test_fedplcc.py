"""FedPLCC's clusters against loops on the vectors: local prototypes, their assignment, and the global clusters."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms.fedplcc import (
    WITHHELD,
    Contribution,
    FinchAssignment,
    GlobalClusters,
    LocalClusters,
    assign,
    contribution,
    global_clusters,
    local_clusters,
    most_norm_hiding,
)
from algorithms.gram_matrix import Float
from algorithms.kmeans import Labels
from algorithms.prototypes import Clusters
from tests.algorithms import finch_reference as reference
from tests.algorithms.plain_lists import mean

SEEDS = range(40)
CLASSES, DIM = 3, 6


def samples(seed: int) -> tuple[Float, Labels]:
    """Return a site's features and labels; one class has a single sample, or none."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES - 1, size=40)
    labels[0] = rng.integers(0, CLASSES)
    return np.maximum(rng.normal(0.4, 1.0, size=(40, DIM)), 0.0) + 0.01, labels


def sites(seed: int) -> list[LocalClusters]:
    """Draw the local prototypes of four to eight sites."""
    rng = np.random.default_rng([seed, 1])
    return [local_clusters(*samples(100 * seed + i), CLASSES) for i in range(rng.integers(4, 9))]


def by_class(federation: Sequence[LocalClusters]) -> tuple[list[Float], list[Labels]]:
    """Return all sites' local prototypes of each class, and the sites that they belong to."""
    rows = [np.concatenate([site.rows[site.labels == k] for site in federation]) for k in range(CLASSES)]
    owners = [
        np.concatenate([np.full(int((site.labels == k).sum()), i) for i, site in enumerate(federation)])
        for k in range(CLASSES)
    ]
    return rows, owners


def grams(rows: Sequence[Float]) -> list[Float]:
    return [np.asarray(each @ each.T) for each in rows]


def of_site(assignment: FinchAssignment, owners: Sequence[Labels], site: int) -> Labels:
    """Return the clusters of one site's prototypes, in the site's own order."""
    parts = [each[who == site] for each, who in zip(assignment.of_row, owners, strict=True)]
    return np.concatenate(parts)


def total_of(
    federation: Sequence[LocalClusters],
    assignment: FinchAssignment,
    owners: Sequence[Labels],
) -> Contribution:
    """Add up each site's own share, which is the work of the protections."""
    clusters = len(assignment.labels)
    shares = [
        contribution(site, of_site(assignment, owners, i), clusters) for i, site in enumerate(federation)
    ]
    return Contribution(*(np.sum([share[field] for share in shares], axis=0) for field in range(3)))


def test_local_clusters_are_means_of_finchs_clusters() -> None:
    for seed in SEEDS:
        features, labels = samples(seed)
        local = local_clusters(features, labels, CLASSES)
        rows: list[list[float]] = []
        owners: list[int] = []
        counts: list[int] = []
        for k in range(CLASSES):
            members = features[labels == k].tolist()
            if not members:
                continue
            parts = reference.coarsest(reference.levels(members)) if len(members) > 1 else [0]
            for g in range(max(parts) + 1):
                chosen = [z for z, part in zip(members, parts, strict=True) if part == g]
                rows.append(mean(chosen))
                owners.append(k)
                counts.append(len(chosen))
        assert local.labels.tolist() == owners
        assert local.counts.tolist() == counts
        np.testing.assert_allclose(local.rows, rows, rtol=1e-12)


def test_local_clusters_weighted_by_counts_are_the_class_means() -> None:
    for seed in SEEDS:
        features, labels = samples(seed)
        for literal in (False, True):
            local = local_clusters(features, labels, CLASSES, literal=literal)
            for k in np.unique(labels):
                own = local.labels == k
                weighted = local.counts[own] @ local.rows[own] / local.counts[own].sum()
                np.testing.assert_allclose(weighted, features[labels == k].mean(axis=0), rtol=1e-12)
                assert local.counts[own].sum() == (labels == k).sum()


def test_local_clusters_lengths_count_in_the_literal_form_alone() -> None:
    changed = 0
    for seed in SEEDS:
        features, labels = samples(seed)
        scaled = features * np.random.default_rng(seed).uniform(0.01, 100.0, size=(len(features), 1))
        default = [local_clusters(each, labels, CLASSES).counts.tolist() for each in (features, scaled)]
        assert default[0] == default[1]
        literal = [
            local_clusters(each, labels, CLASSES, literal=True).counts.tolist() for each in (features, scaled)
        ]
        changed += literal[0] != literal[1]
    assert changed > 0


def test_local_clusters_more_than_agreed_become_the_class_mean() -> None:
    fewer = 0
    for seed in SEEDS:
        features, labels = samples(seed)
        free = local_clusters(features, labels, CLASSES)
        most = int(np.bincount(free.labels).max()) - 1
        bounded = local_clusters(features, labels, CLASSES, most=most)
        for k in np.unique(labels):
            own, before = bounded.labels == k, free.labels == k
            if before.sum() <= most:
                np.testing.assert_array_equal(bounded.rows[own], free.rows[before])
                continue
            fewer += 1
            np.testing.assert_allclose(bounded.rows[own], [features[labels == k].mean(axis=0)], rtol=1e-12)
    assert fewer >= len(SEEDS)


def test_local_clusters_single_are_class_means() -> None:
    features, labels = samples(3)
    local = local_clusters(features, labels, CLASSES, single=True)
    assert local.labels.tolist() == np.unique(labels).tolist()
    for k, row in zip(local.labels, local.rows, strict=True):
        np.testing.assert_allclose(row, features[labels == k].mean(axis=0), rtol=1e-12)


def test_local_clusters_zero_features_share_a_prototype() -> None:
    rng = np.random.default_rng(0)
    features = np.concatenate([np.zeros((20, DIM)), rng.random((10, DIM))])
    local = local_clusters(features, np.zeros(30, dtype=np.int64), CLASSES)
    assert (~local.rows.any(axis=1)).sum() == 1
    assert local.counts.tolist()[0] == 20
    assert local.counts.sum() == 30
    assert len(local_clusters(np.zeros((0, DIM)), np.zeros(0, dtype=np.int64), CLASSES).rows) == 0


def test_local_clusters_have_two_samples_or_more() -> None:
    """FINCH links every vector with another one; a class of one sample is the exception that the docstring names."""
    for seed in SEEDS:
        features, labels = samples(seed)
        local = local_clusters(features, labels, CLASSES)
        for k, count in zip(local.labels, local.counts, strict=True):
            assert count >= min(2, (labels == k).sum())


@pytest.mark.parametrize("min_holders", [1, 2, 3])
def test_assign_equals_the_definition_on_the_vectors(min_holders: int) -> None:
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
def test_assign_rotated_unit_vectors_alike(seed: int, min_holders: int) -> None:
    rows, owners = by_class(sites(seed))
    turn, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(DIM, DIM)))
    turned = [each / np.linalg.norm(each, axis=1, keepdims=True) @ turn for each in rows]
    plain, hidden = assign(grams(rows), owners, min_holders), assign(grams(turned), owners, min_holders)
    assert [each.tolist() for each in plain.of_row] == [each.tolist() for each in hidden.of_row]
    assert plain.labels.tolist() == hidden.labels.tolist()


@given(st.integers(0, 1000), st.integers(1, 4))
def test_assign_clusters_have_min_holders_and_one_class(seed: int, min_holders: int) -> None:
    rows, owners = by_class(sites(seed))
    found = assign(grams(rows), owners, min_holders)
    for k, (parts, who) in enumerate(zip(found.of_row, owners, strict=True)):
        held = set(parts.tolist()) - {WITHHELD}
        assert bool(held) == (len(set(who.tolist())) >= min_holders and len(who) > 0)
        for g in held:
            assert found.labels[g] == k
            assert found.sites[g] == len(set(who[parts == g].tolist())) >= min_holders
    assert sorted(set(np.concatenate(found.of_row).tolist()) - {WITHHELD}) == list(range(len(found.labels)))


def test_assign_counts_sites_not_prototypes() -> None:
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


def test_assign_equally_near_clusters_give_the_lowest_number() -> None:
    angles = np.radians([-45.0, -46.0, 45.0, 46.0, 0.0, 0.0])
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    owners = np.array([0, 1, 0, 1, 2, 2])
    assert assign([rows @ rows.T], [owners], 1).of_row[0].tolist() == [0, 0, 1, 1, 2, 2]
    assert assign([rows @ rows.T], [owners], 2).of_row[0].tolist() == [0, 0, 1, 1, 0, 0]


def test_assign_zero_prototype_joins_a_cluster() -> None:
    rows = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0], [0.0, 0.0]])
    owners = np.array([0, 1, 0, 1, 2])
    for min_holders in (1, 2):
        found = assign([rows @ rows.T], [owners], min_holders)
        assert found.of_row[0].tolist() == [0, 0, 1, 1, 0]
        assert found.sites.tolist() == [2, 2]


@pytest.mark.parametrize("nothing", [0.0, 5e-324, 1e-160])
def test_assign_zero_prototype_makes_no_holder(nothing: float) -> None:
    """Two sites have directions and a third has none: no cluster of three, whatever is joined."""
    rows = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [nothing, 0.0], [0.0, 0.0]])
    owners = np.array([0, 1, 0, 2, 3])
    assert assign([rows @ rows.T], [owners], 3).of_row[0].tolist() == [WITHHELD] * 5
    assert assign([rows @ rows.T], [owners], 2).sites.tolist() == [2]
    local = LocalClusters(rows, np.zeros(5, dtype=np.int64), np.ones(5, dtype=np.int64))
    assert len(local.without_zeros().rows) == 3


@given(st.integers(0, 1000), st.integers(1, 3), st.integers(1, 3))
def test_assign_smallest_clusters_join_until_few_enough(seed: int, min_holders: int, most: int) -> None:
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


def test_most_norm_hiding_leaves_fewer_products_than_prototypes() -> None:
    for rows in range(400):
        number = most_norm_hiding(rows)
        assert number == 1 or number * (number + 1) // 2 < rows
        assert (number + 1) * (number + 2) // 2 >= rows


def test_global_clusters_equal_those_of_all_prototypes_at_once() -> None:
    for seed in SEEDS:
        federation = sites(seed)
        rows, owners = by_class(federation)
        found = assign(grams(rows), owners, 2)
        total = total_of(federation, found, owners)
        clusters = global_clusters(total, found.labels)
        counts = [
            np.concatenate([site.counts[site.labels == k] for site in federation]) for k in range(CLASSES)
        ]
        for g, k in enumerate(found.labels):
            own = found.of_row[k] == g
            np.testing.assert_allclose(clusters.rows[g], rows[k][own].mean(axis=0), rtol=1e-12)
            kept = counts[k][found.of_row[k] != WITHHELD]
            assert clusters.weights[g] == pytest.approx(counts[k][own].sum() / kept.sum(), rel=1e-12)


@given(st.integers(0, 1000), st.booleans())
def test_global_clusters_weights_sum_to_one_in_a_class(seed: int, uniform: bool) -> None:
    federation = sites(seed)
    rows, owners = by_class(federation)
    found = assign(grams(rows), owners, 2)
    clusters = global_clusters(total_of(federation, found, owners), found.labels, uniform=uniform)
    for k in np.unique(clusters.labels):
        own = clusters.weights[clusters.labels == k]
        assert own.sum() == pytest.approx(1.0)
        assert not uniform or own.tolist() == pytest.approx([1 / len(own)] * len(own))
    Clusters.of(clusters.rows, clusters.labels, clusters.weights)


def test_global_clusters_uniform_is_not_the_default() -> None:
    total = Contribution(np.array([[4.0], [10.0]]), np.array([2.0, 1.0]), np.array([3.0, 1.0]))
    labels = np.array([0, 0])
    assert global_clusters(total, labels).rows.tolist() == [[2.0], [10.0]]
    assert global_clusters(total, labels).weights.tolist() == [0.75, 0.25]
    assert global_clusters(total, labels, uniform=True).weights.tolist() == [0.5, 0.5]


def test_global_clusters_uniform_needs_no_counts() -> None:
    total = Contribution(np.array([[4.0]]), np.array([2.0]), np.zeros(1))
    assert global_clusters(total, np.array([0]), uniform=True).weights.tolist() == [1.0]
    with pytest.raises(ValueError, match="samples"):
        global_clusters(total, np.array([0]))


def test_contribution_withheld_prototypes_are_in_no_sum() -> None:
    local = LocalClusters(np.array([[1.0], [2.0], [4.0]]), np.array([0, 0, 1]), np.array([5, 6, 7]))
    share = contribution(local, np.array([WITHHELD, WITHHELD, 0]), 1)
    assert (share.sums.tolist(), share.members.tolist(), share.counts.tolist()) == ([[4.0]], [1.0], [7.0])
    nothing = contribution(local, np.full(3, WITHHELD), 0)
    found = global_clusters(nothing, np.zeros(0, dtype=np.int64))
    assert (found.rows.shape, found.labels.shape, found.weights.shape) == ((0, 1), (0,), (0,))


def test_assign_single_prototypes_as_fpl_has_them() -> None:
    federation = [local_clusters(*samples(i), CLASSES, single=True) for i in range(6)]
    rows, owners = by_class(federation)
    found = assign(grams(rows), owners, 2)
    clusters = global_clusters(total_of(federation, found, owners), found.labels, uniform=True)
    assert isinstance(clusters, GlobalClusters)
    assert [len(each) for each in rows[:2]] == [6, 6]
    assert (found.sites >= 2).all()


def test_fedplcc_module_needs_numpy_alone() -> None:
    code = "import sys, algorithms.fedplcc; print(*sorted({'torch', 'scipy', 'sklearn'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
