"""FedDBP's personalised prototypes and Fisher scores against loops, closed forms and differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from algorithms.averaging import prototype_means
from algorithms.feddbp import fisher_scores, fuse
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
def test_fuse_equals_equations_9_and_10(site: Site) -> None:
    rows, present = site.fused()
    assert present.tolist() == site.has.tolist()
    np.testing.assert_allclose(rows, site.by_loops(), rtol=1e-12, atol=0)


def some_site() -> Site:
    """Return three classes that all have and two more: one that the site lacks, one that is withheld."""
    rng = np.random.default_rng(3)
    own, scores, mean = rng.normal(size=(5, 6)), rng.random((5, 6)), rng.normal(size=(5, 6))
    has_own, has = np.array([1, 1, 1, 0, 1], dtype=np.bool_), np.array([1, 1, 1, 1, 0], dtype=np.bool_)
    return Site(own, has_own, scores, mean, has, eta=0.8, top=2)


def test_fuse_check_sees_other_channels_and_weights() -> None:
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


def test_fuse_known_answers() -> None:
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


def test_fuse_class_that_the_site_lacks_is_the_mean() -> None:
    site = some_site()
    rows, present = site.fused()
    np.testing.assert_array_equal(rows[3], site.mean[3])
    assert not rows[4].any()
    assert present.tolist() == [True, True, True, True, False]


@given(sites())
def test_fuse_extreme_eta_and_top_give_mean_or_own(site: Site) -> None:
    mean = np.where(site.has[:, None], site.mean, 0.0)
    np.testing.assert_array_equal(site.fused(personal=False)[0], mean)
    np.testing.assert_array_equal(replace(site, eta=0.0).fused()[0], mean)
    np.testing.assert_array_equal(replace(site, top=0).fused()[0], mean)
    all_own = replace(site, eta=1.0, top=99).fused()[0]
    both = (site.has & site.has_own)[:, None]
    np.testing.assert_array_equal(all_own, np.where(both, site.own, mean))


@given(sites())
def test_fuse_changes_no_argument_and_repeats_its_bits(site: Site) -> None:
    before = [each.copy() for each in (site.own, site.scores, site.mean, site.has)]
    first, present = site.fused()
    present[:] = False
    np.testing.assert_array_equal(first, site.fused()[0])
    for each, old in zip((site.own, site.scores, site.mean, site.has), before, strict=True):
        np.testing.assert_array_equal(each, old)


@given(st.integers(0, 2**32 - 1), st.integers(1, 3))
def test_fuse_from_sums_gives_every_sites_targets(seed: int, min_holders: int) -> None:
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


CLASSES, DIM = 3, 4


def samples(seed: int, count: int = 12) -> tuple[Tensor, Tensor]:
    """Draw float64 features and labels; the last class may have none."""
    rng = np.random.default_rng(seed)
    return torch.tensor(rng.normal(size=(count, DIM))), torch.tensor(rng.integers(0, CLASSES, size=count))


def linear() -> nn.Linear:
    torch.manual_seed(2)
    return nn.Linear(DIM, CLASSES).double()


def deep() -> nn.Sequential:
    """Return a smooth classifier of two layers with dropout, which is inactive in ``eval()`` mode."""
    torch.manual_seed(3)
    layers = [nn.Linear(DIM, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, CLASSES)]
    return nn.Sequential(*layers).double().eval()


def scores(
    features: Tensor, labels: Tensor, classifier: Callable[[Tensor], Tensor], batch: int = 5
) -> Tensor:
    starts = range(0, len(labels), batch)
    pairs = ((features[at : at + batch], labels[at : at + batch]) for at in starts)
    return fisher_scores(pairs, classifier, CLASSES, DIM)


@given(st.integers(0, 2**32 - 1))
def test_fisher_scores_linear_classifier_has_the_closed_form(seed: int) -> None:
    features, labels = samples(seed)
    model = linear()
    expected = reference.linear_scores(
        features.tolist(), labels.tolist(), model.weight.tolist(), model.bias.tolist(), CLASSES
    )
    np.testing.assert_allclose(scores(features, labels, model), expected, rtol=1e-9, atol=1e-14)


@given(st.integers(0, 2**32 - 1))
def test_fisher_scores_any_classifier_has_finite_differences(seed: int) -> None:
    features, labels = samples(seed, 6)
    model = deep()

    def logits_of(z: list[float]) -> list[float]:
        with torch.no_grad():
            return [float(value) for value in model(torch.tensor([z], dtype=torch.float64))[0]]

    expected = reference.scores_by_differences(
        features.tolist(), labels.tolist(), logits_of, CLASSES, step=1e-5
    )
    np.testing.assert_allclose(scores(features, labels, model), expected, rtol=1e-5, atol=1e-9)


def one_by_one(features: Tensor, labels: Tensor, classifier: nn.Module) -> Tensor:
    sums, counts = torch.zeros(CLASSES, DIM, dtype=torch.float64), torch.zeros(CLASSES, 1)
    for z, y in zip(features, labels, strict=True):
        leaf = z.clone().requires_grad_()
        torch.autograd.backward(functional.log_softmax(classifier(leaf[None])[0], dim=0)[y])
        assert leaf.grad is not None
        sums[y] += leaf.grad**2
        counts[y] += 1
    return sums / counts.clamp(min=1)


@pytest.mark.parametrize("batch", [1, 5, 12])
def test_fisher_scores_batches_equal_single_samples(batch: int) -> None:
    features, labels = samples(4)
    torch.testing.assert_close(scores(features, labels, deep(), batch), one_by_one(features, labels, deep()))


def mean_gradients(features: Tensor, labels: Tensor, classifier: nn.Module) -> Tensor:
    """Return the square of the class's mean gradient: a wrong double for the mean of squares."""
    rows = []
    for c in range(CLASSES):
        leaf = features.clone().requires_grad_()
        total = functional.log_softmax(classifier(leaf), dim=1)[labels == c, c].sum()
        (gradient,) = torch.autograd.grad(total, leaf)
        rows.append((gradient[labels == c].mean(dim=0)) ** 2)
    return torch.stack(rows)


def test_fisher_scores_check_sees_squares_of_means() -> None:
    features, labels = samples(4)
    expected = one_by_one(features, labels, deep())
    assert not torch.allclose(mean_gradients(features, labels, deep()), expected, rtol=1e-2)
    assert not torch.allclose(scores(features, (labels + 1) % CLASSES, deep()), expected, rtol=1e-2)


def test_fisher_scores_training_mode_mixes_samples() -> None:
    """Batch normalisation in the classifier mixes a batch while it trains, and then batches matter."""
    features, labels = samples(5)
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(DIM), nn.Linear(DIM, CLASSES)).double()
    model.train()
    mixed = scores(features, labels, model, 12)
    assert not torch.allclose(mixed, scores(features, labels, model, 6), rtol=1e-2)
    model.eval()
    torch.testing.assert_close(scores(features, labels, model, 12), scores(features, labels, model, 6))


def test_fisher_scores_class_without_samples_has_zeros() -> None:
    features, _ = samples(6)
    found = scores(features, torch.ones(12, dtype=torch.int64), linear())
    assert found.dtype == torch.float64
    assert not found[[0, 2]].any()
    assert found[1].all()


def test_fisher_scores_nearly_certain_samples_keep_theirs() -> None:
    """The double computes 1 − p in float32, where it is 0, and so loses the own class's part."""
    model = nn.Linear(DIM, CLASSES)
    weight = 2.0 * torch.eye(CLASSES, DIM) + torch.eye(CLASSES, DIM).roll(1, dims=1)
    model.load_state_dict({"weight": weight, "bias": torch.zeros(CLASSES)})
    features = 8.0 * model.weight.detach()
    labels = torch.arange(CLASSES)
    expected = np.array(
        reference.linear_scores(
            features.tolist(), labels.tolist(), model.weight.tolist(), model.bias.tolist(), CLASSES
        )
    )
    certain = functional.softmax(model(features), dim=1).max(dim=1).values == 1.0
    assert certain.any(), "the case must be one"
    np.testing.assert_allclose(scores(features, labels, model), expected, rtol=1e-3, atol=1e-30)
    single = one_by_one(features, labels, model).numpy()
    assert not np.allclose(single[certain], expected[certain], rtol=0.1, atol=1e-30)


def test_fisher_scores_repeat_their_bits_and_leave_no_gradient() -> None:
    features, labels = samples(7)
    model = deep()
    with torch.no_grad():
        first = scores(features, labels, model)
    assert torch.equal(first, scores(features, labels, model))
    assert all(each.grad is None for each in model.parameters())
    assert not features.requires_grad
