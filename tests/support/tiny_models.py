"""Tiny models that tests name in agreements: of one layer, or such that fail.

Some fail where a site's records or targets are out of the ordinary, one by turns of site and round.

A model of moods knows its site by the folder that the process runs in, and the round by the site's own log of completed
rounds.
"""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

WIDTH = 16
PIXELS = 64
"""Pixels of the tests' scans of digits."""
_LARGEST_INPUT, _LARGEST_WEIGHT = 100.0, 50.0


def build_tanh(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """Return one layer, whose features have either sign: (backbone, classifier), as all here do."""
    return nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, dim), nn.Tanh()), nn.Linear(dim, num_classes)


def build_relu(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """Return one layer without negative features."""
    return nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, dim), nn.ReLU()), nn.Linear(dim, num_classes)


def build_normed(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """Return one layer and batch normalisation: each part of the model has another size."""
    layers = (nn.Flatten(), nn.Linear(PIXELS, dim), nn.BatchNorm1d(dim), nn.ReLU())
    return nn.Sequential(*layers), nn.Linear(dim, num_classes)


def build_normed_images(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """Return a convolution and batch normalisation, which sites of a simulation compute together."""
    layers = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(36, dim), nn.ReLU()), nn.Linear(dim, num_classes)


def build_dropping(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """Return one layer, before and after which some numbers are dropped in training."""
    layers = (nn.Flatten(), nn.Dropout(0.2), nn.Linear(PIXELS, dim), nn.Tanh(), nn.Dropout(0.2))
    return nn.Sequential(*layers), nn.Linear(dim, num_classes)


class Masked(nn.Module):
    """Inputs of which a stored mask of truth values takes some."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.arange(PIXELS) % 3 > 0)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the pixels (B, 64), zero where the mask says so."""
        return torch.where(self.get_buffer("mask"), inputs.flatten(1), 0.0)


def build_masked(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """Return one layer after a mask, which is no number that could be averaged."""
    return nn.Sequential(Masked(), nn.Linear(PIXELS, dim), nn.ReLU()), nn.Linear(dim, num_classes)


def deep(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """Three layers: weights at the agreed bound make the loss infinite, or a gradient beyond the bound."""
    layers = [nn.Flatten(), nn.Linear(PIXELS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, dim), nn.ReLU()), nn.Linear(dim, num_classes)


def normed(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """Batch normalisation, whose running variance may come back negative."""
    layers = [nn.Flatten(), nn.Linear(PIXELS, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, dim)]
    return nn.Sequential(*layers, nn.ReLU()), nn.Linear(dim, num_classes)


class PanicError(BaseException):
    """Error as a library written in Rust raises it."""


class Brittle(nn.Module):
    """A layer that raises for an input, or with weights, beyond a range: in training, in tests and in between."""

    def __init__(self, dim: int, error: type[BaseException] = RuntimeError) -> None:
        super().__init__()
        self._error = error
        self.layer = nn.Linear(PIXELS, dim)

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


_HIDDEN = 64


class Mood(Enum):
    """Course that the training of a model takes."""

    WELL = 0
    DIVERGES = 1
    RAISES = 2


def mood_of(site: str, round_number: int) -> Mood:
    """Return the mood of a site whose name ends in its number; in the first round all goes well."""
    return Mood.WELL if round_number < 2 else Mood((int(site[-1]) + round_number) % 3)


class Moody(nn.Module):
    """Backbone that fails in training as its mood says."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        layers = [nn.Flatten(), nn.Linear(PIXELS, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, dim), nn.ReLU()]
        self.layers, self._mood = nn.Sequential(*layers), Mood.WELL

    def train(self, mode: bool = True) -> Self:
        """Take the round's mood when training begins."""
        if mode:
            self._mood = mood_of(Path.cwd().name, _round())
        return super().train(mode)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features (B, d)."""
        if self._mood is Mood.RAISES and self.training:
            raise RuntimeError("out of memory, or so it says")
        features: Tensor = self.layers(inputs)
        return features * torch.inf if self._mood is Mood.DIVERGES and self.training else features


def build_moody(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """Build a model whose training goes by its mood."""
    return Moody(dim), nn.Linear(dim, num_classes)


def _round() -> int:
    log = Path("site.json")
    return len(json.loads(log.read_text(encoding="utf-8"))["rounds"]) + 1 if log.exists() else 1
