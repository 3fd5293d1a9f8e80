"""Training loop of one model on one site's data: epochs of batches, one after the other.

Every step is taken, whatever happens in it: an infinite loss ends no epoch, and a step that raises is skipped. Only
then does a failure show. Otherwise the time that training takes would tell the coordinator how training went. Limit: a
skipped step is shorter than the others.

Arithmetic on denormal numbers takes many times longer than on others, so a site's process flushes them to zero
(:func:`flush_denormals`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from traceback import clear_frames

import torch
from torch import Tensor, nn

from secure_client.error_containment import reraise_fatal
from secure_client.models.prototype_model import compute_outputs
from secure_client.training.batches import split_batches
from secure_client.training.job import (
    Job,
    Losses,
    check_finite,
    has_batch_norm,
    seed_generators,
    trained_parameters,
)

_log = logging.getLogger("protoseal.site")


def run_job(job: Job) -> Losses:
    """Train the job's model, in place, taking every step.

    Afterwards it raises the first error of a step, or ``TrainingError`` when a loss was not finite.
    """
    if job.dp_sgd is not None:
        from secure_client.training.dp_sgd.steps import run_private_steps  # noqa: PLC0415 (Opacus takes a second)

        return run_private_steps(job, job.dp_sgd)
    trained = trained_parameters(job.model, job.trains)
    training = _Training(job, trained)
    job.model.train()
    with _train_only(job.model, trained), seed_generators(job.device, job.seed):
        epochs = [training.epoch() for _ in range(job.epochs)]
    # Only now: an error raised at its step would end training early, and the coordinator would see the shorter time.
    training.end()
    check_finite(epochs, job.schedule.lr)
    training.keep_optimiser_state()
    return epochs[-1]


class _Training:
    """Steps of one job, and the first error in any of them."""

    def __init__(self, job: Job, trained: Mapping[str, nn.Parameter]) -> None:
        self._job = job
        self._trained = trained
        self._optimiser = job.schedule.optimise(trained.values())
        for name, state in (job.optimiser_state or {}).items():
            # Adam counts steps on the CPU.
            self._optimiser.state[trained[name]] = {
                key: value.to("cpu" if key == "step" else job.device, copy=True)
                for key, value in state.items()
            }
        self._generator = None if job.augmentation is None else job.augmentation.generator(job.seed)
        self._error: BaseException | None = None

    def epoch(self) -> Losses:
        """Train one epoch; losses stay on the device until its end."""
        job = self._job
        # Drawn inside `seed_generators`: a site that is restarted repeats the round's order, and so its result.
        order = torch.randperm(len(job.source)).tolist()
        groups = split_batches(order, job.schedule.batch_size, join_single=has_batch_norm(job.model))
        draws = self._draw([len(group) for group in groups])
        sums = torch.zeros(3, device=job.device)
        for group, batch_draws in zip(groups, draws, strict=True):
            try:
                sums += self._step(group, batch_draws)
            except BaseException as error:
                reraise_fatal(error)
                if self._error is None:
                    clear_frames(error.__traceback__)  # the failed step's tensors
                    self._error = error
        return Losses(*(sums / len(groups)).tolist())

    def end(self) -> None:
        """Drop the gradients; raise the first error of a step."""
        self._optimiser.zero_grad(set_to_none=True)  # other models of the process stay in eval mode
        if self._error is not None:
            raise self._error

    def keep_optimiser_state(self) -> None:
        """Replace the content of the job's optimiser state, if it has one."""
        if self._job.optimiser_state is not None:
            states = self._optimiser.state
            self._job.optimiser_state.update({name: states[value] for name, value in self._trained.items()})

    def _draw(self, sizes: Sequence[int]) -> Sequence[Tensor | None]:
        """Return an epoch's draws of the augmentation for each batch, on the device; None without augmentation."""
        if self._job.augmentation is None or self._generator is None:
            return [None] * len(sizes)
        draws = self._job.augmentation.draw(sum(sizes), self._generator)
        return torch.split(draws.to(self._job.device), list(sizes))

    def _step(self, group: Sequence[int], draws: Tensor | None) -> Tensor:
        """Take one step; return the batch's terms (3,)."""
        job = self._job
        # One batch at a time, because a source that fails in one batch could not yield the next.
        ((inputs, labels),) = job.source.batches([group])
        if job.augmentation is not None and draws is not None:
            inputs = job.augmentation.apply(inputs, draws)
        terms = job.objective(compute_outputs(job.model, inputs), labels, job.guide)
        self._optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(terms.total)
        if job.proximal:  # the gradient of μ/2·‖w − anchor‖² (FedProx, and Ditto's personal model)
            for name, parameter in self._trained.items():
                if parameter.grad is not None:
                    parameter.grad.add_(parameter.detach() - job.anchor[name], alpha=job.proximal)
        self._optimiser.step()
        return torch.stack(terms).detach()


@contextmanager
def flush_denormals() -> Iterator[None]:
    """Flush denormal numbers to zero inside the ``with`` block, in this thread and in threads that it starts there.

    Enter the block before the process computes with torch for the first time, because torch keeps its threads. Limit:
    on a processor without this setting, which the log names, the time of training depends on how small numbers are.
    """
    if not torch.set_flush_denormal(True):
        _log.warning(
            "this processor cannot flush denormal numbers to zero, so the time of training depends on the data"
        )
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextmanager
def _train_only(model: nn.Module, trained: Mapping[str, nn.Parameter]) -> Iterator[None]:
    # Not only left out of the optimiser: backward passes then skip the extractor in a stage of the classifier alone.
    still = [
        parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and name not in trained
    ]
    for parameter in still:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in still:
            parameter.requires_grad_(True)
