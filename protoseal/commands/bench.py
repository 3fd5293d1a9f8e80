"""Command group ``protoseal bench``: measures protections and training, each beside a baseline in the same run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from protoseal.commands.bench_ckks import ckks
from protoseal.commands.bench_options import COUNT, counts
from protoseal.commands.bench_pairwise import pairwise
from protoseal.commands.bench_rotation import rotation
from protoseal.commands.bench_round import round_
from protoseal.commands.error_output import one_line_errors
from protoseal.commands.examples import example

if TYPE_CHECKING:
    from protoseal.bench.record import Case


@click.group(epilog=example("protoseal bench round --method pfpl --sites 5 --json round.json"))
def bench() -> None:
    """Measure speed on this machine.

    Each command compares two ways of computing the same, by turns in one run, and reports ratios.
    """


bench.add_command(ckks)
bench.add_command(pairwise)
bench.add_command(rotation)
bench.add_command(round_)


@bench.command(
    epilog=example(
        'protoseal bench train --sites 5 --samples 200 --growth "" --memory-sites 0 --json train.json'
    )
)
@click.option(
    "--json",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File that gets the figures as JSON, updated after each case.",
)
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
    callback=counts,
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
    type=click.Choice(["small-cnn", "fedpc-cnn", "resnet10"]),
    default="small-cnn",
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
def train(path: Path | None, samples: int | None, sites: int, **settings: object) -> None:
    """Measure the training of many sites as one batched program, beside training one by one.

    The figures are seconds, their growth with the number of sites, and the peak memory.
    """
    from protoseal.bench.record import as_record, write_record
    from protoseal.bench.train import MNIST_SAMPLES, TrainingBenchmark, machine_of, measure

    each = samples or max(1, MNIST_SAMPLES // sites)
    plan = TrainingBenchmark(sites=sites, samples=each, **settings)  # type: ignore[arg-type]  # click has checked them
    console, facts, cases = Console(stderr=True), machine_of(plan), []
    with console.status("one round after the other") as status:
        for case in measure(plan):
            cases.append(case)
            status.update(f"{len(cases)} cases done")
            if (
                path is not None
            ):  # each time, so that what was measured is there if the rest is not waited for
                write_record(path, as_record("train", facts, cases))
    _print(cases)


def _print(cases: list[Case]) -> None:
    table = Table(
        "case", "model", "sites", "samples", "seconds", "one by one", "ratio", "of CPU", "peak memory"
    )
    for case in (each.as_json() for each in cases):
        peak = case.get("peak_rss_bytes")
        table.add_row(
            *(str(case[name]) for name in ("case", "model", "sites", "samples")),
            *(_number(case[name]) for name in ("seconds", "baseline_seconds", "ratio", "cpu_ratio")),
            "" if peak is None else f"{int(peak) / 2**30:.2f} GiB",
        )
    Console().print(table)


def _number(value: object) -> str:
    return "" if value is None else f"{value:.2f}"
