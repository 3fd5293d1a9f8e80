"""Fisher scores against the closed form, finite differences and one sample at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from algorithms.feddbp.fusion import fisher_scores
from tests.algorithms import feddbp_reference as reference

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
def test_a_linear_classifiers_scores_are_the_closed_form(seed: int) -> None:
    features, labels = samples(seed)
    model = linear()
    expected = reference.linear_scores(
        features.tolist(), labels.tolist(), model.weight.tolist(), model.bias.tolist(), CLASSES
    )
    np.testing.assert_allclose(scores(features, labels, model), expected, rtol=1e-9, atol=1e-14)


@given(st.integers(0, 2**32 - 1))
def test_any_classifiers_scores_are_finite_differences(seed: int) -> None:
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
def test_batches_are_one_sample_at_a_time(batch: int) -> None:
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


def test_the_comparison_sees_squares_of_means_and_another_classs_gradient() -> None:
    features, labels = samples(4)
    expected = one_by_one(features, labels, deep())
    assert not torch.allclose(mean_gradients(features, labels, deep()), expected, rtol=1e-2)
    assert not torch.allclose(scores(features, (labels + 1) % CLASSES, deep()), expected, rtol=1e-2)


def test_a_sample_is_judged_by_itself_in_evaluation_mode_only() -> None:
    """Batch normalisation in the classifier mixes a batch while it trains, and then batches matter."""
    features, labels = samples(5)
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(DIM), nn.Linear(DIM, CLASSES)).double()
    model.train()
    mixed = scores(features, labels, model, 12)
    assert not torch.allclose(mixed, scores(features, labels, model, 6), rtol=1e-2)
    model.eval()
    torch.testing.assert_close(scores(features, labels, model, 12), scores(features, labels, model, 6))


def test_a_class_without_samples_has_zeros() -> None:
    features, _ = samples(6)
    found = scores(features, torch.ones(12, dtype=torch.int64), linear())
    assert found.dtype == torch.float64
    assert not found[[0, 2]].any()
    assert found[1].all()


def test_samples_that_are_all_but_certain_keep_their_scores() -> None:
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


def test_the_same_features_give_the_same_bits_and_nothing_is_left_behind() -> None:
    features, labels = samples(7)
    model = deep()
    with torch.no_grad():
        first = scores(features, labels, model)
    assert torch.equal(first, scores(features, labels, model))
    assert all(each.grad is None for each in model.parameters())
    assert not features.requires_grad
