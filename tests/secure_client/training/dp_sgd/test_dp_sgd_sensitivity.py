"""Sensitivity of the sum of a step of DP-SGD to one record more or less."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from agreement import DpSgdSection
from algorithms.prototypes import Targets
from secure_client.training.dp_sgd import steps
from secure_client.training.dp_sgd.mechanism import GradientGrid
from secure_client.training.dp_sgd.steps import physical_size
from secure_client.training.loop import run_job
from tests.secure_client.training.dp_sgd.private_training import (
    ALL,
    CPU,
    OBJECTIVES,
    flat,
    guide_of,
    images,
    job_of,
    model_of,
    tiny,
)


def neighbours(
    sums: list[Tensor], name: str, settings: DpSgdSection, count: int = 5, **changes: Any
) -> list[float]:
    """Return the change of a step's sum without each of the records, in radii."""
    inputs, labels = images(count)
    found = []
    for record in range(count):
        sums.clear()
        for kept in (torch.arange(count), torch.arange(count)[torch.arange(count) != record]):
            own: dict[str, Any] = {"objective": OBJECTIVES[name], "guide": guide_of(name)}
            run_job(job_of(model_of(name), inputs[kept], labels[kept], dp_sgd=settings, **(own | changes)))
        assert all(torch.equal(each, each.round()) for each in sums)
        found.append(float((sums[0] - sums[1]).norm()) / GradientGrid.from_settings(settings).radius)
    return found


@pytest.mark.parametrize("clip", [0.001, 0.5], ids=["all clipped", "some"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_one_record_changes_the_sum_by_the_clip_at_most(sums: list[Tensor], name: str, clip: float) -> None:
    """Exactly: whole numbers, and the squares of norms within R²."""
    changes = neighbours(sums, name, ALL.model_copy(update={"clip": clip}), count=4)
    assert max(changes) <= 1.0
    if clip == 0.001:
        assert min(changes) > 0.99


@pytest.mark.parametrize("batchwise", [True, False], ids=["of the batch", "of records"])
def test_the_loss_of_a_batch_would_be_too_sensitive(
    sums: list[Tensor], monkeypatch: pytest.MonkeyPatch, batchwise: bool
) -> None:
    """A distance of class means, near 0: one record more or less turns the gradients of all the others."""

    def of_batch(objective: Any, outputs: Any, labels: Tensor, guide: Any) -> Any:
        terms = objective(outputs, labels, guide)
        return type(terms)(*(each.expand(len(labels)) for each in terms))

    with torch.no_grad():
        centre = model_of("pfpl-literal").features(images(5)[0]).mean(dim=0)
    guide = Targets(centre.expand(3, -1), torch.tensor([True, True, True]))
    if batchwise:
        monkeypatch.setattr(steps, "compute_sample_terms", of_batch)
    settings = ALL.model_copy(update={"clip": 0.001})
    changes = neighbours(
        sums,
        "pfpl-literal",
        settings,
        guide=guide,
        objective=lambda outputs, _, given: OBJECTIVES["pfpl-literal"](
            outputs, torch.zeros(len(outputs.features), dtype=torch.int64), given
        ),
    )
    assert (max(changes) > 1.2) == batchwise


def test_a_clip_that_is_not_kept_would_be_seen(sums: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ALL.model_copy(update={"clip": 0.001})
    true, of = GradientGrid.from_settings(settings).radius, GradientGrid.from_settings
    monkeypatch.setattr(
        GradientGrid, "from_settings", lambda given: replace(of(given), radius=int(1.01 * true))
    )
    changes = neighbours(sums, "pfpl", settings, count=2)
    assert max(changes) * int(1.01 * true) > true


@pytest.mark.parametrize("spoiled", [math.inf, math.nan, 3e38])
def test_a_record_that_is_not_finite_counts_as_none(sums: list[Tensor], silent: None, spoiled: float) -> None:
    """No error tells of it, no number of the others changes, and no parameter is lost."""
    inputs, labels = images(3)
    inputs[2] = spoiled
    for kept in (3, 2):
        job = job_of(model_of("pfpl"), inputs[:kept], labels[:kept], dp_sgd=ALL)
        losses = run_job(job)
        assert math.isfinite(losses.total)
        assert bool(flat(job.model).isfinite().all())
    assert torch.equal(sums[0], sums[1])


class Raising(nn.Module):
    """Raises for a batch that has a record beyond the ordinary."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the inputs as they are."""
        if bool((inputs > 100.0).any()):
            raise RuntimeError("no room for that")
        return inputs


def test_a_record_on_which_the_model_raises_counts_as_none(sums: list[Tensor], silent: None) -> None:
    """The batch is computed again by records, and each of the others has the gradient that it had."""
    inputs, labels = images(4)
    inputs[2] = 1e3
    for kept in ([0, 1, 2, 3], [0, 1, 3]):
        model = tiny()
        model.backbone = nn.Sequential(Raising(), model.backbone)
        run_job(job_of(model, inputs[kept], labels[kept], dp_sgd=ALL))
    assert bool(sums[0].any())
    assert torch.equal(sums[0], sums[1])


@pytest.mark.parametrize("noise", [0.01, 0.3, 1.0, 3.7, 1000.0])
def test_the_grid_keeps_the_noise_multiplier(noise: float) -> None:
    grid = GradientGrid.from_settings(DpSgdSection(noise_multiplier=noise, clip=2.0, sampling_rate=1.0))
    assert Fraction(2**20, grid.radius) >= Fraction(noise) > Fraction(2**20, grid.radius + 1)
    assert grid.step * grid.radius == pytest.approx(2.0, rel=1e-3)


def test_physical_batches_add_up_to_one(
    sums: list[Tensor], silent: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, labels = images(7)
    for size in (7, 3, 1):
        monkeypatch.setattr(steps, "physical_size", lambda *_, size=size: size)
        run_job(job_of(model_of("pfpl"), inputs, labels, dp_sgd=ALL, guide=guide_of("pfpl")))
    for other in sums[1:]:
        assert float((sums[0] - other).norm()) <= 1e-4 * float(sums[0].norm())


@pytest.mark.parametrize(
    ("numbers", "expected", "size"),
    [(1, 1, 8), (1, 50, 64), (1, 500, 112), (10**5, 500, 80), (10**6, 50, 8), (10**7, 500, 1), (10**9, 1, 1)],
)
def test_physical_batches_suit_the_agreed_one_and_the_memory(numbers: int, expected: int, size: int) -> None:
    parameters = [nn.Parameter(torch.empty(numbers, device="meta"))]
    assert physical_size(parameters, CPU, expected) == size
