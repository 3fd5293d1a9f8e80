"""Models that fail where a site's records, or its training targets, are out of the ordinary."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH = 16
_LARGEST_INPUT, _LARGEST_WEIGHT = 100.0, 50.0


def deep(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """Three layers: weights at the agreed bound make the loss infinite, or a gradient beyond the bound."""
    layers = [nn.Flatten(), nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, dim), nn.ReLU()), nn.Linear(dim, num_classes)


def normed(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """Batch normalisation, whose running variance may come back negative."""
    layers = [nn.Flatten(), nn.Linear(64, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, dim)]
    return nn.Sequential(*layers, nn.ReLU()), nn.Linear(dim, num_classes)


class PanicError(BaseException):
    """Error as a library written in Rust raises it."""


class Brittle(nn.Module):
    """A layer that raises for an input, or with weights, beyond a range: in training, in tests and in between."""

    def __init__(self, dim: int, error: type[BaseException] = RuntimeError) -> None:
        super().__init__()
        self._error = error
        self.layer = nn.Linear(64, dim)

    def forward(self, inputs: Tensor) -> Tensor:
        """Features (B, d), or an error."""
        flat = inputs.flatten(1)
        beyond = (flat.abs() > _LARGEST_INPUT).any() | (self.layer.weight.abs() > _LARGEST_WEIGHT).any()
        if not torch._C._functorch.is_batchedtensor(flat) and bool(beyond):
            raise self._error("out of memory, or so it says")
        return torch.relu(self.layer(flat))


def brittle(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """Build a model with :class:`Brittle` for its backbone."""
    return Brittle(dim), nn.Linear(dim, num_classes)


def panicking(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """Build a model whose backbone raises an error that is no :class:`Exception`."""
    return Brittle(dim, PanicError), nn.Linear(dim, num_classes)
