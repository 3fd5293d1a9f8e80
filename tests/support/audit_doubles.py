"""Doubles of the two mechanisms under audit: less noise than they claim, noise of another shape, or no clipping."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

from privacy.mechanisms import prototype_query as query_module
from privacy.mechanisms.discrete_gaussian import discrete_gaussian
from privacy.mechanisms.grid import Float, Grid, Ints
from secure_client.training.dp_sgd import steps
from secure_client.training.dp_sgd.mechanism import GradientGrid, draw_noise

Double = Literal["as claimed", "three quarters", "half", "none", "no clipping"]
DOUBLES: tuple[Double, ...] = ("as claimed", "three quarters", "half", "none", "no clipping")
NOISE: dict[Double, float] = {"three quarters": 0.75, "half": 0.5, "none": 0.0}
Shape = Literal[
    "none on counts",
    "none on half of the coordinates",
    "none on half of the classes",
    "the same in all coordinates",
    "opposite in neighbouring coordinates",
    "the same in all classes",
    "the same in all releases",
]
"""Noise whose deviation on each coordinate is as claimed, or zero."""
SHAPES: tuple[Shape, ...] = get_args(Shape)


def weaken_query(monkeypatch: pytest.MonkeyPatch, how: Double) -> None:
    """Change the noise where the query draws it, or the clipping where records become whole steps."""

    def drawn(count: int, log2: int) -> NDArray[np.int64]:
        return np.asarray(np.rint(NOISE[how] * discrete_gaussian(count, log2)), dtype=np.int64)

    def unclipped(grid: Grid, features: Float) -> Ints:
        return np.asarray(np.trunc(features / grid.step), dtype=np.int64)

    if how in NOISE:
        monkeypatch.setattr(query_module, "discrete_gaussian", drawn)
    elif how == "no clipping":
        monkeypatch.setattr(Grid, "clip_records", unclipped)


def misshape_query(monkeypatch: pytest.MonkeyPatch, shape: Shape, dim: int) -> None:
    """Change the noise of queries over ``dim`` features where it is drawn, as (K, dim + 1)."""
    kept: dict[int, Ints] = {}

    def drawn(count: int, log2: int) -> Ints:
        noise = discrete_gaussian(count, log2).reshape(-1, dim + 1)
        if shape == "none on counts":
            noise[:, dim] = 0
        elif shape == "none on half of the coordinates":
            noise[:, : dim // 2] = 0
        elif shape == "none on half of the classes":
            noise[::2] = 0
        elif shape == "the same in all coordinates":
            noise[:] = noise[:, :1]
        elif shape == "opposite in neighbouring coordinates":
            noise[:, 1::2] = -noise[:, : 2 * ((dim + 1) // 2) : 2]
        elif shape == "the same in all classes":
            noise[:] = noise[:1]
        else:
            noise = kept.setdefault(count, noise)
        return noise.reshape(-1).copy()

    monkeypatch.setattr(query_module, "discrete_gaussian", drawn)


def weaken_training(monkeypatch: pytest.MonkeyPatch, how: Double) -> None:
    """Change the noise of steps of DP-SGD where it is drawn, or the clipping of gradients."""

    def unclipped(grid: GradientGrid, rows: Tensor) -> Tensor:
        return rows.div_(grid.step).trunc_()

    if how in NOISE:
        monkeypatch.setattr(steps, "draw_noise", lambda count: np.rint(NOISE[how] * draw_noise(count)))
    elif how == "no clipping":
        monkeypatch.setattr(GradientGrid, "clip_", unclipped)
