"""A model whose training goes well, diverges or raises, by turns: site and round decide.

It knows its site by the folder that the process runs in, and the round by the site's own log of completed rounds.
"""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

WIDTH, PIXELS = 64, 64


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
        layers = [nn.Flatten(), nn.Linear(PIXELS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, dim), nn.ReLU()]
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


def build(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """Build the model."""
    return Moody(dim), nn.Linear(dim, num_classes)


def _round() -> int:
    log = Path("site.json")
    return len(json.loads(log.read_text(encoding="utf-8"))["rounds"]) + 1 if log.exists() else 1
