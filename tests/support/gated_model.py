"""small-cnn for the tests' 8×8 scans that waits in training while the file ``hold`` in its folder names the round.

A plug-in like any site's own: copied into the site's folder and named as ``model = "gated_model:build"``. It lets a
test stop a run at a known point without guessing at times.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from secure_client.models.backbones import Shape, small_cnn
from secure_client.models.prototype_model import PrototypeModel

HOLD, HELD = Path("hold"), Path("held")


class GatedModel(PrototypeModel):
    """The built-in model behind a gate."""

    def __init__(self, classes: int, dim: int) -> None:
        super().__init__()
        self.backbone = small_cnn(Shape(dim, channels=1, image_size=8))
        self.classifier = nn.Linear(dim, classes)

    def features(self, inputs: Tensor) -> Tensor:
        """Return small-cnn's features, once the gate is open."""
        # The check before a run, which must not wait, trains on two copies of one record.
        if self.training and not (len(inputs) == 2 and torch.equal(inputs[0], inputs[1])):
            _wait()
        return cast("Tensor", self.backbone(inputs))


def build(num_classes: int, dim: int) -> GatedModel:
    """Build a gated model with the same initial weights as small-cnn."""
    return GatedModel(num_classes, dim)


def _wait() -> None:
    while _held_round() == str(_round()):
        HELD.touch()
        time.sleep(0.02)
    HELD.unlink(missing_ok=True)


def _held_round() -> str | None:
    try:
        return HOLD.read_text(encoding="utf-8")
    except FileNotFoundError:  # the test may take it away at any moment
        return None


def _round() -> int:
    """Return the round being trained, from the site's own log of those that it completed."""
    log = Path("site.json")
    rounds = json.loads(log.read_text(encoding="utf-8"))["rounds"] if log.exists() else []
    return len(rounds) + 1
