"""Steps of local training by DP-SGD, whose mechanism is in :mod:`secure_client.training.dp_sgd.mechanism`.

Samples and noise are from the operating system's entropy, never from a seed of the run. The divisor is the agreed batch
size: the expected size of a sample would reveal the number of records. An empty sample also takes its noisy step. A
record that cannot be read, or on which the model fails, has a gradient of zeros.

Physical batches have one size, which follows from the agreement and the model; the last batch is padded. A record's
gradient in float32 is then the same to the last bit whatever other records there are, on the CPU that was tried
(``tests/secure_client/training/dp_sgd/test_per_sample_gradients.py``).

Limits. GPUs were not examined. The duration of a step reveals the number of its records, and of those on which a
plug-in's model raises: a batch with k of them is computed k + 2 times, and its records some 1 + k/3 times more, without
padding (:func:`secure_client.training.batches.isolate_failures`).
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from agreement import DpSgdSection
from secure_client.errors import ModelError, TrainingError
from secure_client.models.prototype_model import compute_outputs
from secure_client.training.batches import isolate_failures, split_batches
from secure_client.training.dp_sgd.mechanism import (
    GradientGrid,
    RecordUnits,
    SubjectUnits,
    draw_noise,
    poisson_sample,
)
from secure_client.training.dp_sgd.per_sample_gradients import (
    clear_gradients,
    compute_sample_terms,
    store_gradients,
    take_gradients,
)
from secure_client.training.job import Job, Losses, seed_generators, trained_parameters

_log = logging.getLogger("protoseal.site")
_Gradients = list[Tensor | None]
"""Gradients of single records for each parameter, (B, …); None for an unused parameter."""
_MOST_BYTES = {"cpu": 2**25, "cuda": 2**32}
"""Largest number of bytes of single records' gradients in memory at a time."""
_MOST_AT_ONCE = {"cpu": 128, "cuda": 512}
"""Number of records: on a CPU larger batches were no faster for ``tanh-cnn``, and the last batch has more padding."""
_MULTIPLE = 8
"""Divisor of physical batches: with two threads the last of five or six records was seen to round differently."""
_CLIPPED_AT_ONCE = {"cpu": 2**17, "cuda": 2**26}
"""Number of gradient values that are clipped together, so that a CPU keeps them in its cache."""


def run_private_steps(job: Job, settings: DpSgdSection) -> Losses:
    """Train the job's model in place; the caller must have paid for the steps.

    Losses are exact means over the records of the last epoch's steps and must stay at the site. Raises
    :class:`TrainingError` if the parameters are not finite afterwards.
    """
    # The term's gradient would be added after the noise, and its weight is not in what the accountant was told.
    if job.proximal:
        raise ModelError("DP-SGD is accounted for without a proximal term")
    training = _Training(job, settings)
    job.model.train()
    try:
        # The job's seed is public and so not used: dropout must not be a function of a record's place in a batch.
        with store_gradients(job.model), seed_generators(job.device, secrets.randbits(63)):
            return training.run()
    finally:
        if job.recorder is not None:
            job.recorder.end()


class _Training:
    """Steps of one job."""

    def __init__(self, job: Job, settings: DpSgdSection) -> None:
        self._job = job
        self._settings = settings
        self._grid = GradientGrid.from_settings(settings)
        trained = trained_parameters(job.model, job.trains).values()
        self._parameters = [parameter for parameter in trained if parameter.requires_grad]
        self._optimiser = job.schedule.optimise(self._parameters)
        self._sizes = [parameter.numel() for parameter in self._parameters]
        self._batch_size = physical_size(self._parameters, job.device, job.schedule.batch_size)
        numbers = sum(self._sizes)
        rows = max(1, _CLIPPED_AT_ONCE.get(job.device.type, 2**17) // max(1, numbers))
        self._buffer = torch.empty(rows, numbers, dtype=torch.float64, device=job.device)
        self._failures: list[str] = []
        self._units = RecordUnits(len(job.source)) if job.owners is None else SubjectUnits(job.owners)
        if job.recorder is not None:
            job.recorder.begin(self._units.count, self._sizes, job.device, job.model)

    def run(self) -> Losses:
        """Take all steps; return the losses of the last epoch."""
        steps = self._settings.steps(self._job.epochs)
        last_epoch = steps - self._settings.steps(1)
        last = torch.zeros(4, dtype=torch.float64, device=self._job.device)
        for number in range(steps):
            sums = self._step()
            if number >= last_epoch:
                last += sums
        if self._failures:
            _log.warning(
                "training by DP-SGD counted a record as zeros %d times, which could not be read or which the model "
                "failed on, the first time for: %s",
                len(self._failures),
                self._failures[0],
            )
        # Only after all steps: a run that ended at its first infinite number would show by its time that it diverged.
        if not all(bool(parameter.isfinite().all()) for parameter in self._parameters):
            raise TrainingError(
                f"training by DP-SGD has diverged; lower the learning rate (now {self._job.schedule.lr:g}), or "
                f"raise batch_size (now {self._job.schedule.batch_size}), which also divides the noise"
            )
        return Losses(*(last[:3] / last[3].clamp(min=1)).tolist())

    def _step(self) -> Tensor:
        """Take one step; return the sums of its records' losses and the number of records with losses: (4,)."""
        # Abadi et al. 2016, algorithm 1: sample, clip each unit's gradient, add noise to the sum, descend. The batches
        # below only bound memory: clip and noise are those of the whole sample.
        recorder = self._job.recorder
        sample = poisson_sample(self._units.count, self._settings.sampling_rate)
        if recorder is not None:
            recorder.sample(sample)
        records = self._units.begin_step(sample)
        total = torch.zeros(sum(self._sizes), dtype=torch.float64, device=self._job.device)
        losses = torch.zeros(4, dtype=torch.float64, device=self._job.device)
        for batch in split_batches(records, self._batch_size):
            gradients, terms = self._record_gradients(batch)
            self._add_clipped(total, gradients, len(batch))
            losses += _sum_losses(terms)
        # An empty sample takes its step too: the accountant counts steps, and a missing one would show an empty sample.
        self._set_gradients(total)
        if recorder is not None:  # what the optimiser is about to get is read back from the parameters
            noisy = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
            recorder.noise(torch.cat([gradient.flatten().double() for gradient in noisy]) / self._grid_unit)
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        return losses

    def _add_clipped(self, total: Tensor, gradients: _Gradients, records: int) -> None:
        """Add the clipped gradients of a batch in whole steps, exactly: sums stay far below 2^53."""
        for first in range(0, records, len(self._buffer)):
            rows = self._flatten(gradients, first, min(first + len(self._buffer), records))
            # Clipped before the sum: afterwards a long gradient could no longer be told from many short ones, and one
            # unit would change the sum by more than the noise was chosen for. A subject's mean is clipped, not its
            # records' gradients, of which a subject can have any number.
            clipped = self._grid.clip_(self._units.combine(rows))
            total += clipped.sum(dim=0)
            if self._job.recorder is not None:
                self._job.recorder.clip(clipped)

    def _record_gradients(self, batch: list[int]) -> tuple[_Gradients, Sequence[Tensor]]:
        """Return each record's gradients and terms, (B, …) and (B,); zeros and NaN for a record that fails.

        A batch in which records fail is computed again without these, so that a record changes no gradient but its own.
        """
        parts, order = isolate_failures(
            batch,
            lambda part: self._compute(part, self._batch_size),
            probe=lambda part: self._compute(part, len(part)),
            fallback=self._failed_record,
        )
        return parts[0] if len(parts) == 1 else _concatenate(parts, order, self._parameters)

    def _failed_record(self, _: int, error: BaseException) -> tuple[_Gradients, Sequence[Tensor]]:
        # Zeros keep the sensitivity: a record that fails changes its own term of the sum alone.
        self._failures.append(str(error))
        return [None] * len(self._parameters), (torch.full((1,), math.nan, device=self._job.device),) * 3

    def _compute(self, batch: Sequence[int], size: int) -> tuple[_Gradients, Sequence[Tensor]]:
        """Return the gradients (``size``, …) and terms (B,) of a batch that is padded to ``size``."""
        job, count = self._job, len(batch)
        try:
            ((inputs, labels),) = job.source.batches([batch])
            inputs, labels = pad(inputs, size), pad(labels, size)
            terms = compute_sample_terms(job.objective, compute_outputs(job.model, inputs), labels, job.guide)
            torch.autograd.backward(terms.total.sum())
            return take_gradients(job.model, self._parameters), [term[:count] for term in terms]
        except BaseException:
            # What Opacus stored of a half-done pass would be paired with the records of the next one.
            clear_gradients(job.model, self._parameters)
            raise

    def _flatten(self, gradients: _Gradients, first: int, last: int) -> Tensor:
        """Return some records' gradients, float64 (B, P), valid until the next; unused parameters have zeros."""
        rows = self._buffer[: last - first]
        for part, gradient in zip(torch.split(rows, self._sizes, dim=1), gradients, strict=True):
            if gradient is None:
                part.zero_()
            else:
                part.copy_(gradient[first:last].flatten(1))
        return rows

    def _set_gradients(self, total: Tensor) -> None:
        """Give the parameters the noisy mean of a step's sum (P,), as the optimiser reads it."""
        # Noise once a step, on the sum: a share in each physical batch would add up to another deviation.
        noise = torch.from_numpy(draw_noise(len(total))).to(total.device)
        parts = torch.split((total + noise) * self._grid_unit, self._sizes)
        for parameter, part in zip(self._parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter).to(parameter.dtype)

    @property
    def _grid_unit(self) -> float:
        """Gradient of one step of the grid, as the optimiser gets it."""
        # By the agreed batch size, not by the sample's: the size of a Poisson sample depends on the number of records.
        return self._grid.step / self._job.schedule.batch_size


def physical_size(parameters: Sequence[nn.Parameter], device: torch.device, expected: int) -> int:
    """Return the size of a physical batch, for samples of any size.

    Whole batches hold ``expected`` records, the agreed batch size, and two standard deviations more; the number is a
    multiple of 8, or of a power of two where there is no room for that. It depends on nothing of a site's own.
    """
    record = max(1, sum(parameter.numel() * parameter.element_size() for parameter in parameters))
    largest = max(1, min(_MOST_AT_ONCE.get(device.type, 128), _MOST_BYTES.get(device.type, 2**25) // record))
    multiple = min(_MULTIPLE, 1 << (largest.bit_length() - 1))
    usual = expected + math.isqrt(4 * expected)
    size = math.ceil(usual / math.ceil(usual / (largest - largest % multiple)))
    return size + -size % multiple


def pad(rows: Tensor, size: int) -> Tensor:
    """Pad ``rows`` (B, …), 1 ≤ B ≤ size, with copies of the first to (size, …); callers drop the copies' results."""
    return torch.cat([rows, rows[:1].expand(size - len(rows), *rows.shape[1:])])


def _concatenate(
    parts: Sequence[tuple[_Gradients, Sequence[Tensor]]], order: Tensor, parameters: Sequence[nn.Parameter]
) -> tuple[_Gradients, Sequence[Tensor]]:
    """Put the gradients and terms of a batch's parts together, in this order of records, (B, …) and (B,)."""
    joined_terms = [torch.cat(rows)[order] for rows in zip(*(terms for _, terms in parts), strict=True)]
    counts = [len(terms[0]) for _, terms in parts]
    gradients: _Gradients = []
    for parameter, gradients_of_parts in zip(
        parameters, zip(*(rows for rows, _ in parts), strict=True), strict=True
    ):
        rows = [
            parameter.new_zeros(count, *parameter.shape) if part is None else part[:count]
            for part, count in zip(gradients_of_parts, counts, strict=True)
        ]
        gradients.append(torch.cat(rows)[order])
    return gradients, joined_terms


def _sum_losses(terms: Sequence[Tensor]) -> Tensor:
    """Return the sums of the records' finite losses, and the number of these records: (4,)."""
    # A record that fails has terms of NaN, which would hide the losses of all others.
    rows = torch.stack([term.detach().double() for term in terms])
    finite = rows.isfinite().all(0)
    return torch.cat([torch.where(finite, rows, 0.0).sum(1), finite.sum(dtype=torch.float64).view(1)])
