"""Audit of DP-SGD by canaries, in trainings of its own: the adversary gets the weights after every step.

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
from agreement.registry.recipe import Trains
from algorithms.losses import Outputs, Terms
from algorithms.prototypes import Guide
from privacy.accounting.accountant import Composed
from privacy.accounting.events import DpSgd, Unit
from protoseal.audit.canary_audit import Bool, Float, fresh_generator
from protoseal.audit.trade_off import TradeOff, composed_trade_off
from secure_client.models.prototype_model import SplitModel
from secure_client.training.batches import TensorSource
from secure_client.training.job import Job, Schedule
from secure_client.training.loop import run_job

LENGTH = 100.0
"""Norm of a canary's gradient before it is clipped, over the clip."""
CANARIES_PER_TRAINING = 512
"""Number of canaries of one training."""
SUBJECT_RECORDS = 2
"""Number of records of a subject."""
BATCH = 128
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class AuditedTraining:
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

    def simulated_scores(self, coins: Bool, noise: float = 1.0) -> Float:
        """Draw scores (m,) for ``coins`` (m,)."""
        generator, deviation = fresh_generator(), self.settings.noise_multiplier * noise
        scores = np.zeros(coins.size)
        for _ in range(self.steps):
            sampled = coins & (generator.random(coins.size) < self.settings.sampling_rate)
            scores += self.evidence(sampled + generator.normal(0.0, deviation, coins.size))
        return scores

    def scores(self, coins: Bool) -> Float:
        """Train with the canaries that are in by ``coins`` (m,)."""
        # Disjoint trainings compose in parallel: a canary is in one of them.
        parts = np.array_split(coins, math.ceil(coins.size / CANARIES_PER_TRAINING))
        return np.concatenate([self._train_and_score(part) for part in parts])

    def evidence(self, seen: Float) -> Float:
        """Return log likelihood ratios of one step, which showed ``seen`` (n,): 0 or 1, and noise."""
        rate, sigma = self.settings.sampling_rate, self.settings.noise_multiplier
        # Log likelihood ratio of N(1, σ²) and N(0, σ²), for a canary that the step has sampled.
        sampled = (seen - 0.5) / sigma**2
        if rate >= 1.0:
            return sampled
        # An unknown sampling makes the first a mixture: (1 − q)·N(0, σ²) + q·N(1, σ²).
        return np.asarray(np.logaddexp(math.log1p(-rate), math.log(rate) + sampled))

    def _train_and_score(self, coins: Bool) -> Float:
        # Orthogonal directions: no canary's gradient shows in the score of another.
        directions = hadamard(coins.size)
        classifier = nn.Linear(directions.shape[1], 1, bias=False)
        nn.init.zeros_(classifier.weight)
        schedule = _ObservedSchedule(
            lr=float(BATCH),  # a step divides its sum by the batch size; this undoes it
            momentum=0.0,
            weight_decay=0.0,
            batch_size=BATCH,
            local_epochs=self.epochs,
            observer=_StepObserver(self, directions[: coins.size]),
        )
        job = self._job(SplitModel(nn.Identity(), classifier), directions[: coins.size][coins], schedule)
        for _ in range(self.rounds):
            run_job(job)
        return schedule.observer.scores

    def _job(self, model: SplitModel, directions: Float, schedule: Schedule) -> Job:
        records = 1 if self.unit is Unit.RECORD else SUBJECT_RECORDS
        inputs = torch.from_numpy(
            np.repeat(LENGTH * self.settings.clip * directions, records, axis=0)
        ).float()
        return Job(
            model=model,
            source=TensorSource(TensorDataset(inputs, torch.zeros(len(inputs), dtype=torch.int64)), _CPU),
            objective=_sum_logits,
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


class _StepObserver:
    """Scores of a training's canaries from its steps; their ``directions`` (n, P) have length 1."""

    def __init__(self, training: AuditedTraining, directions: Float) -> None:
        self._training = training
        self._directions = directions
        self._before = np.zeros(directions.shape[1])
        self.scores = np.zeros(len(directions))

    def step(self, weights: Tensor) -> None:
        """Look at the weights (1, P) after a step."""
        after = weights.detach()[0].double().numpy().copy()
        seen = self._directions @ (self._before - after) / self._training.settings.clip
        self.scores += self._training.evidence(seen)
        self._before = after


@dataclass(frozen=True, kw_only=True)
class _ObservedSchedule(Schedule):
    """Schedule whose optimiser passes the weights to a view after each step."""

    observer: _StepObserver = field(repr=False)

    def optimise(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        (weights,) = parameters
        optimiser = super().optimise([weights])
        optimiser.register_step_post_hook(lambda *_: self.observer.step(weights))
        return optimiser


def hadamard(rows: int) -> Float:
    """Return an orthogonal matrix of the least power of two that has so many ``rows``, all values of one size."""
    matrix = np.ones((1, 1))
    while len(matrix) < rows:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.asarray(matrix / math.sqrt(len(matrix)))


def _history(training: AuditedTraining, noise: float) -> Composed:
    settings = training.settings
    return Composed.of([DpSgd(settings.noise_multiplier * noise, settings.sampling_rate, training.steps)])


@lru_cache(maxsize=256)
def _epsilon(training: AuditedTraining, delta: float, noise: float) -> float:
    return _history(training, noise).epsilon(delta)


@lru_cache(maxsize=256)
def _curve(training: AuditedTraining, noise: float) -> TradeOff:
    return composed_trade_off(_history(training, noise))


def _sum_logits(outputs: Outputs, _labels: Tensor, _guide: Guide | None) -> Terms:
    """Return a loss whose gradient is a record's input."""
    return Terms.unaligned(outputs.logits.sum())
