"""An audit of DP-SGD as it is run, with canaries whose gradients are orthogonal and as long as the clip.

A model is one linear layer without a bias, its loss its output, and a canary's input a multiple of a unit vector: so
the gradient is that vector, whatever the weights are, and plain SGD leaves in each weight the sum of all steps, which
is the canary's inner product with what these gave. That is all that the steps tell of it, but for when it took part.

Many canaries are spread over several trainings, each on records and weights of its own, or time and memory would grow
with their square: a record more or less changes one of the trainings, so that all together cost what one does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from algorithms.prototypes import Guide
from algorithms.terms import Outputs, Terms
from protoseal.config import DpSgdSection
from protoseal.evaluation.audit import Bool, Float
from protoseal.evaluation.audit_power import Separation
from secure_client.batches import TensorSource
from secure_client.models import SplitModel
from secure_client.privacy.accounting import epsilon
from secure_client.privacy.events import DpSgd
from secure_client.recipe import Trains
from secure_client.training import Job, Schedule, run

_IN_ONE = 1000
"""Canaries of one training."""
_LENGTH = 100.0
"""Of a canary's gradient before it is clipped, over the clip."""
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class TrainingUnderAudit:
    """``rounds`` of ``epochs`` of DP-SGD with these ``settings``, seen by whoever gets the trained weights."""

    settings: DpSgdSection
    epochs: int = 1
    rounds: int = 1

    @property
    def steps(self) -> int:
        """Of each training, over all rounds."""
        return self.rounds * self.settings.steps(self.epochs)

    def claimed(self, canaries: int, delta: float) -> float:  # noqa: ARG002 (the query's has use for it)
        """The ε that the accountant tells, however many canaries there are."""
        return epsilon(
            [DpSgd(self.settings.noise_multiplier, self.settings.sampling_rate, self.steps)], delta
        )

    def separation(self, noise: float = 1.0) -> Separation:
        """Of scores, if the noise were ``noise`` times as large as it is said to be."""
        rate, sigma = self.settings.sampling_rate, self.settings.noise_multiplier * noise
        return Separation(rate * math.sqrt(self.steps) / sigma, math.sqrt(1 + rate * (1 - rate) / sigma**2))

    def scores(self, coins: Bool) -> Float:
        """Of canaries (m,), in by ``coins``: near the number of steps that they took part in, or near 0."""
        parts = np.array_split(coins, math.ceil(coins.size / _IN_ONE))
        return np.concatenate([self._trained(part) for part in parts])

    def _trained(self, coins: Bool) -> Float:
        classifier = nn.Linear(coins.size, 1, bias=False)
        nn.init.zeros_(classifier.weight)
        inputs = _LENGTH * self.settings.clip * torch.eye(coins.size)[torch.from_numpy(coins)]
        job = Job(
            model=SplitModel(nn.Identity(), classifier),
            source=TensorSource(TensorDataset(inputs, torch.zeros(len(inputs), dtype=torch.int64)), _CPU),
            objective=_output,
            guide=None,
            schedule=Schedule(1.0, 0.0, 0.0, batch_size=1, local_epochs=self.epochs),
            epochs=self.epochs,
            trains=Trains.ALL,
            seed=0,
            device=_CPU,
            anchor={},
            dp_sgd=self.settings,
        )
        for _ in range(self.rounds):
            run(job)
        moved: Float = -classifier.weight.detach()[0].double().numpy() / self.settings.clip
        return moved


def _output(outputs: Outputs, _labels: Tensor, _guide: Guide | None) -> Terms:
    """A loss whose gradient is a record's input."""
    return Terms.unaligned(outputs.logits.sum())
