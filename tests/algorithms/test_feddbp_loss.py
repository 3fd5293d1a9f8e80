"""FedDBP's loss against loops, by default and as printed, its ablations, and which way a hard negative goes."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vmap

from algorithms.feddbp import FeddbpLoss, decision_contrast
from algorithms.losses import Outputs, Terms
from algorithms.prototypes import Targets
from tests.algorithms import feddbp_reference as reference
from tests.algorithms import target_cases
from tests.algorithms.plain_lists import distance
from tests.algorithms.target_cases import CLASSES, DIM, MIX, gradient

TAU = 0.3
PRINTED = {"literal": True}
SWITCHES = [PRINTED, {"hard": False}]
FORMS = [{"literal": literal, "hard": hard} for literal, hard in product((False, True), repeat=2)]
"""Every form of L_d, and with it of L_s."""
ABLATIONS = [{"share": False}, {"decision": False}]

Case = tuple[Tensor, Tensor, Tensor, Targets]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw both branches' float64 features of 1 to 8 samples, and targets; rows without a target are not numbers."""
    shared, labels, targets = draw(target_cases.cases())
    rng = np.random.default_rng(
        [draw(st.integers(0, 2**32 - 1)), 1]
    )  # other numbers than the targets' from any seed
    return shared, torch.tensor(rng.normal(size=shared.shape)), labels, targets


def some_case(seed: int = 0, present: tuple[bool, ...] = (True, True, False, True)) -> Case:
    """Return seven samples over all classes; by default one class without a target."""
    rng = np.random.default_rng(seed)
    known = np.array(present)
    rows = np.where(known[:, None], rng.normal(size=(CLASSES, DIM)), np.nan)
    shared, decision = (torch.tensor(rng.normal(size=(7, DIM))) for _ in range(2))
    return shared, decision, torch.tensor(rng.permutation([0, 1, 2, 3, 0, 1, 3])), Targets.of(rows, known)


def outputs(shared: Tensor, decision: Tensor) -> Outputs:
    return Outputs(shared, shared @ MIX, decision, decision @ MIX)


def by_loops(objective: FeddbpLoss, case: Case) -> tuple[float, float]:
    """Return classification and alignment of equation 7, with their weights."""
    shared, decision, labels, targets = case
    known = labels.tolist()
    rows, present = targets.rows.tolist(), targets.present.tolist()
    classification = alignment = 0.0
    if objective.share:
        classification += reference.cross_entropy((shared @ MIX).tolist(), known)
        l_s = reference.shared_loss(shared.tolist(), known, rows, present, literal=objective.literal)
        alignment += objective.alignment_weight * l_s
    if objective.decision:
        entropy = reference.cross_entropy((decision @ MIX).tolist(), known)
        classification += objective.decision_weight * entropy
        l_d = contrast_by_loops(
            decision,
            labels,
            targets,
            temperature=objective.temperature,
            hard=objective.hard,
            literal=objective.literal,
        )
        alignment += objective.contrast_weight * l_d
    return classification, alignment


def contrast_by_loops(
    features: Tensor,
    labels: Tensor,
    targets: Targets,
    *,
    temperature: float = TAU,
    hard: bool = True,
    literal: bool = False,
    m: float | None = None,
) -> float:
    batch = features.tolist(), labels.tolist(), targets.rows.tolist(), targets.present.tolist()
    middle = reference.boundary(*batch) if m is None else m
    return reference.decision_loss(
        *batch,
        tau=temperature,
        hard=hard,
        literal=literal,
        m=middle,
    )


def agrees(terms: Terms, expected: tuple[float, float]) -> bool:
    found = (terms.classification.item(), terms.alignment.item(), terms.total.item())
    return bool(np.allclose(found, (*expected, sum(expected)), rtol=1e-9, atol=1e-12))


@pytest.mark.parametrize("switches", [*FORMS, *ABLATIONS, {"share": False, **PRINTED}])
@given(case=cases(), weights=st.tuples(st.floats(0, 20), st.floats(0, 20), st.floats(0, 20)))
def test_feddbp_loss_is_equation_7(
    switches: dict[str, Any], case: Case, weights: tuple[float, float, float]
) -> None:
    objective = FeddbpLoss(*weights, temperature=TAU, **switches)
    shared, decision, labels, targets = case
    assert agrees(objective(outputs(shared, decision), labels, targets), by_loops(objective, case))


@pytest.mark.parametrize("other", [*SWITCHES, *ABLATIONS])
def test_feddbp_loss_check_sees_every_switch(other: dict[str, Any]) -> None:
    shared, decision, labels, targets = case = some_case()
    objective = FeddbpLoss(temperature=TAU)
    switched: FeddbpLoss = replace(objective, **other)
    terms = switched(outputs(shared, decision), labels, targets)
    assert agrees(terms, by_loops(switched, case))
    assert not agrees(terms, by_loops(objective, case))


def test_feddbp_loss_defaults_are_the_papers() -> None:
    assert FeddbpLoss() == FeddbpLoss(
        1.0, 10.0, 1.0, 0.07, literal=False, share=True, decision=True, hard=True
    )


def test_feddbp_loss_known_answers() -> None:
    """z^s = (3, 4), target (3, 0): 16, half of it per channel. z^d at 60° of its own prototype and of the other's.

    Both distances are 1, so m = 1 and no negative is hard: L_d = −log[e^{−1/τ}/(2e^{−1/τ})] = log 2. Printed, M = 1.
    """
    rows = np.array([[3.0, 0.0], [-0.5, 3**0.5 / 2]])
    targets = Targets.of(rows, np.ones(2, dtype=np.bool_))
    labels, half = torch.tensor([0]), torch.tensor([[1.0, 3**0.5]], dtype=torch.float64)
    given = Outputs(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2), half, torch.zeros(1, 2))
    terms = FeddbpLoss(2.0, 10.0, 5.0, temperature=0.5)(given, labels, targets)
    assert terms.classification.item() == pytest.approx(3 * np.log(2))
    assert terms.alignment.item() == pytest.approx(10 * 8 + 5 * np.log(2))
    printed = FeddbpLoss(2.0, 10.0, 5.0, temperature=0.5, **PRINTED)(given, labels, targets)
    assert printed.alignment.item() == pytest.approx(10 * 16 - 5 / (2 + np.exp(2)))


@pytest.mark.parametrize("switches", [{}, PRINTED])
def test_feddbp_loss_without_targets_is_cross_entropy_on_both_branches(switches: dict[str, Any]) -> None:
    shared, decision, labels, _ = some_case()
    nobody = Targets.of(np.full((CLASSES, DIM), np.nan), np.zeros(CLASSES, dtype=np.bool_))
    objective = FeddbpLoss(0.7, **switches)
    both = torch.nn.functional.cross_entropy
    for targets in (None, nobody):
        terms = objective(outputs(shared, decision), labels, targets)
        assert terms.alignment.item() == 0.0
        expected = both(shared @ MIX, labels) + 0.7 * both(decision @ MIX, labels)
        assert terms.total.item() == terms.classification.item() == pytest.approx(expected.item(), rel=1e-12)
        moved = gradient(lambda z, t=targets: objective(outputs(shared, z), labels, t).total, decision)  # type: ignore[misc]
        alone = gradient(lambda z: 0.7 * both(z @ MIX, labels), decision)
        torch.testing.assert_close(moved, alone, rtol=1e-12, atol=0)


def test_decision_contrast_single_target_is_zero() -> None:
    _, decision, labels, targets = some_case(present=(False, True, False, False))
    assert decision_contrast(decision, labels, targets, temperature=TAU).item() == pytest.approx(
        0.0, abs=1e-12
    )
    quotient = decision_contrast(decision, labels, targets, temperature=TAU, literal=True)
    assert quotient.item() == pytest.approx(-1.0)


def test_feddbp_loss_samples_without_target_count_nowhere() -> None:
    """Another sample of a class without a target changes neither L_s nor L_d, nor does what its row holds."""
    shared, decision, labels, targets = some_case()
    objective = FeddbpLoss(0.0, temperature=TAU)
    before = objective(outputs(shared, decision), labels, targets).alignment
    more = [torch.cat([each, 9.0 * torch.ones(1, DIM, dtype=torch.float64)]) for each in (shared, decision)]
    after = objective(outputs(more[0], more[1]), torch.cat([labels, torch.tensor([2])]), targets).alignment
    assert after.item() == pytest.approx(before.item(), rel=1e-12)
    has_nan = targets.rows.isnan().any(dim=1)
    assert has_nan.tolist() == [False, False, True, False]
    filled = Targets(targets.rows.nan_to_num(5.0), targets.present)
    assert torch.equal(objective(outputs(shared, decision), labels, filled).alignment, before)


@pytest.mark.parametrize("switches", FORMS)
@given(case=cases())
def test_decision_contrast_gradient_holds_the_boundary(switches: dict[str, Any], case: Case) -> None:
    _, features, labels, targets = case
    found = gradient(lambda z: decision_contrast(z, labels, targets, temperature=TAU, **switches), features)
    m = reference.boundary(
        features.tolist(), labels.tolist(), targets.rows.tolist(), targets.present.tolist()
    )
    step = 1e-6
    for b, j in np.ndindex(*features.shape):
        move = torch.zeros_like(features)
        move[b, j] = step
        above, below = (
            contrast_by_loops(z, labels, targets, m=m, **switches) for z in (features + move, features - move)
        )
        assert found[b, j].item() == pytest.approx((above - below) / (2 * step), rel=1e-4, abs=1e-6)


def test_decision_contrast_check_sees_a_boundary_with_gradient() -> None:
    """Differences of the loops whose m moves with the features are others."""
    _, features, labels, targets = some_case()
    found = gradient(lambda z: decision_contrast(z, labels, targets, temperature=TAU), features)[0, 0]
    move = torch.zeros_like(features)
    move[0, 0] = 1e-6
    above, below = (contrast_by_loops(z, labels, targets) for z in (features + move, features - move))
    assert abs((above - below) / 2e-6 - found.item()) > 1e-3


def hard_negative(distance: float = 0.6) -> tuple[Tensor, Tensor, Targets]:
    """Return a sample at its own prototype, a prototype of another class at ``distance`` and one straight across, at 2.

    m = (0 + (0.6 + 2)/2)/2 = 0.65 is beyond the hard negative. Neither the own prototype nor the one across pulls a
    normalised vector anywhere, so that all the gradient there is comes from the hard negative.
    """
    angle = 2 * np.arcsin(distance / 2)
    rows = np.array([[1.0, 0.0], [np.cos(angle), np.sin(angle)], [-1.0, 0.0]])
    at = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    return at, torch.tensor([0]), Targets(torch.tensor(rows), torch.ones(3, dtype=torch.bool))


def moved_from_the_hard_negative(**switches: bool) -> float:
    """Return how much farther from the hard negative a step against L_d's gradient takes the sample, per unit of the
    step.
    """
    features, labels, targets = hard_negative()
    step = gradient(lambda z: decision_contrast(z, labels, targets, temperature=0.07, **switches), features)
    after = features - 1e-6 * step
    away = [
        distance(reference.normalised(z[0].tolist()), targets.rows[1].tolist()) for z in (features, after)
    ]
    return (away[1] - away[0]) / 1e-6


def test_decision_contrast_hard_negative_repels() -> None:
    assert moved_from_the_hard_negative() > 1.0


def test_decision_contrast_printed_form_attracts_a_hard_negative() -> None:
    """The printed boundary is not the default because it grows as the hard negative gets farther."""
    assert moved_from_the_hard_negative(literal=True) < 0.0
    assert moved_from_the_hard_negative(literal=True, hard=False) > 0.0


def test_decision_contrast_boundary_term_repels_more() -> None:
    assert moved_from_the_hard_negative() > 10 * moved_from_the_hard_negative(hard=False)


def test_decision_contrast_easy_negatives_count_in_print_alone() -> None:
    """No negative is nearer than m = 0.975; e^0 for each of the two is as much as the sample's own prototype has."""
    features, labels, targets = hard_negative(1.9)
    found, without, printed = (
        decision_contrast(features, labels, targets, temperature=0.07, **switches).item()
        for switches in ({}, {"hard": False}, PRINTED)
    )
    assert found == without == pytest.approx(0.0, abs=1e-9)
    assert printed == pytest.approx(-1 / 3)


def test_decision_contrast_negative_at_the_boundary_adds_one() -> None:
    """The boundary is m = (distance + 2)/4, which is the distance at 2/3."""
    within, beyond = (
        decision_contrast(*hard_negative(2 / 3 + step), temperature=0.07).item() for step in (-1e-9, 1e-9)
    )
    assert within == pytest.approx(np.log(2), abs=1e-3)
    assert beyond == pytest.approx(0.0, abs=1e-3)


def slope_as_the_hard_negative_backs_away(**switches: bool) -> float:
    """Return the slope of L_d as the hard negative, and nothing else, turns away from the sample."""
    features, labels, targets = hard_negative()
    cos, sin = targets.rows[1].tolist()

    def loss(rows: Tensor) -> Tensor:
        moved = Targets(rows, targets.present)
        return decision_contrast(features, labels, moved, temperature=0.07, **switches)

    slopes = gradient(loss, targets.rows)[1].tolist()
    return float(slopes[0] * -sin + slopes[1] * cos)


def test_decision_contrast_hard_negatives_prototype_is_repelled() -> None:
    assert slope_as_the_hard_negative_backs_away() < -1.0
    assert slope_as_the_hard_negative_backs_away(literal=True) > 0.0


@pytest.mark.parametrize("switches", [{}, PRINTED])
def test_feddbp_loss_batches_can_be_stacked(switches: dict[str, Any]) -> None:
    """Three sites' batches, with other labels and targets each, in one program: losses and gradients are the loop's."""
    sites = [some_case(0), some_case(1, (True,) * 4), some_case(2, (False,) * 4)]
    objective = FeddbpLoss(temperature=TAU, **switches)

    def total(z: tuple[Tensor, Tensor], labels: Tensor, rows: Tensor, present: Tensor) -> Tensor:
        return objective(outputs(*z), labels, Targets(rows, present)).total

    listed = [((s, d), y, t.rows, t.present) for s, d, y, t in sites]
    stacked = (
        (torch.stack([s for s, *_ in sites]), torch.stack([d for _, d, *_ in sites])),
        torch.stack([y for *_, y, _ in sites]),
        torch.stack([t.rows for *_, t in sites]),
        torch.stack([t.present for *_, t in sites]),
    )
    torch.testing.assert_close(vmap(total)(*stacked), torch.stack([total(*each) for each in listed]))
    found = vmap(grad(total))(*stacked)
    for at, each in enumerate(listed):
        alone = grad(total)(*each)
        for together, single in zip(found, alone, strict=True):
            torch.testing.assert_close(together[at], single)


def test_decision_contrast_small_temperature_stays_finite() -> None:
    """The printed form's e^{m/τ} is beyond float32: the quotient of the loops is not a number there."""
    _, features, labels, targets = some_case(present=(True,) * 4)
    loss = decision_contrast(features.float(), labels, targets, temperature=1e-3)
    found = gradient(lambda z: decision_contrast(z, labels, targets, temperature=1e-3), features.float())
    assert loss.isfinite()
    assert found.isfinite().all()
    with pytest.raises((OverflowError, ZeroDivisionError, ValueError)):
        contrast_by_loops(features, labels, targets, temperature=1e-3)


@pytest.mark.parametrize("switches", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(
    scale=st.sampled_from([0.0, 1e-30, 1e-3, 1.0, 1e15]),
    labels=st.lists(st.integers(0, 3), min_size=1, max_size=4),
)
def test_feddbp_loss_gradient_is_never_nan(
    switches: dict[str, Any], dtype: torch.dtype, scale: float, labels: list[int]
) -> None:
    """Features of zeros and at their target, prototypes of zeros, and absent rows that are not numbers."""
    rows = np.array([[scale] * DIM, [np.nan] * DIM, [1.0, 0.0, 0.0], [0.0] * DIM])
    targets = Targets.of(rows, np.isfinite(rows).all(axis=1))
    leaf = torch.full((len(labels), DIM), scale, dtype=dtype, requires_grad=True)
    objective = FeddbpLoss(**switches)
    terms = objective(Outputs(leaf, leaf, leaf, leaf), torch.tensor(labels).clamp(max=DIM - 1), targets)
    torch.autograd.backward(terms.alignment)
    assert leaf.grad is not None
    assert terms.alignment.isfinite()
    assert leaf.grad.isfinite().all()


def test_feddbp_loss_model_without_branch_needs_decision_false() -> None:
    shared, _, labels, targets = some_case()
    given = Outputs(shared, shared @ MIX)
    with pytest.raises(ValueError, match="decision"):
        FeddbpLoss()(given, labels, targets)
    assert FeddbpLoss(decision=False)(given, labels, targets).alignment > 0.0
