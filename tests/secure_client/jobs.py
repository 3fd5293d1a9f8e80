"""Jobs of sites that train the same network, and the check that training them together gives what one by one gives."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from agreement import Norm, Optimiser
from agreement.registry.recipe import BatchLoss, Trains
from algorithms.method_losses import PfplLoss
from algorithms.prototypes import Clusters, Guide, Targets
from protoseal.simulation.batched.training import Batching, run_together
from secure_client.models.prototype_model import PrototypeModel, build_model
from secure_client.training.batches import TensorSource
from secure_client.training.job import Job, Losses, Schedule
from secure_client.training.loop import run_job

CLASSES, DIM, SIDE = 3, 5, 8
CPU = torch.device("cpu")
SIZES = (9, 4, 13, 8, 9, 2)
"""Numbers of records with batches of 4: short ends, whole ones, two sites alike, and a site smaller than a batch."""
SCHEDULE = Schedule(lr=0.05, momentum=0.9, weight_decay=1e-2, batch_size=4, local_epochs=2)
ALIGNED = PfplLoss(0.5)
ADAM = replace(SCHEDULE, optimiser=Optimiser.ADAM, lr=0.01)


def images(count: int, seed: int, channels: int = 1, side: int = SIDE) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(count, channels, side, side, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs, torch.randint(CLASSES, (count,), generator=generator))


def targets(seed: int) -> Targets:
    """Return targets of all classes but one."""
    generator = torch.Generator().manual_seed(100 + seed)
    rows = torch.rand(CLASSES, DIM, generator=generator, dtype=torch.float64)
    return Targets(rows, torch.arange(CLASSES) != seed % CLASSES)


def clusters(seed: int) -> Clusters:
    generator = torch.Generator().manual_seed(200 + seed)
    labels = torch.tensor([0, 0, 0, 1, 2])
    weights = torch.tensor([0.5, 0.3, 0.2, 1.0, 1.0], dtype=torch.float64)
    return Clusters(torch.rand(5, DIM, generator=generator, dtype=torch.float64), labels, weights)


def model_of(spec: str = "small-cnn", norm: Norm = Norm.BATCH, side: int = SIDE) -> PrototypeModel:
    return build_model(
        spec, classes=CLASSES, dim=DIM, channels=1, image_size=side, seed=0, norm=norm
    ).double()


def jobs_of(
    model: PrototypeModel,
    objective: BatchLoss = ALIGNED,
    guides: Sequence[Guide | None] | None = None,
    *,
    schedule: Schedule = SCHEDULE,
    sizes: Sequence[int] = SIZES,
    trains: Trains = Trains.ALL,
    proximal: float = 0.0,
    side: int = SIDE,
) -> list[Job]:
    """Return a job for each site, each with a model of its own that is a little different."""
    anchor = {name: each.detach() for name, each in model.named_parameters()} if proximal else {}
    return [
        Job(
            model=moved(model, site),
            source=TensorSource(images(size, site, side=side), CPU),
            objective=objective,
            guide=targets(site) if guides is None else guides[site],
            schedule=schedule,
            epochs=schedule.local_epochs,
            trains=trains,
            seed=site,
            device=CPU,
            anchor=anchor,
            proximal=proximal,
        )
        for site, size in enumerate(sizes)
    ]


def moved(model: PrototypeModel, site: int) -> PrototypeModel:
    own = copy.deepcopy(model)
    torch.manual_seed(site)
    with torch.no_grad():
        for each in own.parameters():
            each.add_(torch.randn_like(each), alpha=0.01)
    return own


def copies(jobs: Sequence[Job]) -> list[Job]:
    return [replace(job, model=copy.deepcopy(job.model)) for job in jobs]


def states(jobs: Sequence[Job]) -> list[dict[str, Tensor]]:
    return [{name: each.clone() for name, each in job.model.state_dict().items()} for job in jobs]


def assert_alike(jobs: Sequence[Job], *, tolerance: float = 1e-9, at_once: int | None = None) -> None:
    """Assert that both ways of training change the models, and to the same."""
    alone, begun = copies(jobs), states(jobs)
    expected = [run_job(job) for job in alone]
    assert_close(run_together(jobs, Batching.ALWAYS, at_once=at_once), expected, tolerance)
    for ours, theirs, before in zip(jobs, alone, begun, strict=True):
        torch.testing.assert_close(
            ours.model.state_dict(), theirs.model.state_dict(), rtol=tolerance, atol=tolerance
        )
        assert any(not torch.equal(each, before[name]) for name, each in ours.model.state_dict().items())
        assert ours.model.training


def assert_close(found: Sequence[Losses], expected: Sequence[Losses], tolerance: float) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        values = [(each.total, each.classification, each.alignment) for each in (ours, theirs)]
        assert values[0] == pytest.approx(values[1], rel=max(tolerance, 1e-6), abs=1e-6)  # sums are float32
