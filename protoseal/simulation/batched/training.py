"""Several sites' training of one architecture as one batched program, with the one-by-one loop's results.

Sites train independently, so steps of different sites may have any order: in each epoch first the full batches, one of
each site at a time, then the sites' short last batches. See :mod:`protoseal.simulation.batched.network` for the
network.

The number of sites in a program affects the rounding of its sums. A run that was killed in a round and then trains only
the remaining sites therefore gives the same results up to rounding; training one by one gives them bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import StrEnum

import torch

from protoseal.simulation.batched.feed import batches_of_job
from protoseal.simulation.batched.flat_models import CannotStack
from protoseal.simulation.batched.network import signature
from protoseal.simulation.batched.program import Program, guide_tensors
from secure_client.training.batches import TensorSource
from secure_client.training.job import Job, Losses
from secure_client.training.loop import run_job

CACHE_BYTES, MOST_ON_CPU = 2**25, 10
"""Limits on a CPU: numbers of parameters, gradients and momentum of sites that train together, and of these sites."""
GPU_BYTES = 2**33
"""Limit on a GPU: number of parameters, gradients and momentum of sites that train together."""


class Batching(StrEnum):
    """Batching of sites into one program: where it is faster, where it is possible, or never."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


def run_together(
    jobs: Sequence[Job], batching: Batching = Batching.AUTO, *, at_once: int | None = None
) -> list[Losses]:
    """Train each job's model in place, as :func:`secure_client.training.loop.run_job` would; give its losses in order.

    The jobs are of different models, such as different sites' first stages of one round. Those with the same
    architecture, schedule, stage, loss, device and kind of guide train as one program, at most ``at_once`` of them, and
    on a CPU as many programs side by side as torch has threads, each with one thread. The others train one by one:
    models with dropout or with layers that :mod:`protoseal.simulation.batched.network` does not support, data that are
    not a pair of tensors, and training by DP-SGD. Results are equal up to the order of sums in floating point.

    Raises :class:`secure_client.errors.TrainingError` when a loss is not finite, ``ValueError`` when two jobs have one
    model. After an error some models are unchanged and others are trained.
    """
    if len({id(job.model) for job in jobs}) < len(jobs):
        raise ValueError("two jobs of one model cannot run together: run one after the other")
    if batching is Batching.NEVER:
        return [run_job(job) for job in jobs]
    losses: dict[int, Losses] = {}
    groups = [(group, [jobs[number] for number in group]) for group in _groups(jobs, batching, at_once)]
    losses_by_group = _side_by_side([group_jobs for _, group_jobs in groups])
    for (numbers, group_jobs), stacked in zip(groups, losses_by_group, strict=True):
        losses.update(zip(numbers, stacked or [run_job(job) for job in group_jobs], strict=True))
    return [losses[number] for number in range(len(jobs))]


def sites_at_once(job: Job, batching: Batching = Batching.AUTO) -> int:
    """Return the number of sites that train as one program.

    On a GPU the memory limits the number. On a CPU a step is faster only while the data that the optimiser reads and
    writes stay in the cache, so networks of about 1.4 million parameters or more train one by one there
    (docs/adr/0011); ``always`` takes two of these at a time.
    """
    parameters = sum(value.numel() * value.element_size() for value in job.model.parameters())
    with_gradient_and_momentum = 3 * max(1, parameters)
    if job.device.type != "cpu":
        return max(1, GPU_BYTES // with_gradient_and_momentum)
    fitting = min(MOST_ON_CPU, CACHE_BYTES // with_gradient_and_momentum)
    return max(2 if batching is Batching.ALWAYS else 1, fitting)


def _groups(jobs: Sequence[Job], batching: Batching, at_once: int | None) -> Iterator[list[int]]:
    """Yield the jobs' numbers, those that train as one program in one list."""
    alike: dict[object, list[int]] = {}
    for number, job in enumerate(jobs):
        alike.setdefault(_kind(job, number), []).append(number)
    for numbers in alike.values():
        first = jobs[numbers[0]]
        limit = at_once or sites_at_once(first, batching)
        programs, sides = -(-len(numbers) // limit), _threads(first)
        size = -(-len(numbers) // (-(-programs // sides) * sides))  # every thread has work
        ordered = sorted(numbers, key=lambda number: batches_of_job(jobs[number]), reverse=True)
        yield from (ordered[start : start + size] for start in range(0, len(ordered), size))


def _threads(job: Job) -> int:
    return torch.get_num_threads() if job.device.type == "cpu" else 1


def _side_by_side(groups: Sequence[list[Job]]) -> list[list[Losses] | None]:
    """Return each group's losses; None for a group that must train one by one, which uses torch's generator."""
    # Small matrices gain nothing from several threads each, so that programs take one thread each, side by side.
    threads = min([len(groups), *(_threads(jobs[0]) for jobs in groups)], default=1)
    if threads < 2:
        return [_as_one(jobs) if len(jobs) > 1 else None for jobs in groups]
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(_as_one, groups))
    finally:
        torch.set_num_threads(before)  # the setting also applies to threads that start later


def _as_one(jobs: list[Job]) -> list[Losses] | None:
    with suppress(CannotStack):  # raised before or in the first step, which changes only copies
        program = Program(jobs)
        program.start(jobs)
        program.run_epochs()
        return program.finish()
    return None


def _kind(job: Job, number: int) -> object:
    """Return a key that is equal for jobs that can be stacked; other jobs get a unique key."""
    if not isinstance(job.source, TensorSource) or job.dp_sgd is not None:
        return number
    try:
        architecture = signature(job.model)
    except CannotStack:
        return number
    inputs, labels = job.source.tensors
    tensors = [inputs[0], labels[0], *guide_tensors(job.guide)]
    return (
        architecture,
        job.objective,
        job.schedule,
        job.epochs,
        job.trains,
        job.device,
        job.proximal,
        job.augmentation,
        type(job.guide),
        tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors),
    )
