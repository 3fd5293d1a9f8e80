"""FedPC's groups against scikit-learn on the vectors themselves, exhaustive search, and data that degenerate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score, silhouette_score

from algorithms.fedpc import cluster, merge_small, silhouette
from algorithms.gram_matrix import Float, principal_scores
from algorithms.kmeans import in_order_of_appearance, kmeans
from tests.algorithms import fedpc_reference as reference
from tests.support.marks import full_but

each_seeds = pytest.mark.parametrize(
    "seeds", [range(6), pytest.param(range(6, 60), marks=pytest.mark.full)], ids=["few", "many"]
)


def gram_of(vectors: Float) -> Float:
    return np.asarray(vectors @ vectors.T)


def federation(seed: int) -> tuple[Float, int]:
    """Return vectors [K·d] of 8 to 40 sites around 2 to 5 centres, some classes absent, and the number of centres.

    Like prototypes: not negative, and far from the origin compared with their spread.
    """
    rng = np.random.default_rng(seed)
    groups = int(rng.integers(2, 6))
    n = int(rng.integers(4 * groups, 41))
    classes, dim = int(rng.integers(2, 6)), int(rng.integers(8, 33))
    centres = rng.random((groups, classes, dim)) + (rng.random((groups, classes)) < 0.5)[:, :, None]
    belongs = rng.permutation(np.arange(n) % groups)
    vectors = np.maximum(centres[belongs] + rng.normal(scale=0.05, size=(n, classes, dim)), 0.0)
    return vectors.reshape(n, classes * dim), groups


@each_seeds
def test_principal_scores_are_those_of_pca(seeds: range) -> None:
    for seed in seeds:
        vectors, _ = federation(seed)
        dimension = min(len(vectors) - 1, 10)
        expected = PCA(dimension, svd_solver="full").fit_transform(vectors)
        scores = principal_scores(gram_of(vectors), dimension)
        signs = np.sign(np.einsum("nj,nj->j", scores, expected))
        np.testing.assert_allclose(scores * signs, expected, atol=1e-9)


def test_principal_scores_check_sees_a_missing_centring() -> None:
    vectors, _ = federation(0)
    values, directions = np.linalg.eigh(gram_of(vectors))
    weakened = (directions * np.sqrt(np.maximum(values, 0.0)))[:, ::-1][:, :5]
    expected = PCA(5, svd_solver="full").fit_transform(vectors)
    assert np.abs(np.abs(weakened) - np.abs(expected)).max() > 0.1


@each_seeds
def test_cluster_equals_scikit_learn_on_the_vectors(seeds: range) -> None:
    for seed in seeds:
        vectors, groups = federation(seed)
        scores = PCA(min(len(vectors) - 1, 10), svd_solver="full").fit_transform(vectors)
        expected = KMeans(groups, n_init=20, random_state=0).fit(scores)
        found = cluster(gram_of(vectors), min_holders=1, groups=groups, seed=1)
        assert adjusted_rand_score(expected.labels_, found) == 1.0, seed
        assert found.dtype == np.int64


@pytest.mark.full
@each_seeds
def test_cluster_number_of_groups_is_scikit_learns(seeds: range) -> None:
    for seed in seeds[:14]:
        vectors, _ = federation(seed)
        scores = PCA(min(len(vectors) - 1, 10), svd_solver="full").fit_transform(vectors)
        found = cluster(gram_of(vectors), min_holders=2, groups=None, seed=1)
        candidates = {
            count: KMeans(count, n_init=20, random_state=0).fit_predict(scores)
            for count in range(2, min(10, len(vectors) // 2) + 1)
        }
        best = max(candidates, key=lambda count: silhouette_score(scores, candidates[count]))
        expected = reference.merged(scores.tolist(), candidates[best].tolist(), 2)
        assert found.tolist() == expected, seed


@each_seeds
def test_kmeans_inertia_is_at_most_scikit_learns(seeds: range) -> None:
    """Many local optima: here only the inertia can be compared, and it must not be the worse one."""
    for seed in seeds:
        rng = np.random.default_rng(seed)
        points = rng.normal(size=(int(rng.integers(6, 40)), int(rng.integers(2, 11))))
        clusters = int(rng.integers(2, min(10, len(points) // 2) + 1))
        found = kmeans(points, clusters, seed=seed)
        fitted = KMeans(clusters, n_init=10, random_state=0).fit(points)
        assert found.inertia <= fitted.inertia_ * (1 + 1e-9), seed
        assert found.inertia == pytest.approx(reference.inertia(points.tolist(), found.labels.tolist()))
        assert found.clusters == clusters == len(set(found.labels.tolist()))


@pytest.mark.parametrize("clusters", [2, 3, 4])
def test_kmeans_inertia_is_the_least_of_all_partitions(clusters: int) -> None:
    for seed in range(5):
        points = np.random.default_rng(seed).normal(size=(7, 2))
        least = reference.least_inertia(points.tolist(), clusters)
        assert kmeans(points, clusters, seed=0).inertia == pytest.approx(least, rel=1e-9)


@each_seeds
def test_silhouette_is_scikit_learns(seeds: range) -> None:
    for seed in seeds:
        rng = np.random.default_rng(seed)
        points, labels = rng.normal(size=(20, 3)), in_order_of_appearance(rng.integers(0, 5, size=20))
        assert silhouette(points, labels) == pytest.approx(silhouette_score(points, labels), abs=1e-12)


def test_silhouette_of_points_alone_and_of_equal_points_is_zero() -> None:
    labels = np.array([0, 0, 1])
    points = np.array([[0.0], [1.0], [9.0]])
    assert silhouette(points, labels) == pytest.approx((8 / 9 + 7 / 8 + 0.0) / 3)
    assert silhouette(np.zeros((3, 2)), labels) == 0.0


def test_cluster_near_duplicates_need_float64() -> None:
    """Two groups 2.2e-5 apart at norm 1: float64 finds them; rounded to float32 they are no Gram matrix at all."""
    rng = np.random.default_rng(3)
    base = np.full(512, 512**-0.5)
    step = rng.normal(size=512)
    step *= 2.2e-5 / np.linalg.norm(step)
    belongs = np.array([0, 1, 0, 1, 1, 0, 1, 0])
    vectors = base + belongs[:, None] * step + rng.normal(scale=1e-8, size=(8, 512))
    found = cluster(gram_of(vectors), min_holders=3, groups=None, seed=0)
    assert found.tolist() == belongs.tolist()
    narrow = gram_of(vectors.astype(np.float32)).astype(np.float64)
    with pytest.raises(ValueError, match="Gram"):
        cluster(narrow, min_holders=3, groups=None, seed=0)


def test_principal_scores_components_of_rounding_are_zero() -> None:
    """Vectors in a plane far from the origin: two components, and exact zeros where rounding would leave 1e-7."""
    rng = np.random.default_rng(0)
    vectors = 1.0 + rng.normal(size=(12, 2)) @ rng.normal(size=(2, 400))
    scores = principal_scores(gram_of(vectors), 6)
    assert np.ptp(scores[:, :2], axis=0).min() > 1.0
    assert not scores[:, 2:].any()


@pytest.mark.parametrize("groups", [None, 3])
def test_cluster_vectors_equal_within_rounding_form_one_group(groups: int | None) -> None:
    rng = np.random.default_rng(0)
    vectors = np.tile(rng.random(300), (9, 1)) * (1 + 1e-15 * rng.normal(size=(9, 1)))
    found = cluster(gram_of(vectors), min_holders=2, groups=groups, seed=0)
    assert not found.any()


def test_cluster_makes_no_more_groups_than_different_vectors() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.random((2, 300))[[0, 1, 0, 1, 1, 0]]
    for groups in (2, 3, 6, 7, None):
        found = cluster(gram_of(vectors), min_holders=1, groups=groups, seed=0)
        assert found.tolist() == [0, 1, 0, 1, 1, 0]


@pytest.mark.parametrize("vectors", [np.zeros((6, 4)), np.ones((6, 4)), np.ones((1, 4)), np.zeros((1, 4))])
@pytest.mark.parametrize("groups", [None, 1, 2])
def test_cluster_equal_vectors_are_one_group(vectors: Float, groups: int | None) -> None:
    found = cluster(gram_of(vectors), min_holders=1, groups=groups, seed=0)
    assert found.tolist() == [0] * len(vectors)


@pytest.mark.parametrize("groups", [None, 2, 5])
def test_cluster_too_few_sites_for_two_groups_form_one(groups: int | None) -> None:
    vectors = np.random.default_rng(0).random((5, 9))
    assert not cluster(gram_of(vectors), min_holders=3, groups=groups, seed=0).any()
    vectors = np.repeat(np.eye(2), 3, axis=0)
    enough = cluster(gram_of(vectors), min_holders=3, groups=groups, seed=0)
    assert enough.tolist() == [0, 0, 0, 1, 1, 1]


def test_cluster_one_group_is_one_group() -> None:
    vectors, _ = federation(0)
    assert not cluster(gram_of(vectors), min_holders=1, groups=1, seed=0).any()


def bad_grams() -> list[NDArray[Any]]:
    good = gram_of(np.random.default_rng(0).random((6, 9)))
    broken = {}
    for value in (np.nan, np.inf):
        broken[value] = good.copy()
        broken[value][1, 2] = broken[value][2, 1] = value
    lopsided = good.copy()
    lopsided[1, 2] += 1e-6
    return [
        broken[np.nan],
        broken[np.inf],
        good - 1e-6 * np.eye(6) - np.linalg.eigvalsh(good).min() * np.eye(6),
        -good,
        np.ones((6, 6)) - np.eye(6),
        lopsided,
        good[:5],
        good[None],
        np.zeros((0, 0)),
        good.astype(np.float32),
    ]


@pytest.mark.parametrize("gram", bad_grams())
@pytest.mark.parametrize(("min_holders", "groups"), [(2, None), (2, 1), (9, None)])
def test_cluster_matrix_that_is_no_gram_matrix_is_refused(
    gram: NDArray[Any], min_holders: int, groups: int | None
) -> None:
    with pytest.raises(ValueError, match="Gram"):
        cluster(gram, min_holders=min_holders, groups=groups, seed=0)


def test_cluster_rounded_gram_matrix_is_accepted() -> None:
    """Three vectors in a plane and their copies: eigenvalues of exactly 0, which come out as ±1e-15."""
    for seed in range(20):
        vectors = np.random.default_rng(seed).random((3, 2))[[0, 1, 2, 0, 1, 2, 0, 1, 2]]
        noisy = gram_of(vectors) * (1 + 1e-15 * np.random.default_rng(seed).normal(size=(9, 9)))
        found = cluster(noisy, min_holders=3, groups=3, seed=0)
        assert found.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2]


def test_cluster_uses_every_component() -> None:
    """Three columns of two groups each: the first component alone is across the columns, and shows only them."""
    corners = np.array([[x, y] for x in (-9.0, 0.0, 9.0) for y in (0.0, 4.0)])
    vectors = np.repeat(corners, 3, axis=0) + np.random.default_rng(0).normal(scale=0.2, size=(18, 2))
    found = cluster(gram_of(vectors), min_holders=3, groups=None, seed=0)
    assert found.tolist() == np.repeat(np.arange(6), 3).tolist()


def test_cluster_tries_no_more_groups_than_can_be_large_enough() -> None:
    """Four pairs at 2, 3.5, 0 and 5.5: four groups have the best silhouette, and merging would make them one."""
    vectors = np.repeat([2.0, 3.5, 0.0, 5.5], 2)[:, None]
    found = cluster(gram_of(vectors), min_holders=3, groups=None, seed=0)
    assert found.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    by_four = cluster(gram_of(vectors), min_holders=3, groups=4, seed=0)
    assert not by_four.any()


def merging_points() -> tuple[Float, NDArray[np.int64]]:
    """Return groups of 3, 1, 2 and 4 on a line, at 0, 1.9, 4 and 9."""
    points = np.array([[0.0], [1.9], [4.0], [0.1], [9.0], [9.1], [-0.1], [4.1], [8.9], [9.0]])
    return points, np.array([0, 1, 2, 0, 3, 3, 0, 2, 3, 3])


def test_merge_small_joins_the_nearest_group() -> None:
    points, labels = merging_points()
    assert merge_small(points, labels, 1).tolist() == labels.tolist()
    assert merge_small(points, labels, 2).tolist() == [0, 0, 1, 0, 2, 2, 0, 1, 2, 2]
    assert merge_small(points, labels, 3).tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 1, 1]
    assert not merge_small(points, labels, 5).any()
    assert not merge_small(points, labels, 11).any()


@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_merge_small_equals_the_reference(seed: int, min_holders: int) -> None:
    rng = np.random.default_rng(seed)
    points, labels = rng.normal(size=(12, 2)), rng.integers(0, 6, size=12)
    assert merge_small(points, labels, min_holders).tolist() == reference.merged(
        points.tolist(), labels.tolist(), min_holders
    )


def sizes_hold(found: NDArray[np.int64], min_holders: int) -> bool:
    sizes = np.bincount(found)
    return len(sizes) == 1 or int(sizes.min()) >= min_holders


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(2, 16), st.integers(1, 4), st.sampled_from([None, 2, 3, 5]))
def test_cluster_every_group_has_min_holders(seed: int, n: int, min_holders: int, groups: int | None) -> None:
    vectors = np.random.default_rng(seed).exponential(size=(n, 3)) ** 3
    found = cluster(gram_of(vectors), min_holders=min_holders, groups=groups, seed=0)
    assert sizes_hold(found, min_holders)
    assert found.tolist() == in_order_of_appearance(found).tolist()
    assert found.max() < max(2, groups or min(10, n // min_holders))


def test_cluster_without_merging_a_group_is_too_small() -> None:
    """An outlier: K-means alone leaves it by itself, and the property above would fail."""
    vectors = np.vstack([np.random.default_rng(0).random((6, 3)), [[50.0, 0.0, 0.0]]])
    scores = principal_scores(gram_of(vectors), 3)
    assert not sizes_hold(kmeans(scores, 2, seed=0).labels, 3)
    assert sizes_hold(cluster(gram_of(vectors), min_holders=3, groups=2, seed=0), 3)


@pytest.mark.parametrize("change", full_but(["order", "rotation"], "rotation"))
def test_cluster_order_and_rotation_change_nothing(change: str) -> None:
    for seed in range(4):
        vectors, _ = federation(seed)
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(vectors)) if change == "order" else np.arange(len(vectors))
        turn = np.linalg.qr(rng.normal(size=(vectors.shape[1],) * 2))[0]
        changed = vectors[order] @ turn if change == "rotation" else vectors[order]
        before = cluster(gram_of(vectors), min_holders=2, groups=None, seed=5)
        after = cluster(gram_of(changed), min_holders=2, groups=None, seed=5)
        assert after.tolist() == in_order_of_appearance(before[order]).tolist()


def test_kmeans_is_deterministic_for_a_seed() -> None:
    points = np.random.default_rng(0).normal(size=(30, 4))
    found = [kmeans(points, 6, seed=seed) for seed in (7, 7)]
    assert found[0].labels.tolist() == found[1].labels.tolist()


@pytest.mark.parametrize("shuffle", [lambda x: x, lambda x: x[::-1]])
def test_kmeans_equally_good_partitions_give_the_first(shuffle: Callable[[Float], Float]) -> None:
    """A square's corners split either way: whatever the seed, the first in order of labels is taken."""
    corners = shuffle(np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]))
    for seed in range(20):
        assert kmeans(corners, 2, seed=seed).labels.tolist() == [0, 0, 1, 1]
