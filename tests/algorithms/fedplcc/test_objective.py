"""FedPLCC's loss against loops, value and gradient; which clusters its correction takes; batches stacked by vmap."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from algorithms.contrastive_loss import largest, similarities
from algorithms.fedplcc.objective import Objective
from algorithms.model_outputs import Outputs
from algorithms.prototypes import Clusters
from tests.algorithms import finch_reference as reference
from tests.algorithms.cluster_cases import (
    Case,
    Reference,
    Vector,
    case,
    cases,
    check_extremes,
    check_gradient,
    check_mixed_batch,
    check_stacked,
    check_values,
    check_without_clusters,
    gradient,
)

DEFAULT = Objective(2.0, 20.0)
VARIANTS = [
    DEFAULT,
    Objective(2.0, 0.0),
    Objective(0.0, 20.0),
    Objective(2.0, 20.0, share=1.0),
    Objective(2.0, 20.0, weights_one=True),
    Objective(1.0, 3.0, alpha=0.25, temperature=0.55, share=0.3),
    Objective(1.0, 3.0, alpha=1.0),
]


def loop(loss: Objective) -> Reference:
    """Return λ1·L_contra + λ2·L_corr of one sample."""

    def value(z: Vector, y: int, rows: list[Vector], labels: list[int], weights: list[float]) -> float:
        if loss.weights_one:
            weights = [1.0] * len(weights)
        contra = reference.contrast(z, y, rows, labels, weights, loss.alpha, loss.temperature)
        corr = reference.correction(z, y, rows, labels, weights, loss.alpha, loss.share)
        return loss.contrast_weight * contra + loss.correction_weight * corr

    return value


@given(batch=cases(), loss=st.sampled_from(VARIANTS))
def test_values_are_those_of_the_formulas(batch: Case, loss: Objective) -> None:
    check_values(batch, loss, loop(loss))


@pytest.mark.parametrize("loss", VARIANTS)
def test_gradients_are_those_of_the_formulas(loss: Objective) -> None:
    for seed in range(5):
        check_gradient(case(seed), loss, loop(loss))


@pytest.mark.parametrize("loss", [DEFAULT, Objective(2.0, 20.0, weights_one=True)])
def test_sites_batches_can_be_stacked(loss: Objective) -> None:
    check_stacked(loss)


def test_without_clusters_there_is_cross_entropy_alone() -> None:
    check_without_clusters(DEFAULT)


def test_a_class_without_clusters_contributes_nothing() -> None:
    check_mixed_batch(DEFAULT)


@pytest.mark.parametrize("alpha", [0.25, 0.5])
def test_no_cosine_makes_a_value_or_a_gradient_that_is_no_number(alpha: float) -> None:
    check_extremes(Objective(100.0, 1000.0, alpha=alpha))


def test_the_root_of_a_negative_cosine_without_the_clamp_is_no_number() -> None:
    """The check above would see a root that is not a number."""
    features = torch.tensor([[-1.0, 0.0]])
    rows = torch.tensor([[1.0, 0.0]])
    assert (torch.nn.functional.cosine_similarity(features, rows) ** 0.5).isnan().all()
    assert similarities(features, rows, 0.5).item() == pytest.approx(1e-3)


def test_the_correction_takes_clusters_by_weighted_similarity() -> None:
    """Class 0 has a near cluster of little weight and a far one of much: φ = 0.5 takes one of the two.

    By s alone it would be the near one, by W alone never another than the heavy one.
    """
    near, far = torch.tensor([1.0, 0.1]), torch.tensor([0.5, 1.0])
    z = torch.tensor([[1.0, 0.0]])
    for weights, taken in ((torch.tensor([0.1, 0.9]), 1), (torch.tensor([0.45, 0.55]), 0)):
        clusters = Clusters(torch.stack([near, far]), torch.tensor([0, 0]), weights)
        similar = similarities(z, clusters.rows, 0.5)[0] * weights
        assert similar.argmax() == taken
        terms = Objective(0.0, 1.0)(Outputs(z, torch.zeros(1, 2)), torch.tensor([0]), clusters)
        assert terms.alignment.item() == pytest.approx(-similar[taken].item())


def test_a_step_against_the_correction_comes_nearer_to_the_taken_cluster_alone() -> None:
    rows = torch.tensor([[1.0, 0.2, 0.1], [0.1, 0.2, 1.0]])
    z = torch.tensor([[0.9, 1.0, 0.5]], requires_grad=True)
    clusters = Clusters(rows, torch.tensor([0, 0]), torch.tensor([0.5, 0.5]))
    terms = Objective(0.0, 1.0)(Outputs(z, torch.zeros(1, 2)), torch.tensor([0]), clusters)
    torch.autograd.backward(terms.total)
    assert z.grad is not None
    moved = similarities(z.detach() - 0.1 * z.grad, rows, 1.0)[0]
    before = similarities(z.detach(), rows, 1.0)[0]
    assert moved[0] > before[0]
    assert moved[1] < before[1]
    both = Objective(0.0, 1.0, share=1.0)(Outputs(z, torch.zeros(1, 2)), torch.tensor([0]), clusters)
    assert both.alignment < terms.alignment


def test_a_heavier_cluster_of_another_class_pushes_more() -> None:
    rows = torch.tensor([[1.0, 0.0, 0.1], [0.1, 1.0, 0.0], [0.0, 0.1, 1.0]])
    z = torch.tensor([[1.0, 0.9, 0.9]])
    grads = []
    for heavy in (0.9, 0.1):
        clusters = Clusters(rows, torch.tensor([0, 1, 1]), torch.tensor([1.0, heavy, 1.0 - heavy]))
        grads.append(gradient(Case(z, torch.zeros(1, 2), torch.tensor([0]), clusters), Objective(1.0, 0.0)))
    away = [similarities(z - 0.01 * each, rows, 1.0)[0] for each in grads]
    assert away[0][1] < away[1][1]
    assert away[0][2] > away[1][2]


@given(st.integers(1, 40), st.integers(1, 100))
@example(25, 28)
def test_the_share_is_rounded_up_as_in_exact_numbers(size: int, hundredths: int) -> None:
    """⌈0.28 · 25⌉ is 7, though 0.28 * 25 is above 7 in floating point."""
    values = torch.ones(1, size)
    taken = largest(values, torch.ones(1, size, dtype=torch.bool), hundredths / 100)
    assert taken.item() == -(-hundredths * size // 100)


def test_alignment_of_two_losses_adds_up_with_their_weights() -> None:
    batch = case(3)
    contra, corr = batch.terms(Objective(1.0, 0.0)), batch.terms(Objective(0.0, 1.0))
    both = batch.terms(Objective(3.0, 7.0))
    assert both.alignment.item() == pytest.approx(3.0 * contra.alignment.item() + 7.0 * corr.alignment.item())
    assert contra.alignment.item() > 0.0 > corr.alignment.item()


def test_weights_and_their_absence_differ() -> None:
    batch = case(3)
    one = dataclasses.replace(DEFAULT, weights_one=True)
    assert batch.terms(one).alignment.item() != pytest.approx(batch.terms(DEFAULT).alignment.item(), rel=1e-2)


@pytest.mark.parametrize(
    "change",
    [
        {"contrast_weight": -1.0},
        {"correction_weight": float("nan")},
        {"alpha": 0.0},
        {"alpha": 1.5},
        {"temperature": 0.0},
        {"share": 0.0},
        {"share": 1.1},
    ],
)
def test_numbers_out_of_their_range_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        Objective(**{"contrast_weight": 1.0, "correction_weight": 10.0} | change)  # type: ignore[arg-type]  # numbers alone
