"""Local training by DP-SGD (Abadi et al. 2016): Poisson samples, clipped gradients of single records, noise.

A step sums clipped gradients as whole numbers. With a noise multiplier z and a clip C, the grid's step is z·C/2^20, a
record's gradient is clipped to R = ⌊2^20/z⌋ steps and truncated towards zero, and the noise is a Gaussian with a
standard deviation of 2^20 steps, rounded to whole steps: rounding the noise equals rounding the noisy sum, which costs
no privacy, and 2^20/R ≥ z.

Samples and noise are from the operating system's entropy, never from a seed of the run. The divisor is the agreed batch
size: the expected size of a sample would reveal the number of records. An empty sample also takes its noisy step.

Where a job's records have owners, a step samples owners, and a subject's gradient is clipped as a record's is
(:mod:`secure_client.training.dp_sgd.clipping_units`).

A record that cannot be read, or on which the model fails, has a gradient of zeros.

Physical batches have one size, which follows from the agreement and the model; the last batch is padded. A record's
gradient in float32 is then the same to the last bit whatever other records there are, on the CPU that was tried
(``tests/secure_client/training/dp_sgd/test_gradients_independent_of_batch.py``), and from there on sums are exact: one
unit more or less changes them by C at most.

Limits. GPUs were not examined. The Gaussian is float64's (:mod:`crypto.randomness`): its own grid shows nothing of the
sum, since each whole number stands for some 2^32 of its values (against Mironov 2012), but its probabilities are right
to some 2^-32, and no draw is beyond 8.6 standard deviations. The duration of a step reveals the number of its records,
and of those on which a plug-in's model raises: a batch with k of them is computed k + 2 times, and its records some
1 + k/3 times more, without padding (:func:`secure_client.training.batches.isolate_failures`).
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from agreement import DpSgdSection
from crypto.randomness import gaussian
from privacy.mechanisms.grid import SIGMA
from secure_client.errors import ModelError, TrainingError
from secure_client.models.prototype_model import outputs_of
from secure_client.training.batches import isolate_failures, split
from secure_client.training.dp_sgd.clipping_units import Records, Subjects
from secure_client.training.dp_sgd.per_sample_gradients import (
    clear_gradients,
    hooked,
    sample_terms,
    take_gradients,
)
from secure_client.training.job import Job, Losses, seeded, trained_parameters

_log = logging.getLogger("protoseal.site")
_Gradients = list[Tensor | None]
"""Gradients of single records for each parameter, (B, …); None for an unused parameter."""
_MARGIN = 1e-6
"""Relative margin of the radius, for float64 in a norm over up to 10^9 numbers."""
_MOST_BYTES = {"cpu": 2**25, "cuda": 2**32}
"""Largest number of bytes of single records' gradients in memory at a time."""
_MOST_AT_ONCE = {"cpu": 128, "cuda": 512}
"""Number of records: on a CPU larger batches were no faster for ``tanh-cnn``, and the last batch has more padding."""
_MULTIPLE = 8
"""Divisor of physical batches: with two threads the last of five or six records was seen to round differently."""
_CLIPPED_AT_ONCE = {"cpu": 2**17, "cuda": 2**26}
"""Number of gradient values that are clipped together, so that a CPU keeps them in its cache."""


@dataclass(frozen=True)
class GradientGrid:
    """``step`` in units of a gradient, and R, the ``radius``, in steps."""

    step: float
    radius: int

    @classmethod
    def of(cls, settings: DpSgdSection) -> GradientGrid:
        """Return the grid on which noise of 2^20 steps is at least the noise multiplier times R."""
        radius = math.floor(SIGMA / Fraction(settings.noise_multiplier))
        return cls(settings.noise_multiplier * settings.clip / SIGMA, radius)

    def clip_(self, rows: Tensor) -> Tensor:
        """Clip gradients of records, float64 (B, P), and truncate them to whole steps, in place; return the tensor.

        Each row then has a norm of at most R. A non-finite row becomes zero, so that no record can corrupt a step and
        thereby show its presence.
        """
        norms = torch.linalg.vector_norm(rows, dim=1)
        finite = norms.isfinite()
        if not bool(finite.all()):
            rows[~finite], norms[~finite] = 0.0, 0.0
        factors = (self.radius * (1 - _MARGIN) / norms).clamp(max=1 / self.step)
        return rows.mul_(factors.unsqueeze(1)).trunc_()


def poisson_sample(records: int, rate: float) -> list[int]:
    """Return the records of a step, in their order: each is drawn by itself, with probability ``rate``.

    Each draw takes 64 bits of the operating system's entropy; the probability is the rate, rounded down to a multiple
    of 2^-64.
    """
    if rate >= 1.0:
        return list(range(records))
    words = np.frombuffer(secrets.token_bytes(8 * records), dtype="<u8")
    return np.flatnonzero(words < np.uint64(math.floor(rate * 2**64))).tolist()


def draw_noise(count: int) -> NDArray[np.float64]:
    """Return rounded Gaussian noise with a standard deviation of 2^20 steps, whole numbers in float64 (count,)."""
    return np.rint(gaussian(count, float(SIGMA)))


def run_privately(job: Job, settings: DpSgdSection) -> Losses:
    """Train the job's model in place; the caller must have paid for the steps.

    Losses are exact means over the records of the last epoch's steps and must stay at the site. Raises
    :class:`TrainingError` if the parameters are not finite afterwards.
    """
    if job.proximal:
        raise ModelError("DP-SGD is accounted for without a proximal term")
    training = _Training(job, settings)
    job.model.train()
    try:
        # The job's seed is public and so not used: dropout must not be a function of a record's place in a batch.
        with hooked(job.model), seeded(job.device, secrets.randbits(63)):
            return training.run()
    finally:
        if job.recorder is not None:
            job.recorder.end()


class _Training:
    """The steps of one job."""

    def __init__(self, job: Job, settings: DpSgdSection) -> None:
        self._job, self._settings, self._grid = job, settings, GradientGrid.of(settings)
        trained = trained_parameters(job.model, job.trains).values()
        self._parameters = [each for each in trained if each.requires_grad]
        self._optimiser = job.schedule.optimise(self._parameters)
        self._sizes = [each.numel() for each in self._parameters]
        self._at_once = physical_size(self._parameters, job.device, job.schedule.batch_size)
        numbers = sum(self._sizes)
        rows = max(1, _CLIPPED_AT_ONCE.get(job.device.type, 2**17) // max(1, numbers))
        self._buffer = torch.empty(rows, numbers, dtype=torch.float64, device=job.device)
        self._failures: list[str] = []
        self._units = Records(len(job.source)) if job.owners is None else Subjects(job.owners)
        self._recorder = job.recorder
        if self._recorder is not None:
            self._recorder.begin(self._units.number, self._sizes, job.device, job.model)

    def run(self) -> Losses:
        steps = self._settings.steps(self._job.epochs)
        last_epoch = steps - self._settings.steps(1)
        last = torch.zeros(4, dtype=torch.float64, device=self._job.device)
        for number in range(steps):
            found = self._step()
            if number >= last_epoch:
                last += found
        self._warn_of_failures()
        if not all(bool(each.isfinite().all()) for each in self._parameters):
            raise TrainingError(
                f"training by DP-SGD has diverged; lower the learning rate (now {self._job.schedule.lr:g}), or "
                f"raise batch_size (now {self._job.schedule.batch_size}), which also divides the noise"
            )
        return Losses(*(last[:3] / last[3].clamp(min=1)).tolist())

    def _step(self) -> Tensor:
        """Take one step; return the sums of its records' losses and the number of records with losses: (4,)."""
        sample = poisson_sample(self._units.number, self._settings.sampling_rate)
        if self._recorder is not None:
            self._recorder.sample(sample)
        chosen = self._units.records(sample)
        total = torch.zeros(sum(self._sizes), dtype=torch.float64, device=self._job.device)
        sums = torch.zeros(4, dtype=torch.float64, device=self._job.device)
        for group in split(chosen, self._at_once):
            sums += self._add(total, group)
        self._set_gradients(total)
        self._record_noise()
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        return sums

    def _add(self, total: Tensor, group: list[int]) -> Tensor:
        """Add the clipped gradients of a batch in whole steps, exactly: sums stay far below 2^53."""
        given, terms = self._gradients(group)
        for first in range(0, len(group), len(self._buffer)):
            rows = self._flat(given, first, min(first + len(self._buffer), len(group)))
            clipped = self._grid.clip_(self._units.joined(rows))
            total += clipped.sum(dim=0)
            if self._recorder is not None:
                self._recorder.clip(clipped)
        return _summed(terms)

    def _gradients(self, group: list[int]) -> tuple[_Gradients, Sequence[Tensor]]:
        """Return each record's gradients and terms, (B, …) and (B,); zeros and NaN for a record that fails.

        A batch in which records fail is computed again without these, so that a record changes no gradient but its own.
        """
        parts, order = isolate_failures(
            group,
            lambda part: self._computed(part, self._at_once),
            probe=lambda part: self._computed(part, len(part)),
            fallback=self._zeros,
        )
        return parts[0] if len(parts) == 1 else _joined(parts, order, self._parameters)

    def _warn_of_failures(self) -> None:
        if self._failures:
            _log.warning(
                "training by DP-SGD counted a record as zeros %d times, which could not be read or which the model "
                "failed on, the first time for: %s",
                *(len(self._failures), self._failures[0]),
            )

    def _zeros(self, _: int, error: BaseException) -> tuple[_Gradients, Sequence[Tensor]]:
        self._failures.append(str(error))
        return [None] * len(self._parameters), (torch.full((1,), math.nan, device=self._job.device),) * 3

    def _computed(self, group: Sequence[int], size: int) -> tuple[_Gradients, Sequence[Tensor]]:
        """Return the gradients (``size``, …) and terms (B,) of a batch that is padded to ``size``."""
        job, count = self._job, len(group)
        try:
            ((inputs, labels),) = job.source.batches([group])
            inputs, labels = filled(inputs, size), filled(labels, size)
            terms = sample_terms(job.objective, outputs_of(job.model, inputs), labels, job.guide)
            torch.autograd.backward(terms.total.sum())
            return take_gradients(job.model, self._parameters), [each[:count] for each in terms]
        except BaseException:
            clear_gradients(job.model, self._parameters)
            raise

    def _flat(self, given: _Gradients, first: int, last: int) -> Tensor:
        """Return some records' gradients, float64 (B, P), valid until the next; unused parameters have zeros."""
        rows = self._buffer[: last - first]
        for part, each in zip(torch.split(rows, self._sizes, dim=1), given, strict=True):
            if each is None:
                part.zero_()
            else:
                part.copy_(each[first:last].flatten(1))
        return rows

    def _set_gradients(self, total: Tensor) -> None:
        noise = torch.from_numpy(draw_noise(len(total))).to(total.device)
        parts = torch.split((total + noise) * self._unit, self._sizes)
        for parameter, part in zip(self._parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter).to(parameter.dtype)

    def _record_noise(self) -> None:
        """Record the noise of what the optimiser is about to get: it is read back from the parameters."""
        if self._recorder is None:
            return
        given = [torch.zeros_like(each) if each.grad is None else each.grad for each in self._parameters]
        self._recorder.noise(torch.cat([each.flatten().double() for each in given]) / self._unit)

    @property
    def _unit(self) -> float:
        """Gradient of one step of the grid, as the optimiser gets it."""
        return self._grid.step / self._job.schedule.batch_size


def physical_size(parameters: Sequence[nn.Parameter], device: torch.device, expected: int) -> int:
    """Return the size of a physical batch, for samples of any size.

    Whole batches hold ``expected`` records, the agreed batch size, and two standard deviations more; the number is a
    multiple of 8, or of a power of two where there is no room for that. It depends on nothing of a site's own.
    """
    record = max(1, sum(each.numel() * each.element_size() for each in parameters))
    most = max(1, min(_MOST_AT_ONCE.get(device.type, 128), _MOST_BYTES.get(device.type, 2**25) // record))
    multiple = min(_MULTIPLE, 1 << (most.bit_length() - 1))
    usual = expected + math.isqrt(4 * expected)
    size = math.ceil(usual / math.ceil(usual / (most - most % multiple)))
    return size + -size % multiple


def filled(rows: Tensor, size: int) -> Tensor:
    """Pad ``rows`` (B, …), 1 ≤ B ≤ size, with copies of the first to (size, …); callers drop the copies' results."""
    return torch.cat([rows, rows[:1].expand(size - len(rows), *rows.shape[1:])])


def _joined(
    parts: Sequence[tuple[_Gradients, Sequence[Tensor]]], order: Tensor, parameters: Sequence[nn.Parameter]
) -> tuple[_Gradients, Sequence[Tensor]]:
    """Put the gradients and terms of a batch's parts together, in this order of records, (B, …) and (B,)."""
    joined = [torch.cat(rows)[order] for rows in zip(*(terms for _, terms in parts), strict=True)]
    counts = [len(terms[0]) for _, terms in parts]
    gradients: _Gradients = []
    for parameter, given in zip(parameters, zip(*(rows for rows, _ in parts), strict=True), strict=True):
        rows = [
            parameter.new_zeros(count, *parameter.shape) if part is None else part[:count]
            for part, count in zip(given, counts, strict=True)
        ]
        gradients.append(torch.cat(rows)[order])
    return gradients, joined


def _summed(terms: Sequence[Tensor]) -> Tensor:
    """Return the sums of the records' finite losses, and the number of these records: (4,)."""
    rows = torch.stack([each.detach().double() for each in terms])
    finite = rows.isfinite().all(0)
    return torch.cat([torch.where(finite, rows, 0.0).sum(1), finite.sum(dtype=torch.float64).view(1)])
