"""Several sites' training of one architecture as one batched program, with the one-by-one loop's results.

Small networks are stacked on every device. On a CUDA device larger ones train side by side in streams, and steps are
replayed as graphs. See :mod:`protoseal.simulation.batched.program` for a program.

The number of sites in a program affects the rounding of its sums. A run that was killed in a round and then trains only
the remaining sites therefore gives the same results up to rounding; training one by one gives them bit for bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from functools import partial

import torch
from torch import nn

from algorithms.prototypes import Clusters
from protoseal.simulation.batched.feed import batches_of_job
from protoseal.simulation.batched.flat_models import CannotStack
from protoseal.simulation.batched.network import signature
from protoseal.simulation.batched.precision import Precision, allow_tf32
from protoseal.simulation.batched.program import Program, guide_tensors
from secure_client.training.batches import TensorSource
from secure_client.training.job import Job, Losses
from secure_client.training.loop import run_job

CACHE_BYTES, MOST_ON_CPU = 2**25, 10
"""Limits on a CPU: numbers of parameters, gradients and momentum of sites that train together, and of these sites."""
GPU_BYTES = 2**33
"""Limit on other devices than CPUs and CUDA's, which have half of their memory: the same numbers."""
ALONE_ON_GPU, STREAMS = 2_000_000, 4
"""Number of parameters from which on each site has a program of its own on a CUDA device, and streams of programs.

Smaller networks leave the device idle unless they are stacked. Grouped convolutions of larger ones are slower than the
sites' own convolutions side by side (docs/adr/0011).
"""

KEPT_CALLS = 4
"""Calls for which an unused program is kept: two rounds of two stages each."""


class Batching(StrEnum):
    """Batching of sites into one program: where it is faster, where it is possible, or never."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class KeptPrograms:
    """Programs on a CUDA device that later rounds use again, since graphs take time to capture.

    Those used in the last calls are kept, while all their numbers fit half of the device's memory. Programs with
    clusters are not: the number of clusters, and with it the graph, is another in each round.
    """

    def __init__(self) -> None:
        self._programs: dict[object, Program] = {}
        self._calls: list[set[object]] = [set()]
        self._streams: dict[torch.device, list[torch.cuda.Stream]] = {}

    def begin_call(self) -> None:
        """Begin a call: drop the programs that none of the last :data:`KEPT_CALLS` calls used."""
        used = set[object]().union(*self._calls)
        self._programs = {key: program for key, program in self._programs.items() if key in used}
        self._calls = [*self._calls[1 - KEPT_CALLS :], set()]

    def drop(self, key: object) -> None:
        """Drop the program of this key, which failed, if it is kept."""
        self._programs.pop(key, None)

    def program(self, key: object, jobs: Sequence[Job], precision: Precision) -> Program:
        """Return the program of this key, or a new one of the jobs; raise :class:`CannotStack` for these."""
        program = self._programs.pop(key, None) or Program(jobs, precision=precision.dtype, graphed=True)
        if isinstance(jobs[0].guide, Clusters):
            return program
        self._programs[key] = program  # now the last one
        self._calls[-1].add(key)
        most = usable_memory(jobs[0].device)
        while len(self._programs) > 1 and sum(kept.bytes for kept in self._programs.values()) > most:
            self._programs.pop(next(iter(self._programs)))
        return program

    def streams(self, device: torch.device) -> list[torch.cuda.Stream]:
        """Return the streams in which programs run side by side, the same ones at each call."""
        if device not in self._streams:
            streams = [torch.cuda.Stream(device) for _ in range(STREAMS)]  # type: ignore[no-untyped-call]
            self._streams[device] = streams
        return self._streams[device]


def run_together(
    jobs: Sequence[Job],
    batching: Batching = Batching.AUTO,
    *,
    at_once: int | None = None,
    precision: Precision = Precision.FLOAT32,
    programs: KeptPrograms | None = None,
) -> list[Losses]:
    """Train each job's model in place, as :func:`secure_client.training.loop.run_job` would; give its losses in order.

    The jobs are of different models, such as different sites' first stages of one round. Those with the same
    architecture, schedule, stage, loss, device and kind of guide train as one program, at most ``at_once`` of them, and
    on a CPU as many programs side by side as torch has threads, each with one thread. On a CUDA device ``programs``
    keeps programs and their graphs for the next call. The others train one by one: models with layers that
    :mod:`protoseal.simulation.batched.network` does not support, data that are not a pair of tensors, and training by
    DP-SGD. Results are equal up to the order of sums in floating point, and to ``precision``, which DP-SGD ignores.

    Raises :class:`secure_client.errors.TrainingError` when a loss is not finite, ``ValueError`` when two jobs have one
    model. After an error some models are unchanged and others are trained.
    """
    if len({id(job.model) for job in jobs}) < len(jobs):
        raise ValueError("two jobs of one model cannot run together: run one after the other")
    with allow_tf32(precision):
        if batching is Batching.NEVER:
            return [run_alone(job, precision) for job in jobs]
        losses: dict[int, Losses] = {}
        groups = list(_groups(jobs, batching, at_once))
        group_jobs = [[jobs[number] for number in group] for group in groups]
        if jobs and all(job.device.type == "cuda" for job in jobs):
            trained = run_in_streams(group_jobs, precision, programs or KeptPrograms())
        else:
            trained = _run_side_by_side(group_jobs, precision)
        for group, members, stacked in zip(groups, group_jobs, trained, strict=True):
            losses.update(zip(group, stacked or [run_alone(job, precision) for job in members], strict=True))
    return [losses[number] for number in range(len(jobs))]


def run_alone(job: Job, precision: Precision) -> Losses:
    """Run the job by itself, with its network in ``precision`` unless it trains by DP-SGD."""
    lower = precision.dtype is not None and job.dp_sgd is None
    # The cache would keep the first step's weights until the end of the job.
    with torch.autocast(job.device.type, precision.dtype, enabled=lower, cache_enabled=False):
        return run_job(job)


def sites_at_once(model: nn.Module, device: torch.device, batching: Batching = Batching.AUTO) -> int:
    """Return the number of sites with such a model that train as one program.

    On a GPU the memory limits the number, and on a CUDA device networks of :data:`ALONE_ON_GPU` parameters or more
    train one by one, each as a graph. On a CPU a step is faster only while the data that the optimiser reads and
    writes stay in the cache, so networks of about 1.4 million parameters or more train one by one there
    (docs/adr/0011); ``always`` takes two of these at a time.
    """
    parameters = sum(value.numel() * value.element_size() for value in model.parameters())
    with_gradient_and_momentum = 3 * max(1, parameters)
    if device.type == "cuda" and sum(value.numel() for value in model.parameters()) >= ALONE_ON_GPU:
        return 1
    if device.type != "cpu":
        return max(1, usable_memory(device) // with_gradient_and_momentum)
    fitting = min(MOST_ON_CPU, CACHE_BYTES // with_gradient_and_momentum)
    return max(2 if batching is Batching.ALWAYS else 1, fitting)


def _groups(jobs: Sequence[Job], batching: Batching, at_once: int | None) -> Iterator[list[int]]:
    """Yield the jobs' numbers, those that train as one program in one list."""
    alike: dict[object, list[int]] = {}
    for number, job in enumerate(jobs):
        kind = _kind(job)
        alike.setdefault(number if kind is None else kind, []).append(number)
    for numbers in alike.values():
        first = jobs[numbers[0]]
        limit = at_once or sites_at_once(first.model, first.device, batching)
        programs, sides = -(-len(numbers) // limit), _threads(first)
        size = -(-len(numbers) // (-(-programs // sides) * sides))  # every thread has work
        ordered = sorted(numbers, key=lambda number: batches_of_job(jobs[number]), reverse=True)
        yield from (ordered[start : start + size] for start in range(0, len(ordered), size))


def _threads(job: Job) -> int:
    return torch.get_num_threads() if job.device.type == "cpu" else 1


def usable_memory(device: torch.device) -> int:
    """Return the number of bytes of a GPU's memory that programs may take."""
    if device.type == "cuda" and torch.cuda.is_available():
        return torch.cuda.mem_get_info(device)[1] // 2
    return GPU_BYTES


def run_in_streams(
    groups: Sequence[list[Job]], precision: Precision, kept: KeptPrograms
) -> list[list[Losses] | None]:
    """Return each group's losses; None for a group that must train one by one."""
    device = groups[0][0].device
    here, streams = torch.cuda.current_stream(device), kept.streams(device)
    kept.begin_call()
    for stream in streams:
        stream.wait_stream(here)
    running: list[Program | None] = []
    numbers: Counter[object] = Counter()
    for jobs in groups:
        # Rounds may differ in their learning rate.
        kind = _kind(replace(jobs[0], schedule=replace(jobs[0].schedule, lr=0.0)))
        alike = kind, len(jobs), precision
        number = numbers[alike]
        numbers[alike] += 1
        key = alike, number
        try:
            # A program keeps to one stream, in which its graphs, which share memory, are replayed in turn.
            with torch.cuda.stream(streams[number % len(streams)]):
                program = kept.program(key, jobs, precision)
                program.start(jobs)
                program.run_epochs()
        except CannotStack:  # raised before or in the first step, which changes only copies
            kept.drop(key)
            running.append(None)
        else:
            running.append(program)
    for stream in streams:
        here.wait_stream(stream)
    return [None if program is None else program.finish() for program in running]


def _run_side_by_side(groups: Sequence[list[Job]], precision: Precision) -> list[list[Losses] | None]:
    """Return each group's losses; None for a group that must train one by one, which uses torch's generator."""
    # Small matrices gain nothing from several threads each, so that programs take one thread each, side by side.
    threads = min([len(groups), *(_threads(jobs[0]) for jobs in groups)], default=1)
    if threads < 2:
        return [_as_one(jobs, precision) if len(jobs) > 1 else None for jobs in groups]
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(partial(_as_one, precision=precision), groups))
    finally:
        torch.set_num_threads(before)  # the setting also applies to threads that start later


def _as_one(jobs: list[Job], precision: Precision) -> list[Losses] | None:
    with suppress(CannotStack):  # raised before or in the first step, which changes only copies
        program = Program(jobs, precision=precision.dtype)
        program.start(jobs)
        program.run_epochs()
        return program.finish()
    return None


def _kind(job: Job) -> object:
    """Return a key that is equal for jobs that can be stacked; None for a job that cannot be."""
    if not isinstance(job.source, TensorSource) or job.dp_sgd is not None:
        return None
    try:
        architecture = signature(job.model)
    except CannotStack:
        return None
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
        inputs[0].stride(),  # masks are drawn in the memory's order
        tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors),
    )
