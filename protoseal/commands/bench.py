"""``protoseal bench``."""

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

if TYPE_CHECKING:
    from protoseal.bench.record import Case


@click.group()
def bench() -> None:
    """Measure speed, as ratios of two ways of doing the same, taken by turns in one run."""


bench.add_command(ckks)
bench.add_command(pairwise)
bench.add_command(rotation)
bench.add_command(round_)


@bench.command()
@click.option(
    "--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures here."
)
@click.option("--sites", type=COUNT, default=20, show_default=True, help="Sites that train in a round.")
@click.option("--samples", type=COUNT, help="Of each site.  [default: 60000 over the sites, as MNIST has]")
@click.option("--batch", type=COUNT, default=10, show_default=True, help="Samples in a batch.")
@click.option("--repeats", type=COUNT, default=3, show_default=True, help="Rounds of each way.")
@click.option(
    "--growth",
    callback=counts,
    default="5,10,20,50,100",
    show_default=True,
    help="Numbers of sites; '' for none.",
)
@click.option("--growth-samples", type=COUNT, default=100, show_default=True, help="Of each site, there.")
@click.option(
    "--memory-sites",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    help="In the case on memory; 0: none.",
)
@click.option("--memory-samples", type=COUNT, default=500, show_default=True, help="Of each site, there.")
@click.option(
    "--model",
    type=click.Choice(["small-cnn", "fedpc-cnn", "resnet10"]),
    default="small-cnn",
    show_default=True,
)
@click.option("--at-once", type=COUNT, help="Sites in one program, at most.  [default: by size]")
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda:N.")
@click.option(
    "--data-root",
    type=click.Path(path_type=Path),
    help="Where MNIST is, for small-cnn; else images are random.",
)
@one_line_errors
def train(path: Path | None, samples: int | None, sites: int, **settings: object) -> None:
    """Sites trained as one batched program against one by one; growth with their number; memory of many."""
    from protoseal.bench.record import as_record, write_record
    from protoseal.bench.train import MNIST_SAMPLES, Plan, machine_of, measure

    each = samples or max(1, MNIST_SAMPLES // sites)
    plan = Plan(sites=sites, samples=each, **settings)  # type: ignore[arg-type]  # click has checked them
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
