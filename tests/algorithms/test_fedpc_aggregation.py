"""FedPC's means and mixtures against a literal reading of equations 5 to 8, and their invariants."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from algorithms.fedpc import Groups, means_within_groups, mix_groups, similarity_weights
from algorithms.gram_matrix import Bool, Float
from tests.algorithms import fedpc_reference as reference
from tests.algorithms.plain_lists import mean


@dataclass(frozen=True)
class Sites:
    """Prototypes (n, K, d) ≥ 0 with holds (n, K), extractors (n, P), and the group of each site."""

    prototypes: Float
    holds: Bool
    theta: Float
    labels: NDArray[np.int64]
    min_holders: int

    def members(self) -> list[list[int]]:
        return [np.flatnonzero(self.labels == j).tolist() for j in range(int(self.labels.max()) + 1)]

    def groups(self) -> Groups:
        members = self.members()
        held = np.where(self.holds[:, :, None], self.prototypes, 0.0)
        return means_within_groups(
            np.stack([held[group].sum(axis=0) for group in members]),
            np.stack([self.holds[group].sum(axis=0) for group in members]),
            np.stack([self.theta[group].sum(axis=0) for group in members]),
            np.array([len(group) for group in members]),
            self.min_holders,
        )


@st.composite
def federations(draw: st.DrawFn) -> Sites:
    """Draw 1 to 4 groups of at least min_holders sites; classes absent, withheld, and sometimes zero vectors."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    min_holders = draw(st.integers(1, 3))
    sizes = draw(st.lists(st.integers(min_holders, 5), min_size=1, max_size=4))
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    classes, dim = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    prototypes = np.maximum(rng.normal(size=(len(labels), classes, dim)), 0.0)
    holds = rng.random((len(labels), classes)) < draw(st.sampled_from([0.3, 0.7, 1.0]))
    return Sites(prototypes, holds, rng.normal(size=(len(labels), 3)), labels, min_holders)


def expected_within(sites: Sites) -> Groups:
    prototypes, holds = sites.prototypes.tolist(), sites.holds.tolist()
    means = [reference.intra(prototypes, holds, group, sites.min_holders) for group in sites.members()]
    theta = [mean([sites.theta[i].tolist() for i in group]) for group in sites.members()]
    return Groups(np.array([rows for rows, _ in means]), np.array([has for _, has in means]), np.array(theta))


def expected_between(groups: Groups, *, literal: bool = False) -> Groups:
    rows, has = groups.rows.tolist(), groups.has.tolist()
    vectors = [reference.concatenated(row, each) for row, each in zip(rows, has, strict=True)]
    weights = reference.rho(vectors)
    mixed, known = reference.inter_prototypes(rows, has, weights, literal=literal)
    theta = reference.inter_theta(groups.theta.tolist(), weights)
    return Groups(np.array(mixed), np.array(known), np.array(theta))


def same(found: Groups, expected: Groups) -> bool:
    return (
        np.array_equal(found.has, expected.has)
        and np.allclose(found.rows, expected.rows, rtol=1e-9, atol=1e-12)
        and np.allclose(found.theta, expected.theta, rtol=1e-9, atol=1e-12)
    )


@given(federations())
def test_means_within_groups_are_those_of_the_reference(sites: Sites) -> None:
    assert same(sites.groups(), expected_within(sites))


@pytest.mark.parametrize("literal", [False, True])
@given(sites=federations())
def test_mix_groups_equals_equations_5_to_8(literal: bool, sites: Sites) -> None:
    groups = sites.groups()
    assert same(mix_groups(groups, literal=literal), expected_between(groups, literal=literal))


def some_sites() -> Sites:
    """Return nine sites in three groups; group 0 holds classes 0 and 1, group 1 all three, group 2 the last two."""
    rng = np.random.default_rng(4)
    labels = np.repeat(np.arange(3), 3)
    holds = np.array([[True, True, False], [True, True, True], [False, True, True]])[labels]
    return Sites(rng.random((9, 3, 4)) + 0.1, holds, rng.normal(size=(9, 5)), labels, 3)


def test_mix_groups_check_sees_every_departure() -> None:
    """Doubles that take zeros for absent classes, another ρ for θ, cosines per class, or no weights, all fail."""
    groups = some_sites().groups()
    right, expected = mix_groups(groups), expected_between(groups)
    assert same(right, expected)
    assert not same(mix_groups(groups, literal=True), expected)
    assert not same(replace(right, theta=groups.theta.mean(axis=0) + 0.0 * groups.theta), expected)
    assert not same(replace(right, has=groups.has), expected)
    per_class = np.stack(
        [similarity_weights(groups.rows[:, k : k + 1]) @ groups.rows[:, k] for k in range(3)], axis=1
    )
    assert not same(replace(right, rows=per_class), expected)


def test_mix_groups_known_answers() -> None:
    """Unit vectors at 60°: cos = 1/2, so ρ = (2/3, 1/3). The second class is the second group's alone."""
    rows = np.array([[[1.0, 0.0], [0.0, 0.0]], [[0.5, 0.0], [0.0, 3**0.5 / 2]]])
    has = np.array([[True, False], [True, True]])
    mixed = mix_groups(Groups(rows, has, np.array([[3.0], [6.0]])))
    np.testing.assert_allclose(similarity_weights(rows), [[2 / 3, 1 / 3], [1 / 3, 2 / 3]], atol=1e-15)
    np.testing.assert_allclose(mixed.theta, [[4.0], [5.0]], atol=1e-14)
    np.testing.assert_allclose(mixed.rows[:, 0], [[5 / 6, 0], [2 / 3, 0]], atol=1e-15)
    np.testing.assert_allclose(mixed.rows[:, 1], [[0, 3**0.5 / 2]] * 2, atol=1e-15)
    assert mixed.has.all()
    literal = mix_groups(Groups(rows, has, np.array([[3.0], [6.0]])), literal=True)
    np.testing.assert_allclose(literal.rows[0, 1], [0, 3**0.5 / 6], atol=1e-15)


def test_mix_groups_class_of_groups_at_cosine_0_is_left_out() -> None:
    """Groups without a class in common are at cosine 0, so neither gets the other's; the third class is nobody's."""
    rows = np.array([[[1.0], [0.0], [0.0]], [[0.0], [2.0], [0.0]]])
    has = np.array([[True, False, False], [False, True, False]])
    mixed = mix_groups(Groups(rows, has, np.zeros((2, 0))))
    assert mixed.has.tolist() == has.tolist()
    assert mixed.rows.tolist() == rows.tolist()


@given(federations())
def test_similarity_weights_rows_are_convex(sites: Sites) -> None:
    weights = similarity_weights(sites.groups().rows)
    assert (weights >= 0.0).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-12)
    own = np.diagonal(weights)
    assert (weights <= own[:, None] * (1 + 1e-12)).all(), "no group is more alike than the group itself"


def test_similarity_weights_group_without_prototypes_weighs_itself() -> None:
    rows = np.zeros((3, 2, 2))
    rows[1, 0] = [1.0, 2.0]
    rows[2, 0] = [2.0, 1.0]
    weights = similarity_weights(rows)
    np.testing.assert_array_equal(weights[0], [1.0, 0.0, 0.0])
    np.testing.assert_array_equal(weights[:, 0], [1.0, 0.0, 0.0])
    theta = np.array([[7.0], [1.0], [2.0]])
    assert mix_groups(Groups(rows, np.asarray(rows.any(axis=2)), theta)).theta[0] == 7.0


def test_similarity_weights_negative_cosine_counts_as_zero() -> None:
    rows = np.array([[[1.0, 0.0]], [[-1.0, 1e-9]], [[0.0, 1.0]]])
    weights = similarity_weights(rows)
    assert weights[0, 1] == weights[1, 0] == 0.0
    assert (weights >= 0.0).all()


@pytest.mark.parametrize("literal", [False, True])
@given(sites=federations())
def test_mix_groups_single_group_keeps_its_bits(literal: bool, sites: Sites) -> None:
    alone = replace(sites, labels=np.zeros_like(sites.labels)).groups()
    mixed = mix_groups(alone, literal=literal)
    np.testing.assert_array_equal(mixed.rows, alone.rows)
    np.testing.assert_array_equal(mixed.has, alone.has)
    np.testing.assert_array_equal(mixed.theta, alone.theta)


@given(federations())
def test_mix_groups_rows_stay_between_their_inputs(sites: Sites) -> None:
    groups = sites.groups()
    mixed = mix_groups(groups)
    slack = 1e-9
    assert (mixed.theta <= groups.theta.max(axis=0) + slack).all()
    assert (mixed.theta >= groups.theta.min(axis=0) - slack).all()
    for k in range(groups.has.shape[1]):
        had = groups.rows[groups.has[:, k], k]
        for row in mixed.rows[mixed.has[:, k], k]:
            assert (row <= had.max(axis=0) + slack).all()
            assert (row >= had.min(axis=0) - slack).all()
    assert not mixed.rows[~mixed.has].any()
    assert (mixed.has >= groups.has).all()


def test_mix_groups_printed_zeros_leave_their_inputs_range() -> None:
    groups = some_sites().groups()
    had = groups.rows[groups.has[:, 0], 0]
    literal = mix_groups(groups, literal=True)
    assert (literal.rows[2, 0] < had.min(axis=0)).any()


@given(federations(), st.integers(0, 2**32 - 1))
def test_mix_groups_order_of_groups_does_not_matter(sites: Sites, seed: int) -> None:
    groups = sites.groups()
    order = np.random.default_rng(seed).permutation(len(groups.rows))
    shuffled = mix_groups(Groups(groups.rows[order], groups.has[order], groups.theta[order]))
    mixed = mix_groups(groups)
    assert same(shuffled, Groups(mixed.rows[order], mixed.has[order], mixed.theta[order]))


@given(federations())
def test_means_within_groups_rows_have_min_holders(sites: Sites) -> None:
    """A class below the minimum is withheld even when its sum was handed in."""
    groups = sites.groups()
    holders = np.stack([sites.holds[group].sum(axis=0) for group in sites.members()])
    assert (holders[groups.has] >= sites.min_holders).all()
    assert not groups.rows[~groups.has].any()


def test_means_within_groups_withheld_sum_is_never_read() -> None:
    sums = np.full((1, 2, 2), np.nan)
    sums[0, 0] = 6.0
    groups = means_within_groups(sums, np.array([[3, 2]]), np.zeros((1, 1)), np.array([3]), 3)
    assert groups.has.tolist() == [[True, False]]
    assert groups.rows.tolist() == [[[2.0, 2.0], [0.0, 0.0]]]
