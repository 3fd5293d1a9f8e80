"""Jobs with augmentation, a decaying learning rate and kept optimiser state, beside a plain loop of torch's own."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from secure_client.errors import TrainingError
from secure_client.models.prototype_model import PrototypeModel, compute_outputs
from secure_client.training.augmentation import Augmentation
from secure_client.training.batches import TensorSource, split_batches
from secure_client.training.job import Job, OptimiserState, Schedule
from secure_client.training.loop import run_job
from tests.secure_client.jobs import ADAM, SCHEDULE, jobs_of, model_of

AUGMENTATION = Augmentation(padding=2, flips=True, black=(-1.0,))
ROUNDS, DECAY = 3, 0.5


def rounds_of(job: Job, *, augmentation: Augmentation | None) -> list[Job]:
    """Return the job of each round: its own seed, and half of the learning rate of the round before."""
    return [
        replace(
            job,
            seed=100 + number,
            augmentation=augmentation,
            schedule=replace(job.schedule, lr=job.schedule.lr * DECAY**number),
        )
        for number in range(ROUNDS)
    ]


def torch_optimiser(model: nn.Module, schedule: Schedule) -> torch.optim.Optimizer:
    if schedule.optimiser is ADAM.optimiser:
        return torch.optim.Adam(model.parameters(), schedule.lr, weight_decay=schedule.weight_decay)
    return torch.optim.SGD(
        model.parameters(), schedule.lr, schedule.momentum, weight_decay=schedule.weight_decay
    )


def run_plainly(job: Job, model: PrototypeModel, optimiser: torch.optim.Optimizer) -> None:
    """Train as a script would, with the job's order and draws."""
    assert isinstance(job.source, TensorSource)
    inputs, labels = job.source.tensors
    model.train()
    optimiser.param_groups[0]["lr"] = job.schedule.lr
    torch.manual_seed(job.seed)
    generator = AUGMENTATION.generator(job.seed)
    for _ in range(job.epochs):
        order = torch.randperm(len(labels))
        images = inputs[order]
        if job.augmentation is not None:
            images = AUGMENTATION.apply(images, AUGMENTATION.draw(len(labels), generator))
        for batch in split_batches(range(len(labels)), job.schedule.batch_size):
            outputs = compute_outputs(model, images[batch])
            optimiser.zero_grad()
            torch.autograd.backward(job.objective(outputs, labels[order][batch], job.guide).total)
            optimiser.step()


def assert_equal(ours: nn.Module, theirs: nn.Module) -> None:
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name


@pytest.mark.parametrize("schedule", [SCHEDULE, ADAM, replace(SCHEDULE, momentum=0.0)])
@pytest.mark.parametrize("augmentation", [AUGMENTATION, None])
def test_run_job_with_kept_state_equals_one_optimiser_of_torch_over_rounds(
    schedule: Schedule, augmentation: Augmentation | None
) -> None:
    job = jobs_of(model_of(), schedule=schedule)[0]
    model = copy.deepcopy(job.model)
    state: OptimiserState = {}
    optimiser = torch_optimiser(model, schedule)
    for round_job in rounds_of(job, augmentation=augmentation):
        run_job(replace(round_job, optimiser_state=state))
        run_plainly(round_job, model, optimiser)
        assert_equal(job.model, model)


@pytest.mark.parametrize("schedule", [SCHEDULE, ADAM])
def test_run_job_without_kept_state_equals_a_fresh_optimiser_in_each_round(schedule: Schedule) -> None:
    job = jobs_of(model_of(), schedule=schedule)[0]
    model = copy.deepcopy(job.model)
    for round_job in rounds_of(job, augmentation=AUGMENTATION):
        run_job(round_job)
        run_plainly(round_job, model, torch_optimiser(model, schedule))
        assert_equal(job.model, model)


def test_run_job_that_diverges_leaves_the_optimiser_state() -> None:
    job = jobs_of(model_of())[0]
    state: OptimiserState = {}
    run_job(replace(job, optimiser_state=state))
    before = copy.deepcopy(dict(state))
    with pytest.raises(TrainingError):
        run_job(replace(job, optimiser_state=state, schedule=replace(SCHEDULE, lr=1e200)))
    assert before
    for name, values in before.items():
        assert all(torch.equal(state[name][key], value) for key, value in values.items())


def test_run_job_with_augmentation_leaves_the_order_of_batches() -> None:
    """Without padding and flips an image stays as it is, so that a difference shows another order."""
    still = Augmentation(0, flips=False, black=(0.0,))
    plain = jobs_of(model_of())[0]
    augmented = replace(plain, model=copy.deepcopy(plain.model), augmentation=still)
    run_job(plain)
    run_job(augmented)
    assert_equal(augmented.model, plain.model)
