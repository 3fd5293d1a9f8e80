"""Jobs that train by DP-SGD, small enough for hundreds of steps, and what the four methods make of a record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from agreement import DpSgdSection, Norm
from agreement.registry.recipe import BatchLoss, Trains
from algorithms.feddbp import FeddbpLoss
from algorithms.method_losses import FedpcLoss, FedplccLoss, PfplLoss
from algorithms.prototypes import Clusters, Guide, Targets
from secure_client.models.prototype_model import PrototypeModel, SplitModel, build_model
from secure_client.models.wrapped_models import add_branches
from secure_client.training.batches import TensorSource
from secure_client.training.dp_sgd import steps
from secure_client.training.job import Job, Schedule
from secure_client.training.loop import run_job

CLASSES, DIM, SIDE = 3, 8, 16
CPU = torch.device("cpu")
FALSE_ALARM = 1e-10
SETTINGS = DpSgdSection(noise_multiplier=1.0, clip=0.5, sampling_rate=0.25)
ALL = SETTINGS.model_copy(update={"sampling_rate": 1.0})
"""Every record in every step."""
OBJECTIVES: dict[str, BatchLoss] = {
    "pfpl": PfplLoss(10.0),
    "pfpl-literal": PfplLoss(1.0, literal=True),
    "fedpc": FedpcLoss(0.5),
    "feddbp": FeddbpLoss(),
    "feddbp-literal": FeddbpLoss(literal=True),
    "feddbp-one-branch": FeddbpLoss(share=False),
    "feddbp-without-decision-loss": FeddbpLoss(decision_weight=0.0),
    "fedplcc": FedplccLoss(0.1, 1.0),
}


def model_of(name: str, backbone: str = "small-cnn", *, seed: int = 0) -> PrototypeModel:
    """Build a method's model for images of 16×16, with group normalisation where the backbone normalises."""
    built = build_model(
        backbone, classes=CLASSES, dim=DIM, channels=1, image_size=SIDE, seed=seed, norm=Norm.GROUP
    )
    if not name.startswith("feddbp"):
        return built
    return add_branches(built, DIM, seed=0, share=name != "feddbp-one-branch")


def guide_of(name: str, *, dtype: torch.dtype = torch.float32) -> Guide:
    """Return prototypes of two of the three classes; FedPLCC's have two clusters of one and one of the other."""
    rows = torch.rand(CLASSES, DIM, generator=torch.Generator().manual_seed(7)).to(dtype)
    if name == "fedplcc":
        return Clusters(rows, torch.tensor([0, 0, 1]), torch.tensor([3.0, 1.0, 2.0], dtype=dtype))
    return Targets(rows, torch.tensor([True, True, False]))


def images(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return images (N, 1, 16, 16) and labels (N,)."""
    drawn = torch.Generator().manual_seed(seed)
    return (
        torch.randn(count, 1, SIDE, SIDE, generator=drawn),
        torch.randint(CLASSES, (count,), generator=drawn),
    )


def job_of(model: PrototypeModel, inputs: Tensor, labels: Tensor, **changes: Any) -> Job:
    """Return a job of one epoch of PFPL without targets, in steps as long as the gradient, divided by one."""
    job = Job(
        model=model,
        source=TensorSource(TensorDataset(inputs, labels), CPU),
        objective=OBJECTIVES["pfpl"],
        guide=None,
        schedule=Schedule(lr=1.0, momentum=0.0, weight_decay=0.0, batch_size=1, local_epochs=1),
        epochs=1,
        trains=Trains.ALL,
        seed=0,
        device=CPU,
        anchor={},
        dp_sgd=SETTINGS,
    )
    return replace(job, **changes)


def flat(model: torch.nn.Module) -> Tensor:
    """Return all parameters, float64 (P,)."""
    return torch.cat([each.detach().double().flatten() for each in model.parameters()])


def silence(patch: pytest.MonkeyPatch, drawn: list[int] | None = None) -> None:
    """Remove the noise of training; ``drawn`` keeps how many numbers each step would have drawn."""

    def draw(count: int) -> NDArray[np.float64]:
        if drawn is not None:
            drawn.append(count)
        return np.zeros(count)

    patch.setattr(steps, "draw_noise", draw)


def moved(job: Job) -> Tensor:
    """Return the change of all parameters in one epoch, (P,): with steps of length 1 the sum of its gradients."""
    before = flat(job.model)
    run_job(job)
    return before - flat(job.model)


def tiny() -> SplitModel:
    """Return a model of two thousand parameters."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return SplitModel(
            nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, DIM), nn.Tanh()), nn.Linear(DIM, CLASSES)
        )
