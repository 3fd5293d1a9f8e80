"""Audit of DP-SGD as it runs, by an adversary who gets the weights after every step.

A model is one linear layer without a bias and its loss is its output, so that a record's gradient is its input,
whatever the weights are. Canaries' inputs are orthogonal, equal in size in all coordinates (rows of a Hadamard matrix)
and a hundred times as long as the clip: missing clipping shows, and so does clipping of single coordinates. A step of
plain SGD moves the weights by its noisy sum, whose inner product with a canary is all that the step reveals of it. A
canary's score is the logarithm of the likelihood ratio of all steps, under the claimed noise and sampling rate.

Many canaries are spread over several trainings, each on records and weights of its own, or time and memory would grow
with their square: one record more or less changes one of the trainings, so that all together cost no more than one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from agreement import DpSgdSection
from agreement.recipe import Trains
from algorithms.model_outputs import Outputs, Terms
from algorithms.prototypes import Guide
from privacy.accounting.accountant import Composed
from privacy.accounting.events import DpSgd, Unit
from protoseal.audit.canary_audit import random
from protoseal.audit.canary_bound import Bool, Float
from protoseal.audit.trade_off import TradeOff, composed_trade_off
from secure_client.models.prototype_model import SplitModel
from secure_client.training.batches import TensorSource
from secure_client.training.job import Job, Schedule
from secure_client.training.loop import run_job

LENGTH = 100.0
"""Norm of a canary's gradient before it is clipped, over the clip."""
_IN_ONE = 512
"""Number of canaries of one training."""
_RECORDS = 2
"""Number of records of a subject."""
_BATCH = 128
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class TrainingUnderAudit:
    """``rounds`` of ``epochs`` of DP-SGD with these ``settings``, on one ``unit``: a record or a subject."""

    settings: DpSgdSection
    epochs: int = 1
    rounds: int = 1
    unit: Unit = Unit.RECORD

    @property
    def steps(self) -> int:
        """The number of steps of each training, over all rounds."""
        return self.rounds * self.settings.steps(self.epochs)

    def epsilon(self, canaries: int, delta: float, noise: float = 1.0) -> float:  # noqa: ARG002 (the query needs them)
        """Return the ε that the accountant gives, however many canaries there are."""
        return _epsilon(self, delta, noise)

    def curve(self, canaries: int, noise: float = 1.0) -> TradeOff:  # noqa: ARG002
        """Return the trade-off curve of all steps together."""
        return _curve(self, noise)

    def simulated(self, coins: Bool, noise: float = 1.0) -> Float:
        """Draw scores (m,) for ``coins`` (m,)."""
        drawn, deviation = random(), self.settings.noise_multiplier * noise
        scores = np.zeros(coins.size)
        for _ in range(self.steps):
            part = coins & (drawn.random(coins.size) < self.settings.sampling_rate)
            scores += self.evidence(part + drawn.normal(0.0, deviation, coins.size))
        return scores

    def scores(self, coins: Bool) -> Float:
        """Train with the canaries that are in by ``coins`` (m,)."""
        parts = np.array_split(coins, math.ceil(coins.size / _IN_ONE))
        return np.concatenate([self._trained(part) for part in parts])

    def evidence(self, seen: Float) -> Float:
        """Return log likelihood ratios of one step, which showed ``seen`` (n,): 0 or 1, and noise."""
        rate, sigma = self.settings.sampling_rate, self.settings.noise_multiplier
        taking_part = (seen - 0.5) / sigma**2
        if rate >= 1.0:
            return taking_part
        return np.asarray(np.logaddexp(math.log1p(-rate), math.log(rate) + taking_part))

    def _trained(self, coins: Bool) -> Float:
        directions = hadamard(coins.size)
        classifier = nn.Linear(directions.shape[1], 1, bias=False)
        nn.init.zeros_(classifier.weight)
        schedule = _Watched(
            lr=float(_BATCH),  # the divisor of a step
            momentum=0.0,
            weight_decay=0.0,
            batch_size=_BATCH,
            local_epochs=self.epochs,
            view=_View(self, directions[: coins.size]),
        )
        job = self._job(SplitModel(nn.Identity(), classifier), directions[: coins.size][coins], schedule)
        for _ in range(self.rounds):
            run_job(job)
        return schedule.view.scores

    def _job(self, model: SplitModel, directions: Float, schedule: Schedule) -> Job:
        records = 1 if self.unit is Unit.RECORD else _RECORDS
        inputs = torch.from_numpy(
            np.repeat(LENGTH * self.settings.clip * directions, records, axis=0)
        ).float()
        return Job(
            model=model,
            source=TensorSource(TensorDataset(inputs, torch.zeros(len(inputs), dtype=torch.int64)), _CPU),
            objective=_output,
            guide=None,
            schedule=schedule,
            epochs=self.epochs,
            trains=Trains.ALL,
            seed=0,
            device=_CPU,
            anchor={},
            dp_sgd=self.settings,
            owners=None if records == 1 else np.repeat(np.arange(len(directions)), records),
        )


class _View:
    """Scores of a training's canaries from its steps; their ``directions`` (n, P) have length 1."""

    def __init__(self, audited: TrainingUnderAudit, directions: Float) -> None:
        self._audited, self._directions = audited, directions
        self._before = np.zeros(directions.shape[1])
        self.scores = np.zeros(len(directions))

    def step(self, weights: Tensor) -> None:
        """Look at the weights (1, P) after a step."""
        after = weights.detach()[0].double().numpy().copy()
        seen = self._directions @ (self._before - after) / self._audited.settings.clip
        self.scores += self._audited.evidence(seen)
        self._before = after


@dataclass(frozen=True, kw_only=True)
class _Watched(Schedule):
    """Schedule whose optimiser passes the weights to a view after each step."""

    view: _View = field(repr=False)

    def optimise(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        (weights,) = parameters
        optimiser = super().optimise([weights])
        optimiser.register_step_post_hook(lambda *_: self.view.step(weights))
        return optimiser


def hadamard(rows: int) -> Float:
    """Return an orthogonal matrix of the least power of two that has so many ``rows``, all values of one size."""
    found = np.ones((1, 1))
    while len(found) < rows:
        found = np.block([[found, found], [found, -found]])
    return np.asarray(found / math.sqrt(len(found)))


def _history(audited: TrainingUnderAudit, noise: float) -> Composed:
    settings = audited.settings
    return Composed.of([DpSgd(settings.noise_multiplier * noise, settings.sampling_rate, audited.steps)])


@lru_cache(maxsize=256)
def _epsilon(audited: TrainingUnderAudit, delta: float, noise: float) -> float:
    return _history(audited, noise).epsilon(delta)


@lru_cache(maxsize=256)
def _curve(audited: TrainingUnderAudit, noise: float) -> TradeOff:
    return composed_trade_off(_history(audited, noise))


def _output(outputs: Outputs, _labels: Tensor, _guide: Guide | None) -> Terms:
    """Return a loss whose gradient is a record's input."""
    return Terms.unaligned(outputs.logits.sum())
