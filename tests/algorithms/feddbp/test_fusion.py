"""FedDBP's personalised prototypes against loops: channels, ties, absent classes, the whole way from sites' sums."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from algorithms.averaging import prototype_means
from algorithms.feddbp.fusion import fuse
from algorithms.gram_matrix import Bool, Float
from tests.algorithms import feddbp_reference as reference


@dataclass(frozen=True)
class Site:
    """Inputs of :func:`fuse` from one site; rows of classes that the site lacks are not numbers."""

    own: Float
    has_own: Bool
    scores: Float
    mean: Float
    has: Bool
    eta: float
    top: int

    def fused(self, *, personal: bool = True) -> tuple[NDArray[np.float64], Bool]:
        return fuse(
            self.own,
            self.has_own,
            self.scores,
            self.mean,
            self.has,
            eta=self.eta,
            top=self.top,
            personal=personal,
        )

    def by_loops(self) -> Float:
        own, scores, mean = (each.tolist() for each in (self.own, self.scores, self.mean))
        has_own, has = self.has_own.tolist(), self.has.tolist()
        return np.array(reference.fused(own, has_own, scores, mean, has, self.eta, self.top))


@st.composite
def sites(draw: st.DrawFn) -> Site:
    """Draw 1 to 4 classes of 1 to 6 channels, whose scores are often equal."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    has_own, has = (rng.random(shape[0]) < 0.7 for _ in range(2))
    own, mean = (np.where(known[:, None], rng.normal(size=shape), np.nan) for known in (has_own, has))
    scores = np.where(has_own[:, None], rng.integers(0, 4, size=shape) / 4.0, np.nan)
    return Site(own, has_own, scores, mean, has, draw(st.floats(0, 1)), draw(st.integers(0, 8)))


@given(sites())
def test_targets_are_those_of_equations_9_and_10(site: Site) -> None:
    rows, present = site.fused()
    assert present.tolist() == site.has.tolist()
    np.testing.assert_allclose(rows, site.by_loops(), rtol=1e-12, atol=0)


def some_site() -> Site:
    """Return three classes that all have and two more: one that the site lacks, one that is withheld."""
    rng = np.random.default_rng(3)
    own, scores, mean = rng.normal(size=(5, 6)), rng.random((5, 6)), rng.normal(size=(5, 6))
    has_own, has = np.array([1, 1, 1, 0, 1], dtype=np.bool_), np.array([1, 1, 1, 1, 0], dtype=np.bool_)
    return Site(own, has_own, scores, mean, has, eta=0.8, top=2)


def test_the_comparison_sees_other_channels_and_weights() -> None:
    """Doubles: the lowest scores, one ranking for all classes, the weights the other way round, no fusion."""
    site = some_site()
    expected = site.by_loops()

    def same(rows: Float) -> bool:
        return np.allclose(rows, expected, rtol=1e-12, atol=0)

    assert same(site.fused()[0])
    assert not same(replace(site, scores=1.0 - site.scores).fused()[0])
    pooled = np.broadcast_to(site.scores.sum(axis=0), site.scores.shape)
    assert not same(replace(site, scores=pooled).fused()[0])
    assert not same(replace(site, eta=1.0 - site.eta).fused()[0])
    assert not same(replace(site, has_own=np.ones_like(site.has_own)).fused()[0])
    assert not same(site.fused(personal=False)[0])


def test_known_answers() -> None:
    """The two channels with the highest scores are three quarters the site's own."""
    rows, present = fuse(
        np.array([[4.0, 4.0, 4.0, 4.0]]),
        np.array([True]),
        np.array([[0.1, 0.9, 0.0, 0.5]]),
        np.array([[0.0, 0.0, 8.0, 8.0]]),
        np.array([True]),
        eta=0.75,
        top=2,
    )
    assert rows.tolist() == [[0.0, 3.0, 8.0, 5.0]]
    assert present.tolist() == [True]


def test_fusion_keeps_the_lower_channel_of_equal_scores() -> None:
    site = replace(some_site(), scores=np.zeros((5, 6)), eta=1.0)
    rows, _ = site.fused()
    np.testing.assert_array_equal(rows[:3, :2], site.own[:3, :2])
    np.testing.assert_array_equal(rows[:3, 2:], site.mean[:3, 2:])


def test_a_class_that_the_site_lacks_is_all_the_mean_and_a_withheld_one_is_nobodys() -> None:
    site = some_site()
    rows, present = site.fused()
    np.testing.assert_array_equal(rows[3], site.mean[3])
    assert not rows[4].any()
    assert present.tolist() == [True, True, True, True, False]


@given(sites())
def test_extremes_are_the_mean_and_the_sites_own(site: Site) -> None:
    mean = np.where(site.has[:, None], site.mean, 0.0)
    np.testing.assert_array_equal(site.fused(personal=False)[0], mean)
    np.testing.assert_array_equal(replace(site, eta=0.0).fused()[0], mean)
    np.testing.assert_array_equal(replace(site, top=0).fused()[0], mean)
    all_own = replace(site, eta=1.0, top=99).fused()[0]
    both = (site.has & site.has_own)[:, None]
    np.testing.assert_array_equal(all_own, np.where(both, site.own, mean))


@given(sites())
def test_arguments_are_left_alone_and_the_same_gives_the_same(site: Site) -> None:
    before = [each.copy() for each in (site.own, site.scores, site.mean, site.has)]
    first, present = site.fused()
    present[:] = False
    np.testing.assert_array_equal(first, site.fused()[0])
    for each, old in zip((site.own, site.scores, site.mean, site.has), before, strict=True):
        np.testing.assert_array_equal(each, old)


@given(st.integers(0, 2**32 - 1), st.integers(1, 3))
def test_from_the_sites_sums_to_each_sites_targets(seed: int, min_holders: int) -> None:
    """Equations 9 and 10 after the mean over holders, for each of five sites."""
    rng = np.random.default_rng(seed)
    stack, holds = rng.normal(size=(5, 3, 4)), rng.random((5, 3)) < 0.6
    scores = rng.random((5, 3, 4))
    mean, has = prototype_means((stack * holds[:, :, None]).sum(axis=0), holds.sum(axis=0), min_holders)
    expected_mean, expected_has = reference.global_prototypes(stack.tolist(), holds.tolist(), min_holders)
    assert has.tolist() == expected_has
    for i in range(5):
        rows, _ = fuse(stack[i], holds[i], scores[i], mean, has, eta=0.9, top=2)
        lists = stack[i].tolist(), holds[i].tolist(), scores[i].tolist(), expected_mean, expected_has
        np.testing.assert_allclose(rows, reference.fused(*lists, 0.9, 2), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"eta": -0.1}, "eta must be between 0 and 1"),
        ({"eta": 1.1}, "eta must be between 0 and 1"),
        ({"eta": float("nan")}, "eta must be between 0 and 1"),
        ({"top": -1}, "top must be at least 0"),
        ({"scores": np.full((5, 6), -1.0)}, "finite and not negative"),
        ({"scores": np.full((5, 6), np.nan)}, "finite and not negative"),
        ({"scores": np.zeros((5, 5))}, "do not fit together"),
        ({"mean": np.zeros((4, 6))}, "do not fit together"),
        ({"own": np.zeros(6)}, "do not fit together"),
        ({"has": np.ones(5)}, "has_own and has"),
        ({"has_own": np.ones(4, dtype=np.bool_)}, "has_own and has"),
    ],
)
def test_fusion_refuses_invalid_arguments(change: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        replace(some_site(), **change).fused()  # type: ignore[arg-type]  # that is the point
