"""Local prototypes: means of the clusters of a class's features, and how many of them there may be."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from algorithms.fedplcc import LocalClusters, local_clusters
from tests.algorithms import finch_reference as reference
from tests.algorithms.clustered_sites import CLASSES, DIM, SEEDS, samples
from tests.algorithms.plain_lists import mean


def test_local_prototypes_are_means_of_the_definition_s_clusters() -> None:
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


def test_local_prototypes_weighted_by_their_samples_are_the_class_means() -> None:
    for seed in SEEDS:
        features, labels = samples(seed)
        for literal in (False, True):
            local = local_clusters(features, labels, CLASSES, literal=literal)
            for k in np.unique(labels):
                own = local.labels == k
                weighted = local.counts[own] @ local.rows[own] / local.counts[own].sum()
                np.testing.assert_allclose(weighted, features[labels == k].mean(axis=0), rtol=1e-12)
                assert local.counts[own].sum() == (labels == k).sum()


def test_lengths_count_only_in_the_literal_form() -> None:
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


def test_more_prototypes_than_agreed_become_the_class_mean() -> None:
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


def test_single_prototypes_are_class_means() -> None:
    features, labels = samples(3)
    local = local_clusters(features, labels, CLASSES, single=True)
    assert local.labels.tolist() == np.unique(labels).tolist()
    for k, row in zip(local.labels, local.rows, strict=True):
        np.testing.assert_allclose(row, features[labels == k].mean(axis=0), rtol=1e-12)


def test_zero_features_of_a_class_share_a_prototype() -> None:
    rng = np.random.default_rng(0)
    features = np.concatenate([np.zeros((20, DIM)), rng.random((10, DIM))])
    local = local_clusters(features, np.zeros(30, dtype=np.int64), CLASSES)
    assert (~local.rows.any(axis=1)).sum() == 1
    assert local.counts.tolist()[0] == 20
    assert local.counts.sum() == 30
    assert len(local_clusters(np.zeros((0, DIM)), np.zeros(0, dtype=np.int64), CLASSES).rows) == 0


def test_no_prototype_stands_for_one_sample_of_several() -> None:
    """FINCH links every vector with another one; a class of one sample is the exception that the docstring names."""
    for seed in SEEDS:
        features, labels = samples(seed)
        local = local_clusters(features, labels, CLASSES)
        for k, count in zip(local.labels, local.counts, strict=True):
            assert count >= min(2, (labels == k).sum())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"counts": np.array([1, 0])}, "one sample"),
        ({"labels": np.array([1, 0])}, "ordered"),
        ({"labels": np.array([-1, 0])}, "ordered"),
        ({"labels": np.array([0])}, "do not fit"),
        ({"rows": np.array([[1.0], [np.nan]])}, "finite"),
    ],
)
def test_local_prototypes_that_cannot_be_are_refused(change: dict[str, np.ndarray], message: str) -> None:
    good = LocalClusters(np.array([[1.0], [2.0]]), np.array([0, 1]), np.array([1, 2]))
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(good, **change)


def test_features_that_do_not_fit_are_refused() -> None:
    one = np.array([[1.0]])
    with pytest.raises(ValueError, match="labels must be from"):
        local_clusters(one, np.array([2]), 2)
    with pytest.raises(ValueError, match="do not fit"):
        local_clusters(one, np.array([0, 1]), 2)
    with pytest.raises(ValueError, match="finite"):
        local_clusters(np.array([[np.inf], [1.0]]), np.array([0, 0]), 2)
