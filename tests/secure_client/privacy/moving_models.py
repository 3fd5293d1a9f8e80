"""Models of one's own whose features move although only their classifiers train."""

from __future__ import annotations

import torch
from torch import Tensor, nn

PIXELS = 64


def of_instances(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """Return a model that keeps statistics of its inputs, and has no batch normalisation by name."""
    backbone = nn.Sequential(
        nn.InstanceNorm2d(1, track_running_stats=True), nn.Flatten(), nn.Linear(PIXELS, dim)
    )
    return backbone, nn.Linear(dim, num_classes)


class MovingAverage(nn.Module):
    """Less the average of what it has seen in training: a buffer of its own."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * inputs.mean().detach()
        return inputs - self.mean


def moving_average(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """Return a model with a buffer of its own."""
    return nn.Sequential(nn.Flatten(), MovingAverage(), nn.Linear(PIXELS, dim)), nn.Linear(dim, num_classes)


class _ByWeight(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * (1.0 + self.weight.mean())


def tied(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """Return a model with a weight of the classifier's on which the features depend."""
    classifier = nn.Linear(dim, num_classes)
    return nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, dim), _ByWeight(classifier.weight)), classifier
