"""Several sites' training of one architecture as one batched program, with the one-by-one loop's results.

Small networks are stacked on every device. On a CUDA device larger ones train side by side in streams, and steps are
replayed as graphs. See :mod:`protoseal.simulation.batched.program` for a program.

The number of sites in a program affects the rounding of its sums. A run that was killed in a round and then trains only
the remaining sites therefore gives the same results up to rounding; training one by one gives them bit for bit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from enum import StrEnum
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from algorithms.losses import Outputs, Terms
from algorithms.prototypes import Guide
from protoseal.simulation.batched.feed import batches_of_job
from protoseal.simulation.batched.flat_models import CannotStack
from protoseal.simulation.batched.graphs import Captures
from protoseal.simulation.batched.network import signature
from protoseal.simulation.batched.program import Program, guide_tensors
from secure_client.data import SiteData
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

AT_ONCE = 2 * STREAMS
"""Number of programs that a CUDA device has at a time: in each stream one computes while the next is prepared."""
MOST_RUNS = 8
"""Most runs in lockstep, each of which has its data in the memory of the process, too."""
MODEL_COPIES = 12
"""Copies of a model: Ditto has two models, each with values, undo copy, working copy, gradients and Adam's two."""

_SHARE = ContextVar("share of a GPU's memory", default=1.0)


class Batching(StrEnum):
    """Batching of sites into one program: where it is faster, where it is possible, or never."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class Precision(StrEnum):
    """Precision of convolutions and matrix products in training; parameters, sums and losses stay float32.

    ``tf32`` rounds their operands to 10 bits after the point on an NVIDIA GPU, a relative error of 2⁻¹¹, and changes
    nothing elsewhere. ``bf16`` computes the sites' networks in bfloat16, with 7 bits, a relative error of 2⁻⁸.
    """

    FLOAT32 = "float32"
    TF32 = "tf32"
    BF16 = "bf16"

    @property
    def dtype(self) -> torch.dtype | None:
        """Type in which a network computes; None for that of its parameters."""
        return torch.bfloat16 if self is Precision.BF16 else None


@contextmanager
def allow_tf32(precision: Precision) -> Iterator[None]:
    """Let products on a GPU, also those of evaluation, use TF32 inside the ``with`` block unless float32 is wanted."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    # By default torch itself allows it for convolutions.
    matmul.allow_tf32 = cudnn.allow_tf32 = precision is not Precision.FLOAT32
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


class KeptPrograms:
    """Programs on a CUDA device that are used again, since graphs take time to capture.

    The least recently used ones are dropped when all together take more than half of the device's memory. Where those
    of one round take more, each is therefore dropped before it is needed again, and its graphs are captured anew.
    """

    def __init__(self) -> None:
        self._captures = Captures()
        self._programs: dict[object, Program] = {}
        self._streams: dict[torch.device, list[torch.cuda.Stream]] = {}

    def drop(self, key: object) -> None:
        """Drop the program of this key, which failed, if it is kept."""
        self._programs.pop(key, None)

    def clear(self) -> None:
        """Drop all programs."""
        self._programs.clear()

    def program(self, key: object, jobs: Sequence[Job], precision: Precision) -> Program:
        """Return the program of this key, or a new one of the jobs; raise :class:`CannotStack` for these."""
        # Taken out and put in again, since the first one in the dictionary is the next to be dropped.
        kind, captures = precision.dtype, self._captures
        program = self._programs.pop(key, None) or Program(jobs, precision=kind, captures=captures)
        self._programs[key] = program
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
    """Train each job's model in place, as :func:`secure_client.training.loop.run_job` would; return losses in order.

    The jobs are of different models, such as different sites' first stages of one round. Those with the same
    architecture, schedule, stage, loss, device and kind of guide train as one program, at most ``at_once`` of them, and
    on a CPU as many programs side by side as torch has threads, each with one thread. On a CUDA device ``programs``
    keeps programs and their graphs for the next call. The others train one by one: models with layers that
    :mod:`protoseal.simulation.batched.network` does not support, data that are not a pair of tensors, and training by
    DP-SGD. Results are equal up to the order of sums in floating point, and to ``precision``. DP-SGD ignores
    ``bf16``.

    Raises :class:`secure_client.errors.TrainingError` when a loss is not finite, ``ValueError`` when two jobs have one
    model. After an error some models are unchanged and others are trained.
    """
    if len({id(job.model) for job in jobs}) < len(jobs):
        raise ValueError("two jobs of one model cannot run together: run one after the other")
    with allow_tf32(precision):
        if batching is Batching.NEVER:
            return [run_alone(job, precision) for job in jobs]
        losses: dict[int, Losses] = {}
        numbered = list(_groups(jobs, batching, at_once))
        groups = [(kind, [jobs[number] for number in numbers]) for kind, numbers in numbered]
        if jobs and all(job.device.type == "cuda" for job in jobs):
            trained = run_in_streams(groups, precision, programs or KeptPrograms())
        else:
            trained = _run_side_by_side([members for _, members in groups], precision)
        for (_, numbers), (_, members), stacked in zip(numbered, groups, trained, strict=True):
            group_losses = stacked or [run_alone(job, precision) for job in members]
            losses.update(zip(numbers, group_losses, strict=True))
    return [losses[number] for number in range(len(jobs))]


def run_alone(job: Job, precision: Precision) -> Losses:
    """Run the job by itself, with its network in ``precision`` unless it trains by DP-SGD."""
    if precision.dtype is None or job.dp_sgd is not None:
        return run_job(job)
    kind = next(job.model.parameters()).dtype

    def compute_exactly(outputs: Outputs, labels: Tensor, guide: Guide | None) -> Terms:
        with torch.autocast(job.device.type, enabled=False):
            exact = (None if output is None else output.to(kind) for output in outputs)
            return job.objective(Outputs(*exact), labels, guide)  # type: ignore[arg-type] # None keeps its place

    # The cache would keep the first step's weights until the end of the job.
    with torch.autocast(job.device.type, precision.dtype, cache_enabled=False):
        return run_job(replace(job, objective=compute_exactly))


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


def runs_at_once(data: Iterable[SiteData], parameters: int, device: torch.device) -> int:
    """Return the number of runs in lockstep on such data, 1 to :data:`MOST_RUNS`, that half of a device's memory holds.

    ``parameters`` is the number of the largest model's. Models that fill a GPU without being stacked gain nothing: 1.
    Data that are read on demand are not on the device.
    """
    if parameters >= ALONE_ON_GPU:
        return 1
    sizes = [
        sum(tensor.nbytes for tensor in site.train.tensors) if isinstance(site.train, TensorDataset) else 0
        for site in data
    ]
    # A program has the data of its sites side by side in a copy.
    run_bytes = 2 * sum(sizes) + MODEL_COPIES * 4 * parameters * len(sizes)
    return min(MOST_RUNS, max(1, usable_memory(device) // run_bytes))


def _groups(
    jobs: Sequence[Job], batching: Batching, at_once: int | None
) -> Iterator[tuple[object, list[int]]]:
    """Yield the numbers of the jobs that train as one program, and their kind, apart from the learning rate."""
    alike: dict[tuple[object, float], list[int]] = {}
    for number, job in enumerate(jobs):
        alike.setdefault((_kind(job) or number, job.schedule.lr), []).append(number)
    for (kind, _), numbers in alike.items():
        first = jobs[numbers[0]]
        limit = at_once or sites_at_once(first.model, first.device, batching)
        programs, sides = math.ceil(len(numbers) / limit), _threads(first)
        size = math.ceil(len(numbers) / (math.ceil(programs / sides) * sides))  # every thread has work
        ordered = sorted(numbers, key=lambda number: batches_of_job(jobs[number]), reverse=True)
        yield from ((kind, ordered[start : start + size]) for start in range(0, len(ordered), size))


def _threads(job: Job) -> int:
    return torch.get_num_threads() if job.device.type == "cpu" else 1


def usable_memory(device: torch.device) -> int:
    """Return the number of bytes of a GPU's memory that programs may take."""
    if device.type == "cuda" and torch.cuda.is_available():
        return int(_SHARE.get() * torch.cuda.get_device_properties(device).total_memory) // 2
    return GPU_BYTES


def share_gpu(share: float) -> None:
    """Let this thread's runs take at most this share, in (0, 1], of the GPU's memory, which other processes use, too.

    Training that needs more runs out of memory.
    """
    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(share)
    _SHARE.set(share)


def run_in_streams(
    groups: Sequence[tuple[object, list[Job]]], precision: Precision, kept: KeptPrograms
) -> list[list[Losses] | None]:
    """Return the losses of each group of jobs of one kind; None for a group that must train one by one.

    At most :data:`AT_ONCE` programs run at a time, and those of one kind and size run again for further groups.
    """
    trained = []
    try:
        for start in range(0, len(groups), AT_ONCE):
            trained += _run_at_once(groups[start : start + AT_ONCE], precision, kept)
    except torch.OutOfMemoryError:
        kept.clear()  # the sites need this memory to train one by one
        raise
    return trained


def _run_at_once(
    groups: Sequence[tuple[object, list[Job]]], precision: Precision, kept: KeptPrograms
) -> list[list[Losses] | None]:
    device = groups[0][1][0].device
    here, streams = torch.cuda.current_stream(device), kept.streams(device)
    for stream in streams:
        stream.wait_stream(here)
    ends: list[Callable[[], list[Losses]] | None] = []
    numbers: Counter[object] = Counter()
    for kind, jobs in groups:
        alike = kind, len(jobs), precision
        numbers[alike] += 1
        key = alike, numbers[alike]
        try:
            # A program keeps to one stream, in which its graphs, which share memory, are replayed in turn.
            with torch.cuda.stream(streams[numbers[alike] % len(streams)]):
                program = kept.program(key, jobs, precision)
                program.run(jobs)
        except CannotStack:  # raised before or in the first step, which changes only copies
            kept.drop(key)
            ends.append(None)
        else:
            ends.append(partial(program.finish, jobs))
    for stream in streams:
        here.wait_stream(stream)
    return [None if end is None else end() for end in ends]


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
        program.run(jobs)
        return program.finish(jobs)
    return None


def _kind(job: Job) -> object:
    """Return a key that is equal for jobs of one learning rate that can be stacked; None for a job that cannot be."""
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
        replace(job.schedule, lr=0.0),  # rounds may differ in it, and use one program
        job.epochs,
        job.trains,
        job.device,
        job.proximal,
        job.augmentation,
        type(job.guide),
        inputs[0].stride(),  # masks are drawn in the memory's order
        tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors),
    )
