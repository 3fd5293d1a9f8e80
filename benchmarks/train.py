"""Sites trained as one batched program against one by one, and the memory of many sites.

    python -m benchmarks.train --json train.json

With a GPU, training runs there unless ``--device cpu`` is given.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from agreement.registry.recipe import Trains
from algorithms.method_losses import PfplLoss
from benchmarks.record import (
    Case,
    Spent,
    Task,
    Value,
    compare,
    json_option,
    machine,
    peak_memory,
    record_cases,
    show,
    spent_on,
)
from benchmarks.workloads import LR, MOMENTUM, WEIGHT_DECAY, WORKLOADS, Workload
from protoseal.commands.options import COUNT, example, parse_counts
from protoseal.commands.terminal_output import one_line_errors
from protoseal.simulation.batched.training import Batching, run_together
from secure_client.data.preprocess import to_dataset
from secure_client.data.published import read_published
from secure_client.training.batches import TensorSource
from secure_client.training.job import Job, Schedule
from secure_client.training.learner import choose_device

MNIST_SAMPLES = 60_000
COLUMNS = {
    **{name: name for name in ("case", "model", "sites", "samples", "seconds")},
    "baseline_seconds": "one by one",
    "ratio": "ratio",
    "cpu_ratio": "of CPU",
    "peak_rss_bytes": "peak bytes",
}


DIGITS, CIFAR = WORKLOADS["small-cnn-28"], WORKLOADS["fedpc-cnn"]
NETWORKS = {workload.model: workload for workload in (DIGITS, CIFAR, WORKLOADS["resnet10"])}


@dataclass(frozen=True)
class TrainingBenchmark:
    """Plan of a measurement: ``samples`` at each site, one epoch of batches of ``batch``, network ``model``.

    At most ``at_once`` sites train as one program; None chooses the number.

    ``growth`` are numbers of sites, each with ``growth_samples``; ``memory_sites`` with ``memory_samples`` each train
    in a process of their own. An empty ``growth`` or no ``memory_sites`` leave that part out.
    """

    sites: int = 20
    samples: int = MNIST_SAMPLES // 20
    batch: int = 10
    repeats: int = 3
    growth: tuple[int, ...] = (5, 10, 20, 50, 100)
    growth_samples: int = 100
    memory_sites: int = 100
    memory_samples: int = 500
    device: str = "auto"
    data_root: Path | None = None
    model: str = DIGITS.model
    at_once: int | None = None

    @property
    def network(self) -> Workload:
        """Model, with images for it."""
        return NETWORKS[self.model]

    @property
    def is_real(self) -> bool:
        """True if the images are MNIST's."""
        return self.data_root is not None and self.model == DIGITS.model


def measure(plan: TrainingBenchmark) -> Iterator[Case]:
    """Yield each case when it is measured; raise ``DataError`` if the data root lacks MNIST."""
    data = _images(plan)
    yield _batched(plan, data, "batched", plan.sites, plan.samples)
    for sites in plan.growth:
        yield _batched(plan, data, "growth", sites, plan.growth_samples)
    if plan.memory_sites:
        yield _memory(plan)


def machine_of(plan: TrainingBenchmark) -> dict[str, Value]:
    """Describe the machine as torch uses it."""
    device = choose_device(plan.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return machine(
        torch=torch.__version__, threads=torch.get_num_threads(), device=str(device), accelerator=name
    )


def _images(plan: TrainingBenchmark) -> TensorDataset:
    """Return MNIST's training images if the network suits them, else as many random images as needed."""
    if not plan.is_real:
        most = max([plan.sites * plan.samples, *(sites * plan.growth_samples for sites in plan.growth)])
        return plan.network.images(min(most, MNIST_SAMPLES))
    source = read_published("mnist", plan.data_root)
    return to_dataset(source.train, None, where="mnist")


def _batched(plan: TrainingBenchmark, data: TensorDataset, name: str, sites: int, samples: int) -> Case:
    """Measure a round of batched training against training one by one, each with its own models."""
    device = choose_device(plan.device)
    ways = [_jobs(plan.network, data, sites, samples, plan) for _ in range(2)]
    what: dict[str, Value] = {
        "case": name,
        "model": plan.model,
        "data": "mnist" if plan.is_real else "random",
        "sites": sites,
        "samples": samples,
        "batch": plan.batch,
        "at_once": plan.at_once,
    }
    how = Batching.AUTO if plan.at_once is None else Batching.ALWAYS
    ours = _settled(partial(run_together, ways[0], how, at_once=plan.at_once), device)
    baseline = _settled(partial(run_together, ways[1], Batching.NEVER), device)
    return compare(what, ours, baseline, plan.repeats)


def _settled(task: Task, device: torch.device) -> Callable[[], None]:
    """Return the task, which ends only when the GPU has finished its work."""

    def whole() -> None:
        task()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return whole


def _memory(plan: TrainingBenchmark) -> Case:
    """Measure one round of FedPC's network on images of CIFAR-10's size: seconds and memory of a fresh process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
        spent, peak = fresh.submit(_train_many, plan, torch.get_num_threads()).result()
    what: dict[str, Value] = {
        "case": "memory",
        "model": CIFAR.model,
        "data": "random",
        "sites": plan.memory_sites,
        "samples": plan.memory_samples,
        "batch": plan.batch,
        "peak_rss_bytes": peak,
    }
    return Case(what, [spent])


def _train_many(plan: TrainingBenchmark, threads: int) -> tuple[Spent, int]:
    torch.set_num_threads(threads)
    data = CIFAR.images(plan.memory_sites * plan.memory_samples)
    jobs = _jobs(CIFAR, data, plan.memory_sites, plan.memory_samples, plan)
    return spent_on(_settled(partial(run_together, jobs), choose_device(plan.device))), peak_memory()


def _jobs(
    network: Workload, data: TensorDataset, sites: int, samples: int, plan: TrainingBenchmark
) -> list[Job]:
    """Return the jobs of PFPL's first round, without prototypes; the data are reused cyclically."""
    device = choose_device(plan.device)
    inputs, labels = data.tensors
    schedule = Schedule(LR, MOMENTUM, WEIGHT_DECAY, plan.batch, local_epochs=1)
    return [
        Job(
            model=network.build().to(device),
            source=TensorSource(_part(inputs, labels, site * samples, samples), device),
            objective=PfplLoss(1.0),
            guide=None,
            schedule=schedule,
            epochs=1,
            trains=Trains.ALL,
            seed=site,
            device=device,
            anchor={},
        )
        for site in range(sites)
    ]


def _part(inputs: Tensor, labels: Tensor, start: int, count: int) -> TensorDataset:
    begin = start % max(1, len(labels) - count + 1)
    return TensorDataset(inputs[begin : begin + count], labels[begin : begin + count])


@click.command(
    epilog=example(
        'python -m benchmarks.train --sites 5 --samples 200 --growth "" --memory-sites 0 --json train.json'
    )
)
@json_option
@click.option(
    "--sites", type=COUNT, default=20, show_default=True, help="Number of sites that train in a round."
)
@click.option(
    "--samples",
    type=COUNT,
    help="Number of training samples of each site.  [default: 60000 divided among the sites, as in MNIST]",
)
@click.option("--batch", type=COUNT, default=10, show_default=True, help="Number of samples in a batch.")
@click.option(
    "--repeats", type=COUNT, default=3, show_default=True, help="Number of rounds trained in each way."
)
@click.option(
    "--growth",
    callback=parse_counts,
    default="5,10,20,50,100",
    show_default=True,
    help="Numbers of sites for the growth curve, with commas between; '' measures none.",
)
@click.option(
    "--growth-samples",
    type=COUNT,
    default=100,
    show_default=True,
    help="Number of training samples of each site in the growth curve.",
)
@click.option(
    "--memory-sites",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    help="Number of sites in the measurement of memory; 0 measures none.",
)
@click.option(
    "--memory-samples",
    type=COUNT,
    default=500,
    show_default=True,
    help="Number of training samples of each site in the measurement of memory.",
)
@click.option(
    "--model",
    type=click.Choice(list(NETWORKS)),
    default=DIGITS.model,
    show_default=True,
    help="Network that the sites train.",
)
@click.option(
    "--at-once",
    type=COUNT,
    help="Most sites in one batched program.  [default: chosen by the size of the model]",
)
@click.option(
    "--device",
    default="auto",
    show_default=True,
    help="Device of training: auto (a GPU if there is one), cpu or cuda:N.",
)
@click.option(
    "--data-root",
    type=click.Path(path_type=Path),
    help="Folder with MNIST's files, for small-cnn; without it the images are random.",
)
@one_line_errors
def main(path: Path | None, samples: int | None, sites: int, **settings: object) -> None:
    """Measure the training of many sites as one batched program, beside training one by one.

    The figures are seconds, their growth with the number of sites, and the peak memory.
    """
    plan = TrainingBenchmark(
        sites=sites,
        samples=samples or max(1, MNIST_SAMPLES // sites),
        **settings,  # type: ignore[arg-type]  # click has checked them
    )
    show(record_cases("train", measure(plan), path, machine_of(plan)), COLUMNS)


if __name__ == "__main__":
    main()
