"""Speed of training on a device: the product beside a plain loop over sites, and beside the limits of a bare step.

All ways of one precision are timed by turns, after their warm-up. A way's figure is the median of its turns.
"""

from __future__ import annotations

import cProfile
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.equality import raise_logged_errors
from benchmarks.gpu.limits import Batches, check_limits, limits_on
from benchmarks.workloads import Workload, train_plainly
from protoseal.simulation.batched.flat_models import FlatModels
from protoseal.simulation.batched.training import Batching, KeptPrograms, Precision, allow_tf32, run_together
from protoseal.simulation.config import load_simulation
from protoseal.simulation.experiment import CompletedRound, Watcher, simulate
from secure_client.training.job import Job

TURNS, EPOCHS = 5, 3
"""Numbers of turns of each way, and of epochs in a long call of the product."""
PLAIN, PRODUCT, START = "plain loop", "run_together", "start of run_together"
EXACT = 1e-9
"""Distance of limits in float64, relative to the change of the weights, which rounding alone does not reach."""
Way = Callable[[], float]
"""One measurement, in milliseconds."""


@dataclass(frozen=True)
class Timing:
    """Milliseconds of a step of all sites, or None and the reason why the way could not run."""

    way: str
    precision: str
    milliseconds: float | None
    reason: str = ""


def time_training(workload: Workload, device: torch.device, turns: int = TURNS) -> Iterator[Timing]:
    """Yield the time of every way to train a step of all sites.

    The time of :data:`PRODUCT` is that of a further step in a call of :func:`run_together`, from the difference between
    calls of one and of :data:`EPOCHS` epochs. :data:`START` is the rest of a call, which is made once in a round.

    Raises ``ValueError`` for a limit of another step, and ``RuntimeError`` for an error that the product only logs.
    Both come after the figures, which stay.
    """
    with raise_logged_errors():
        for precision in Precision if device.type == "cuda" else [Precision.FLOAT32]:
            with allow_tf32(precision):
                yield from _time_precision(workload, device, precision, turns)
    distances = check_limits(replace(workload, sites=2, batch=min(4, workload.batch)), device)
    wrong = {name: distance for name, distance in distances.items() if not distance < EXACT}
    if wrong:
        raise ValueError(f"limits do not compute the same step: {wrong}")


def _time_precision(
    workload: Workload, device: torch.device, precision: Precision, turns: int
) -> Iterator[Timing]:
    ways: dict[str, Way] = {}
    if precision is Precision.FLOAT32:
        ways[PLAIN] = _plain_loop(workload, device)
    jobs = workload.jobs(device)
    flat = FlatModels([job.model for job in jobs])
    short, long = _product(jobs, device, precision)
    ways |= {PRODUCT: short, START: long}
    for limit, make in limits_on(device).items():
        try:
            step = make(Batches.draw(workload, device), precision is Precision.BF16).step
        except RuntimeError as error:  # out of memory, or an operation that lacks this type
            yield Timing(limit, precision.value, None, str(error).partition("\n")[0])
            continue
        ways[limit] = _timer(step, device, max(2, workload.steps // 3))
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(turns):
        for way, measure in ways.items():
            times[way].append(measure())
    medians = {way: statistics.median(spent) for way, spent in times.items()}
    further = (medians[START] - medians[PRODUCT]) / ((EPOCHS - 1) * workload.steps)
    medians |= {PRODUCT: further, START: medians[PRODUCT] - further * workload.steps}
    del flat  # until here, since models are bound to the rows of an object that lives
    for way, milliseconds in medians.items():
        yield Timing(way, precision.value, milliseconds)


def _plain_loop(workload: Workload, device: torch.device) -> Way:
    """Return the time of a step of PFLlib's loop over all sites, whose data are on the device."""
    models = Batches.draw(workload, device).models
    data = [
        tuple(tensor.to(device) for tensor in workload.images(workload.samples, seed=site).tensors)
        for site in range(workload.sites)
    ]

    def epoch() -> None:
        for model, (inputs, labels) in zip(models, data, strict=True):
            train_plainly(model, shuffle_batches(inputs, labels, workload.batch), device)

    epoch()
    measure = _timer(epoch, device, 1)
    return lambda: measure() / workload.steps


def shuffle_batches(inputs: Tensor, labels: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches in a random order, as a shuffling loader without workers gives them."""
    order = torch.randperm(len(labels)).to(labels.device)
    for start in range(0, len(labels), size):
        chosen = order[start : start + size]
        yield inputs[chosen], labels[chosen]


def _product(jobs: Sequence[Job], device: torch.device, precision: Precision) -> tuple[Way, Way]:
    """Return the times of a later round's call, which has its programs already: one epoch, and :data:`EPOCHS`."""
    kept = KeptPrograms()
    calls = [
        partial(
            run_together,
            [replace(job, epochs=epochs) for job in jobs],
            Batching.AUTO,
            precision=precision,
            programs=kept,
        )
        for epochs in (1, EPOCHS)
    ]
    # A graph is captured at the third step of its shape, and a last batch comes once an epoch.
    for call in calls * 3:
        call()
    short, long = (_timer(call, device, 1) for call in calls)
    return short, long


def _timer(task: Callable[[], object], device: torch.device, repeats: int) -> Way:
    """Return the time of a task, the mean of ``repeats`` that follow each other."""

    def measure() -> float:
        _synchronise(device)
        start = time.perf_counter()
        for _ in range(repeats):
            task()
        _synchronise(device)
        return 1e3 * (time.perf_counter() - start) / repeats

    return measure


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# Share of a simulated round that is training

GROUPS: Mapping[str, tuple[str, ...]] = {
    "SQLite": ("sqlite3.",),
    "hashing": ("HASH", "openssl_", "hashlib", "hmac"),
    "serialising": (
        "safetensors",
        "Serialize",
        "ParseFromString",
        "MergeFromString",
        "json",
        "tobytes",
        "_pb2",
    ),
    "copies": ("'cpu'", "'to'", "'copy_'", "'numpy'", "'tolist'", "'item'", "deepcopy"),
    "files": ("fsync", "_io.", "posix."),
    "PyTorch": ("torch",),
}
"""Groups of what is no training, by parts of the profiler's names of functions; the first group that fits counts.

PyTorch embeds samples for prototypes and combines values. On a card, waiting for it is part of the copies to the CPU.
"""


@dataclass(frozen=True)
class RoundShare:
    """Seconds of a round of ``simulate`` and of its training, and seconds of the rest by group, under a profiler."""

    run: str
    seconds: float
    training: float
    groups: Mapping[str, float]


class _RoundClock(Watcher):
    """Ends of rounds; the profiler, if any, runs from the end of the first to that of the last but one."""

    def __init__(self, rounds: int, profile: cProfile.Profile | None = None) -> None:
        self.ends: list[float] = []
        self._rounds = rounds
        self._profile = profile

    def on_completed(self, completed: CompletedRound) -> None:
        del completed
        self.ends.append(time.perf_counter())
        if self._profile is not None and len(self.ends) == 1:
            self._profile.enable()
        if self._profile is not None and len(self.ends) == self._rounds - 1:
            self._profile.disable()


ROUNDS = 4
"""Rounds of a run. The first, in which memory is allocated and kernels are chosen, and the last, which is tested, do
not count."""


def measure_round(workload: Workload, method: str, variant: Mapping[str, object], device: str) -> RoundShare:
    """Simulate some rounds with a clock, and again with a profiler; return what a round spends its time on."""
    counted = ROUNDS - 2
    with tempfile.TemporaryDirectory(prefix="protoseal-gpu-") as folder:
        data = Path(folder, "data.npz")
        _write_images(workload, data)
        flags = {
            "method": method,
            "dataset": f"npz:{data}",
            "split": f"iid:per={workload.samples}",
            "device": device,
            "sites": workload.sites,
            "rounds": ROUNDS,
            "evaluate_every": ROUNDS,
            **variant,
        }
        settings = [
            f"dim={workload.dim}",
            f"training.model={workload.model}",
            f"training.batch_size={workload.batch}",
            "training.local_epochs=1",
            "training.optimiser=sgd",
        ]

        def run(name: str, watcher: Watcher) -> None:
            simulate(load_simulation(None, {**flags, "out": Path(folder, name)}, settings), watcher)

        clock = _RoundClock(ROUNDS)
        with _training_clock() as training:
            run("clock", clock)
        profile = cProfile.Profile()
        with _training_clock(profile):
            run("profile", _RoundClock(ROUNDS, profile))
    begin, end = clock.ends[0], clock.ends[-2]
    named = " ".join(map(str, variant.values()))
    return RoundShare(
        f"{method}, {workload.model}, {workload.sites} sites {named}".strip(),
        (end - begin) / counted,
        sum(seconds for start, seconds in training if begin < start < end) / counted,
        {group: seconds / counted for group, seconds in _by_group(profile).items()},
    )


def _write_images(workload: Workload, path: Path) -> None:
    inputs, labels = workload.images(workload.sites * workload.samples).tensors
    images = (inputs * 255).to(torch.uint8).movedim(1, -1).numpy()
    np.savez(path, x_train=images, y_train=labels.numpy(), x_test=images[:100], y_test=labels[:100].numpy())


@contextmanager
def _training_clock(profile: cProfile.Profile | None = None) -> Iterator[list[tuple[float, float]]]:
    """Yield a list that gets the start and the seconds of each call of ``run_together``, which is not profiled."""
    calls: list[tuple[float, float]] = []

    def timed(*arguments: object, **options: object) -> object:
        profiled = profile is not None and sys.getprofile() is not None
        if profile is not None and profiled:
            profile.disable()
        start = time.perf_counter()
        try:
            return run_together(*arguments, **options)  # type: ignore[arg-type]
        finally:
            calls.append((start, time.perf_counter() - start))
            if profile is not None and profiled:
                profile.enable()

    users = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("protoseal.") and vars(module).get("run_together") is run_together
    ]
    patches = [mock.patch.object(module, "run_together", timed) for module in users]
    for patch in patches:
        patch.start()
    try:
        yield calls
    finally:
        for patch in patches:
            patch.stop()


def _by_group(profile: cProfile.Profile) -> dict[str, float]:
    """Return the seconds of functions themselves, by group, largest first."""
    seconds: dict[str, float] = {}
    for (file, _, function), (_, _, itself, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        name = f"{file}:{function}"
        group = next(
            (group for group, parts in GROUPS.items() if any(part in name for part in parts)), "other"
        )
        seconds[group] = seconds.get(group, 0.0) + itself
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))
