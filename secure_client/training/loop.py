"""Training loop of one model on one site's data: epochs of batches, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from secure_client.models.prototype_model import outputs_of
from secure_client.training.batches import split
from secure_client.training.job import Job, Losses, check_finite, has_batch_norm, seeded, trained_parameters


def run(job: Job) -> Losses:
    """Train the job's model, in place. Raises ``TrainingError`` when the loss is not finite."""
    if job.dp_sgd is not None:
        from secure_client.training.dp_sgd.steps import run_privately  # noqa: PLC0415 (Opacus takes a second)

        return run_privately(job, job.dp_sgd)
    trained = trained_parameters(job.model, job.trains)
    optimiser = job.schedule.optimise(trained.values())
    job.model.train()
    with _only(job.model, trained), seeded(job.device, job.seed):
        for _ in range(job.epochs):
            losses = _epoch(job, optimiser, trained)
            check_finite(losses, job.schedule.lr)
    optimiser.zero_grad(set_to_none=True)  # other models of the process stay in eval mode
    return losses


def _epoch(job: Job, optimiser: torch.optim.Optimizer, trained: Mapping[str, nn.Parameter]) -> Losses:
    """Train one epoch; losses stay on the device until its end."""
    order = torch.randperm(len(job.source)).tolist()
    groups = split(order, job.schedule.batch_size, join_single=has_batch_norm(job.model))
    sums = torch.zeros(3, device=job.device)
    for inputs, labels in job.source.batches(groups):
        terms = job.objective(outputs_of(job.model, inputs), labels, job.guide)
        optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(terms.total)
        _pull(trained, job)
        optimiser.step()
        sums += torch.stack(terms).detach()
    return Losses(*(sums / len(groups)).tolist())


def _pull(trained: Mapping[str, nn.Parameter], job: Job) -> None:
    """Add the gradient of μ/2·‖w − anchor‖²."""
    if not job.proximal:
        return
    for name, each in trained.items():
        if each.grad is not None:
            each.grad.add_(each.detach() - job.anchor[name], alpha=job.proximal)


@contextmanager
def _only(model: nn.Module, trained: Mapping[str, nn.Parameter]) -> Iterator[None]:
    """Disable gradients for parameters that stay fixed."""
    still = [each for name, each in model.named_parameters() if each.requires_grad and name not in trained]
    for each in still:
        each.requires_grad_(False)
    try:
        yield
    finally:
        for each in still:
            each.requires_grad_(True)
