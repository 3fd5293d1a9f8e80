"""Global clusters: from what sites add up as from all prototypes at once, and weights that add up."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms.fedplcc import (
    WITHHELD,
    Contribution,
    GlobalClusters,
    LocalClusters,
    assign,
    contribution,
    global_clusters,
    local_clusters,
)
from algorithms.prototypes import Clusters
from tests.algorithms.clustered_sites import CLASSES, SEEDS, by_class, grams, samples, sites, total_of


def test_centres_and_weights_are_those_of_all_prototypes_at_once() -> None:
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
def test_weights_sum_to_one_for_each_class(seed: int, uniform: bool) -> None:
    federation = sites(seed)
    rows, owners = by_class(federation)
    found = assign(grams(rows), owners, 2)
    clusters = global_clusters(total_of(federation, found, owners), found.labels, uniform=uniform)
    for k in np.unique(clusters.labels):
        own = clusters.weights[clusters.labels == k]
        assert own.sum() == pytest.approx(1.0)
        assert not uniform or own.tolist() == pytest.approx([1 / len(own)] * len(own))
    Clusters.of(clusters.rows, clusters.labels, clusters.weights)


def test_uniform_weights_are_not_the_default() -> None:
    total = Contribution(np.array([[4.0], [10.0]]), np.array([2.0, 1.0]), np.array([3.0, 1.0]))
    labels = np.array([0, 0])
    assert global_clusters(total, labels).rows.tolist() == [[2.0], [10.0]]
    assert global_clusters(total, labels).weights.tolist() == [0.75, 0.25]
    assert global_clusters(total, labels, uniform=True).weights.tolist() == [0.5, 0.5]


def test_uniform_weights_need_no_sample_counts() -> None:
    total = Contribution(np.array([[4.0]]), np.array([2.0]), np.zeros(1))
    assert global_clusters(total, np.array([0]), uniform=True).weights.tolist() == [1.0]
    with pytest.raises(ValueError, match="no samples"):
        global_clusters(total, np.array([0]))


def test_withheld_prototypes_are_in_no_sum() -> None:
    local = LocalClusters(np.array([[1.0], [2.0], [4.0]]), np.array([0, 0, 1]), np.array([5, 6, 7]))
    share = contribution(local, np.array([WITHHELD, WITHHELD, 0]), 1)
    assert (share.sums.tolist(), share.members.tolist(), share.counts.tolist()) == ([[4.0]], [1.0], [7.0])
    nothing = contribution(local, np.full(3, WITHHELD), 0)
    found = global_clusters(nothing, np.zeros(0, dtype=np.int64))
    assert (found.rows.shape, found.labels.shape, found.weights.shape) == ((0, 1), (0,), (0,))


def test_one_prototype_for_each_class_and_site_as_fpl_has_it() -> None:
    federation = [local_clusters(*samples(i), CLASSES, single=True) for i in range(6)]
    rows, owners = by_class(federation)
    found = assign(grams(rows), owners, 2)
    clusters = global_clusters(total_of(federation, found, owners), found.labels, uniform=True)
    assert isinstance(clusters, GlobalClusters)
    assert [len(each) for each in rows[:2]] == [6, 6]
    assert (found.sites >= 2).all()


def test_contributions_that_do_not_fit_are_refused() -> None:
    one = np.array([[1.0]])
    owner = np.array([0])
    local = local_clusters(one, owner, 1)
    for wrong in (np.array([1]), np.array([-2])):
        with pytest.raises(ValueError, match="numbered"):
            contribution(local, wrong, 1)
    with pytest.raises(ValueError, match="shape"):
        contribution(local, np.array([0, 0]), 1)
    total = Contribution(one, np.array([1.0]), np.array([1.0]))
    with pytest.raises(ValueError, match="do not fit"):
        global_clusters(total, np.array([0, 0]))
    with pytest.raises(ValueError, match="not be negative"):
        global_clusters(total, np.array([-1]))
    with pytest.raises(ValueError, match="no members"):
        global_clusters(total._replace(members=np.array([0.0])), np.array([0]))


def test_the_coordinator_s_half_needs_numpy_alone() -> None:
    code = "import sys, algorithms.fedplcc; print(*sorted({'torch', 'scipy', 'sklearn'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
