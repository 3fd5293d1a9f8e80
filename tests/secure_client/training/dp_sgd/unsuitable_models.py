"""Models of one's own for DP-SGD: those that it must refuse, each for a reason of its own, and some that it takes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.secure_client.privacy.moving_models import MovingAverage

PIXELS = 64


class _Centred(nn.Module):
    """Each record less the batch's mean: no statistics, no weights, and still of all records."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs - inputs.mean(dim=0, keepdim=True)


class _SeenBefore(nn.Module):
    """Adds what it was given last, in ``eval()`` mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.last = 0.0

    def forward(self, inputs: Tensor) -> Tensor:
        last, self.last = self.last, float(inputs.detach().abs().mean())
        return inputs + last


class _CountsCalls(nn.Module):
    """A state that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0.0

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.seen += float(inputs.detach().abs().mean())
        return inputs + self.seen


class _PastItsLayer(nn.Module):
    """Uses a layer's weight without calling the layer."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.inner = nn.Linear(PIXELS, dim)

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.linear(inputs, self.inner.weight, self.inner.bias)


class _FunctionalDropout(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return functional.dropout(inputs, 0.5, training=self.training)


class _Scale(nn.Module):
    """A layer that Opacus has no rule for, with a weight of its own."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, dim))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.scale


class _Recurrent(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.cells = nn.LSTM(8, dim, batch_first=True)

    def forward(self, inputs: Tensor) -> Tensor:
        given: Tensor = self.cells(inputs.squeeze(1))[0][:, -1]
        return given


Pair = tuple[nn.Module, nn.Module]


def _model(num_classes: int, dim: int, *first: nn.Module) -> Pair:
    return nn.Sequential(nn.Flatten(), *first, nn.Linear(PIXELS, dim)), nn.Linear(dim, num_classes)


def centred(num_classes: int, dim: int) -> Pair:
    return _model(num_classes, dim, _Centred())


def moving_average(num_classes: int, dim: int) -> Pair:
    return _model(num_classes, dim, MovingAverage())


def counts_calls(num_classes: int, dim: int) -> Pair:
    return _model(num_classes, dim, _CountsCalls())


def of_instances(num_classes: int, dim: int) -> Pair:
    norm = nn.InstanceNorm2d(1, affine=True, track_running_stats=True)
    return nn.Sequential(norm, nn.Flatten(), nn.Linear(PIXELS, dim)), nn.Linear(dim, num_classes)


def past_its_layer(num_classes: int, dim: int) -> Pair:
    return nn.Sequential(nn.Flatten(), _PastItsLayer(dim)), nn.Linear(dim, num_classes)


def in_place(num_classes: int, dim: int) -> Pair:
    layers = (nn.Flatten(), nn.Linear(PIXELS, dim), nn.ReLU(inplace=True), nn.Linear(dim, dim))
    return nn.Sequential(*layers), nn.Linear(dim, num_classes)


def functional_dropout(num_classes: int, dim: int) -> Pair:
    return _model(num_classes, dim, _FunctionalDropout())


def recurrent(num_classes: int, dim: int) -> Pair:
    return _Recurrent(dim), nn.Linear(dim, num_classes)


def with_dropout(num_classes: int, dim: int) -> Pair:
    return _model(num_classes, dim, nn.Dropout(0.5))


def with_a_layer_of_its_own(num_classes: int, dim: int) -> Pair:
    return _model(num_classes, dim, _Scale(PIXELS), nn.LayerNorm(PIXELS), _Scale(PIXELS))


def partly_frozen(num_classes: int, dim: int) -> Pair:
    backbone, classifier = _model(num_classes, dim, nn.Linear(PIXELS, PIXELS))
    for each in list(backbone.parameters())[:2]:
        each.requires_grad_(False)
    return backbone, classifier


def seen_before(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """Return a model whose batches see the previous batch."""
    return nn.Sequential(nn.Flatten(), _SeenBefore(), nn.Linear(PIXELS, dim)), nn.Linear(dim, num_classes)
