"""Local training by DP-SGD (Abadi et al. 2016): Poisson samples, clipped gradients of single records, noise.

A step's sum of clipped gradients is one of whole numbers. With a noise multiplier z and a clip C, the grid's step is
z·C/2^20, a record's gradient is clipped to R = ⌊2^20/z⌋ steps and truncated towards zero, and the noise is a Gaussian
with a standard deviation of 2^20 steps, rounded to whole ones: rounding the noise is rounding the noisy sum, which
costs no privacy, and 2^20/R ≥ z.

Samples and noise are from the operating system's entropy, never from a seed of the run. The divisor is the agreed batch
size: the expected one would tell the number of records. A sample may be empty, and takes its noisy step all the same.

The limits. Gradients are computed in float32, and a record's may differ in their last places with what stands beside
it in a physical batch; from there on sums are exact. The Gaussian is float64's (:mod:`crypto.randomness`): its own grid
shows nothing of the sum, since each whole number stands for some 2^32 of its values (against Mironov 2012), but its
probabilities are right to some 2^-32, and no draw is beyond 8.6 standard deviations. How long a step takes tells how
many records it had.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from crypto.randomness import gaussian
from protoseal.config import DpSgdSection
from secure_client.batches import split
from secure_client.errors import ModelError, TrainingError
from secure_client.models import outputs_of
from secure_client.privacy.grid import SIGMA
from secure_client.privacy.per_sample import hooked, sample_terms, take_gradients
from secure_client.training import Job, Losses, seeded, trained_parameters

_MARGIN = 1e-6
"""Of the radius, for float64 in a norm over up to 10^9 numbers."""
_MOST_BYTES = {"cpu": 2**28, "cuda": 2**32}
"""Of gradients of single records that are there at a time."""
_MOST_AT_ONCE = 512


@dataclass(frozen=True)
class GradientGrid:
    """``step`` in units of a gradient, and R, the ``radius``, in steps."""

    step: float
    radius: int

    @classmethod
    def of(cls, settings: DpSgdSection) -> GradientGrid:
        """The grid on which noise of 2^20 steps is at least the noise multiplier times R."""
        radius = math.floor(SIGMA / Fraction(settings.noise_multiplier))
        return cls(settings.noise_multiplier * settings.clip / SIGMA, radius)

    def clipped_sums(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Σ over records of their clipped gradients in steps, float64 and whole, for gradients (B, …), B ≥ 1.

        A record's gradient has a norm of at most R over all parameters together. One that is not finite counts as zero:
        no record can spoil a step, or show in that it was spoiled.
        """
        squares = torch.stack([each.double().flatten(1).square().sum(1) for each in gradients])
        norms = squares.sum(0).sqrt()
        factors = (self.radius * (1 - _MARGIN) / norms).clamp(max=1 / self.step)
        finite = norms.isfinite()
        factors = torch.where(finite, factors, 0.0)
        return [self._sum(each, factors, finite) for each in gradients]

    @staticmethod
    def _sum(gradient: Tensor, factors: Tensor, finite: Tensor) -> Tensor:
        rows = gradient.double().flatten(1)
        rows = torch.where(finite.unsqueeze(1), rows, 0.0).mul_(factors.unsqueeze(1)).trunc_()
        return rows.sum(0).view(gradient.shape[1:])


def poisson_sample(records: int, rate: float) -> list[int]:
    """Of so many records those that are part of a step: each by itself, with probability ``rate``, in their order.

    By 64 bits of the operating system's entropy each; the probability is the rate, rounded down to a multiple of 2^-64.
    """
    if rate >= 1.0:
        return list(range(records))
    words = np.frombuffer(secrets.token_bytes(8 * records), dtype="<u8")
    return np.flatnonzero(words < np.uint64(math.floor(rate * 2**64))).tolist()


def draw_noise(count: int) -> NDArray[np.float64]:
    """Rounded Gaussian noise with a standard deviation of 2^20 steps, whole numbers in float64 (count,)."""
    return np.rint(gaussian(count, float(SIGMA)))


def run_privately(job: Job, settings: DpSgdSection) -> Losses:
    """Train the job's model in place; its steps have to be paid for beforehand.

    Losses are means over the records of the last epoch's steps: exact, they are to stay at the site. Raises
    :class:`TrainingError` where the parameters are not finite afterwards.
    """
    if job.proximal:
        raise ModelError("DP-SGD is accounted for without a proximal term")
    training = _Training(job, settings)
    job.model.train()
    # Not the job's seed, which others know: what dropout drops is then no function of a record's place in a batch.
    with hooked(job.model), seeded(job.device, secrets.randbits(63)):
        return training.run()


class _Training:
    """The steps of one job."""

    def __init__(self, job: Job, settings: DpSgdSection) -> None:
        self._job, self._settings, self._grid = job, settings, GradientGrid.of(settings)
        trained = trained_parameters(job.model, job.trains).values()
        self._parameters = [each for each in trained if each.requires_grad]
        self._optimiser = job.schedule.optimise(self._parameters)
        self._at_once = physical_size(self._parameters, job.device)

    def run(self) -> Losses:
        steps = self._settings.steps(self._job.epochs)
        told = steps - self._settings.steps(1)
        last = torch.zeros(4, dtype=torch.float64, device=self._job.device)
        for number in range(steps):
            found = self._step()
            if number >= told:
                last += found
        if not all(bool(each.isfinite().all()) for each in self._parameters):
            raise TrainingError(
                f"training by DP-SGD has diverged; lower the learning rate (now {self._job.schedule.lr:g}), or raise"
                f" batch_size (now {self._job.schedule.batch_size}), by which the noise is divided too"
            )
        return Losses(*(last[:3] / last[3].clamp(min=1)).tolist())

    def _step(self) -> Tensor:
        """One step; sums of its records' losses, and how many have them: (4,)."""
        chosen = poisson_sample(len(self._job.source), self._settings.sampling_rate)
        sums = [torch.zeros_like(each, dtype=torch.float64) for each in self._parameters]
        told = torch.zeros(4, dtype=torch.float64, device=self._job.device)
        for inputs, labels in self._batches(chosen):
            told += self._add(sums, inputs, labels)
        self._set_gradients(sums)
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        return told

    def _batches(self, chosen: list[int]) -> Iterator[tuple[Tensor, Tensor]]:
        """A sample in physical batches; none for an empty one."""
        return iter(self._job.source.batches(split(chosen, self._at_once)) if chosen else ())

    def _add(self, sums: list[Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        job = self._job
        terms = sample_terms(job.objective, outputs_of(job.model, inputs), labels, job.guide)
        torch.autograd.backward(terms.total.sum())
        given = take_gradients(job.model, self._parameters)
        used = [number for number, each in enumerate(given) if each is not None]
        clipped = self._grid.clipped_sums([each for each in given if each is not None])
        for number, each in zip(used, clipped, strict=True):
            sums[number] += each
        return _summed(terms)

    def _set_gradients(self, sums: list[Tensor]) -> None:
        noise = torch.from_numpy(draw_noise(sum(each.numel() for each in sums)))
        unit = self._grid.step / self._job.schedule.batch_size
        parts = torch.split(noise.to(self._job.device), [each.numel() for each in sums])
        for parameter, each, part in zip(self._parameters, sums, parts, strict=True):
            parameter.grad = ((each + part.view_as(each)) * unit).to(parameter.dtype)


def physical_size(parameters: Sequence[nn.Parameter], device: torch.device) -> int:
    """How many records' gradients are there at a time; more are taken one batch after the other, and added up."""
    record = max(1, sum(each.numel() * each.element_size() for each in parameters))
    return max(1, min(_MOST_AT_ONCE, _MOST_BYTES.get(device.type, 2**28) // record))


def _summed(terms: tuple[Tensor, ...]) -> Tensor:
    """Sums of the records' finite losses, and how many these are: (4,)."""
    rows = torch.stack([each.detach().double() for each in terms])
    finite = rows.isfinite().all(0)
    return torch.cat([torch.where(finite, rows, 0.0).sum(1), finite.sum(dtype=torch.float64).view(1)])
