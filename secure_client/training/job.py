"""Training jobs: one stage of one model's local training, with its schedule, optimisers and losses."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from agreement import DpSgdSection, Optimiser
from agreement.registry.recipe import BatchLoss, Trains
from algorithms.prototypes import Guide
from secure_client.errors import TrainingError
from secure_client.models.prototype_model import PrototypeModel, seed_torch
from secure_client.training.augmentation import Augmentation
from secure_client.training.batches import BatchSource
from secure_client.training.step_records import StepRecorder

# Methods of torch's optimisers import torch._dynamo, which takes a second and 150 MB in each process, to tell the
# compiler to leave them out. Nothing here is compiled, so these two classes have the methods without that wrapper.


class Sgd(torch.optim.SGD):
    """Torch's SGD with steps equal to it bit for bit."""

    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)
    step = torch.no_grad()(inspect.unwrap(torch.optim.SGD.step))


class Adam(torch.optim.Adam):
    """Torch's Adam with steps equal to it bit for bit."""

    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


OptimiserState = MutableMapping[str, Mapping[str, Tensor]]
"""State of torch's optimiser by the parameter's name, under torch's keys; empty before the first step."""


@dataclass(frozen=True)
class Schedule:
    """Local training's settings in one round.

    ``momentum`` is SGD's; Adam has its own (0.9 and 0.999). ``weight_decay`` is added to the gradient by both.
    """

    lr: float
    momentum: float
    weight_decay: float
    batch_size: int
    local_epochs: int
    optimiser: Optimiser = Optimiser.SGD

    def optimise(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        """Return a fresh optimiser of these parameters."""
        if self.optimiser is Optimiser.ADAM:
            return Adam(parameters, lr=self.lr, weight_decay=self.weight_decay)
        return Sgd(parameters, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)


@dataclass(frozen=True)
class Losses:
    """Losses as means over the batches of a round's last local epoch."""

    total: float
    classification: float
    alignment: float


@dataclass(frozen=True)
class Job:
    """A stage of one model's training in one round.

    ``source``, ``guide`` and ``anchor`` are on the model's ``device``. Only parameters of the part ``trains`` change,
    and batch normalisation's statistics in the whole model. With ``proximal`` μ > 0, μ/2·‖w − anchor‖² is added to the
    loss, ``anchor`` holding a tensor for each parameter by name. ``seed`` determines the order of batches and dropout.
    With ``dp_sgd`` the operating system's entropy determines both, and the noise: pay for such a job before each run. A
    step then samples ``owners``, int64 (N,), of the source's records, or records if ``owners`` is None. ``recorder``
    records these steps for an audit, if the site asks for it.

    ``augmentation`` changes the images of each step. Training continues from ``optimiser_state`` and replaces its
    content once it has succeeded; without it the optimiser is fresh. A job with ``dp_sgd`` has neither of the two.
    """

    model: PrototypeModel
    source: BatchSource
    objective: BatchLoss
    guide: Guide | None
    schedule: Schedule
    epochs: int
    trains: Trains
    seed: int
    device: torch.device
    anchor: Mapping[str, Tensor]
    proximal: float = 0.0
    dp_sgd: DpSgdSection | None = None
    owners: NDArray[np.int64] | None = None
    recorder: StepRecorder | None = None
    augmentation: Augmentation | None = None
    optimiser_state: OptimiserState | None = None


def trained_parameters(model: PrototypeModel, trains: Trains) -> dict[str, nn.Parameter]:
    """Return the parameters, by name, that a stage changes."""
    if trains is Trains.ALL:
        return dict(model.named_parameters())
    # By identity: a weight that the classifier shares with the extractor is the classifier's.
    heads = {id(parameter) for parameter in model.classifier.parameters()}
    wanted = trains is Trains.CLASSIFIER
    return {
        name: parameter for name, parameter in model.named_parameters() if (id(parameter) in heads) is wanted
    }


def has_batch_norm(model: nn.Module) -> bool:
    """Return True if the model cannot train on single samples."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def check_finite(epochs: Iterable[Losses], lr: float) -> None:
    """Raise :class:`TrainingError` if training diverged in any of the epochs.

    Call this after the last epoch: training that ended with the first infinite loss would take less time, and the
    coordinator, who chooses where training starts, would learn from the time whether it diverged.
    """
    for losses in epochs:
        if not np.isfinite(losses.total):
            raise TrainingError(
                f"the training loss is {losses.total}; lower the learning rate (now {lr:g}) or the alignment "
                "weight, and check the data for extreme values"
            )


def training_seed(seed: int, site: str, round_number: int, stage: int) -> int:
    """Return the seed of the order of batches in a stage, from the run's seed, the site, the round and the stage."""
    # Every site and round has its own order of batches, and a resumed site repeats it. Stage 0 is hashed without its
    # number.
    names = (seed, site, round_number, stage) if stage else (seed, site, round_number)
    digest = hashlib.sha256("\0".join(map(str, names)).encode()).digest()
    return int.from_bytes(digest[:8], "big") % 2**63


@contextmanager
def seed_generators(device: torch.device, seed: int) -> Iterator[None]:
    """Seed torch's generators inside, and restore them afterwards."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        seed_torch(seed)
        yield
