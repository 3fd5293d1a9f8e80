"""Training that every benchmark of speed gives to the systems that it compares.

A :class:`Workload` is a built-in network, random images, and each site's share of them, the same for every system.
:func:`train_plainly` is the baseline: the loop that PFLlib runs for one client after the other
(github.com/TsingZ0/PFLlib, ``flcore/clients/clientavg.py``), written in plain PyTorch.

Limit: random images cost the same as real ones, but a loss on them says nothing about accuracy.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from agreement import Norm
from agreement.registry.recipe import Trains
from algorithms.method_losses import CrossEntropyLoss
from secure_client.models.prototype_model import PrototypeModel, SplitModel, build_model
from secure_client.training.batches import TensorSource
from secure_client.training.job import Job, Schedule

CLASSES = 10
LR, MOMENTUM, WEIGHT_DECAY = 0.01, 0.9, 1e-5


@dataclass(frozen=True)
class Workload:
    """Local training at ``sites`` sites: ``steps`` batches of ``batch`` images (channels, side, side) an epoch.

    The last batch lacks ``missing`` images.
    """

    model: str
    dim: int
    channels: int
    side: int
    sites: int
    batch: int
    steps: int = 30
    norm: Norm = Norm.BATCH
    missing: int = 0

    @property
    def samples(self) -> int:
        """Number of images of a site."""
        return self.steps * self.batch - self.missing

    def build(self) -> PrototypeModel:
        """Return the network on the CPU, with the same initial weights at every site."""
        return build_model(
            self.model,
            classes=CLASSES,
            dim=self.dim,
            channels=self.channels,
            image_size=self.side,
            seed=0,
            norm=self.norm,
        )

    def network(self) -> nn.Module:
        """Return the same network, float (B, …) → logits (B, K), as plain PyTorch without the product's checks."""
        model = cast("SplitModel", self.build())
        return nn.Sequential(model.backbone, model.classifier)

    def images(self, count: int, seed: int = 0) -> TensorDataset:
        """Draw images, float32 (count, channels, side, side) in [0, 1), and int64 labels (count,)."""
        generator = torch.Generator().manual_seed(seed)
        shape = (count, self.channels, self.side, self.side)
        inputs = torch.rand(shape, generator=generator)
        return TensorDataset(inputs, torch.randint(CLASSES, (count,), generator=generator))

    def jobs(self, device: torch.device, epochs: int = 1) -> list[Job]:
        """Return each site's job for the product: plain cross entropy, and images of the site's own."""
        model, schedule = self.build(), Schedule(LR, MOMENTUM, WEIGHT_DECAY, self.batch, epochs)
        return [
            Job(
                model=copy.deepcopy(model).to(device),
                source=TensorSource(self.images(self.samples, seed=site), device),
                objective=CrossEntropyLoss(),
                guide=None,
                schedule=schedule,
                epochs=epochs,
                trains=Trains.ALL,
                seed=site,
                device=device,
                anchor={},
            )
            for site in range(self.sites)
        ]


WORKLOADS = {
    "small-cnn": Workload("small-cnn", 64, 3, 32, sites=20, batch=10),
    "small-cnn-28": Workload("small-cnn", 64, 1, 28, sites=20, batch=10),
    "fedpc-cnn": Workload("fedpc-cnn", 192, 3, 32, sites=100, batch=10, steps=10),
    "resnet10": Workload("resnet10", 512, 3, 32, sites=20, batch=32, steps=10),
    "resnet18": Workload("resnet18", 512, 3, 32, sites=20, batch=4, steps=10, missing=1),
}
"""Workloads by name: those whose limits were measured on a card by hand, at one size of images for every column."""


def train_plainly(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], device: torch.device, epochs: int = 1
) -> None:
    """Train one site's model in place, as PFLlib's clients do, by SGD with momentum and weight decay."""
    optimiser = torch.optim.SGD(model.parameters(), LR, MOMENTUM, weight_decay=WEIGHT_DECAY)
    model.train()
    for _ in range(epochs):
        for inputs, labels in batches:
            logits = model(inputs.to(device))
            loss = functional.cross_entropy(logits, labels.to(device))
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
