"""Weakened builds of training by DP-SGD: sampling, noise and clipping of steps, and what the ledger is told."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from privacy.accounting.events import DpSgd
from secure_client.checkpoints import checkpointed_learner
from secure_client.training import loop
from secure_client.training.dp_sgd import steps
from secure_client.training.dp_sgd.mechanism import GradientGrid, draw_noise, poisson_sample
from secure_client.training.job import Job
from tests.support.weakenings import Patch, cheaper, without_entry


def sampler(chosen: Callable[[int, float], Any]) -> Patch:
    return lambda monkeypatch: monkeypatch.setattr(steps, "poisson_sample", chosen)


def fixed_size(units: int, rate: float) -> list[int]:
    chosen: list[int] = np.random.default_rng().permutation(units)[: int(units * rate)].tolist()
    return chosen


def first_of_sample_twice(units: int, rate: float) -> list[int]:
    chosen = poisson_sample(units, rate)
    return [*chosen[:1], *chosen]


def successive_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    at = itertools.count()

    def batch(units: int, rate: float) -> list[int]:
        size = max(1, int(units * rate))
        first = next(at) * size
        return sorted((first + number) % units for number in range(size))

    monkeypatch.setattr(steps, "poisson_sample", batch)


def shuffled_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    order: dict[int, list[int]] = {}

    def batch(units: int, rate: float) -> list[int]:
        waiting = order.setdefault(units, [])
        size = max(1, int(units * rate))
        if len(waiting) < size:
            waiting[:] = np.random.default_rng().permutation(units).tolist()
        taken, waiting[:] = waiting[:size], waiting[size:]
        return taken

    monkeypatch.setattr(steps, "poisson_sample", batch)


def training_noise(drawn: Callable[[int], Any]) -> Patch:
    return lambda monkeypatch: monkeypatch.setattr(steps, "draw_noise", drawn)


def training_noise_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[int, Any] = {}

    def draw(count: int) -> Any:
        return kept.setdefault(count, draw_noise(count)).copy()

    monkeypatch.setattr(steps, "draw_noise", draw)


def gradients_unclipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GradientGrid, "clip_", lambda grid, rows: rows.div_(grid.step).trunc_())


def gradients_by_coordinate(monkeypatch: pytest.MonkeyPatch) -> None:
    def clip(grid: GradientGrid, rows: Tensor) -> Tensor:
        return rows.div_(grid.step).clamp_(-grid.radius, grid.radius).trunc_()

    monkeypatch.setattr(GradientGrid, "clip_", clip)


def gradients_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clip a step's sum in place of each gradient."""
    clip, set_gradients = GradientGrid.clip_, steps._Training._set_gradients
    gradients_unclipped(monkeypatch)

    def set_clipped(training: Any, total: Tensor) -> None:
        grid = training._grid
        set_gradients(training, clip(grid, total.unsqueeze(0) * grid.step).squeeze(0))

    monkeypatch.setattr(steps._Training, "_set_gradients", set_clipped)


def train_after_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train once more without noise after each training by DP-SGD."""
    trained = loop.run_job

    def twice(job: Job) -> object:
        losses = trained(job)
        trained(replace(job, dp_sgd=None, recorder=None))
        return losses

    monkeypatch.setattr(checkpointed_learner, "run_job", twice)


def train_once_by_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train by DP-SGD in a site's first round alone; the later ones train without noise, though paid for."""
    trained, begun = loop.run_job, set[int]()

    def unnoised(job: Job) -> object:
        private = job.dp_sgd if id(job.model) not in begun else None
        begun.add(id(job.model))
        return trained(replace(job, dp_sgd=private))

    monkeypatch.setattr(checkpointed_learner, "run_job", unnoised)


TRAINING_DOUBLES: dict[str, Patch] = {
    "samples of a fixed size": sampler(fixed_size),
    "successive batches": successive_batches,
    "shuffled epochs": shuffled_epochs,
    "a rate too high": sampler(lambda units, rate: poisson_sample(units, min(1.0, 1.5 * rate))),
    "a record twice in a step": sampler(first_of_sample_twice),
    "half of training's noise": training_noise(lambda count: np.rint(0.5 * draw_noise(count))),
    "the same noise in every step": training_noise_reused,
    "gradients without a clip": gradients_unclipped,
    "gradients clipped by coordinate": gradients_by_coordinate,
    "gradients clipped too late": gradients_too_late,
    "training without an entry": without_entry(DpSgd),
    "training with a smaller cost": cheaper(DpSgd),
}
"""Doubles of a run that trains by DP-SGD, by weakness."""
UNRECORDED_DOUBLES: dict[str, Patch] = {
    "training without noise after the recorded one": train_after_the_record,
    "training by DP-SGD in the first round alone": train_once_by_the_record,
}
"""Doubles that train beside what is recorded, by weakness."""
