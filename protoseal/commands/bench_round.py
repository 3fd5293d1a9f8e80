"""Command ``protoseal bench round``: times whole simulated rounds under each protection beside ``plain``."""

from __future__ import annotations

from pathlib import Path

import click

from protoseal.commands.bench_options import COUNT, FILE, recorded, show
from protoseal.commands.error_output import one_line_errors
from protoseal.commands.examples import example

COLUMNS = {
    **{name: name for name in ("case", "method", "protection", "seconds")},
    **{f"{name}_seconds": name for name in ("train", "protect", "aggregate")},
    "over_plain": "over plain",
    "cpu_over_plain": "CPU",
    "same_training_over_plain": "same training",
    "apart_over_plain": "apart",
}
CAPTION = (
    "protected over plain: of whole rounds, of their seconds of a core, of these with the same training,"
    " and with each site on a machine of its own"
)
METHODS = ("pfpl", "fedpc", "feddbp", "fedplcc")
WEIGHTINGS = ("complement", "uniform")


@click.command("round", epilog=example("protoseal bench round --method pfpl --sites 5 --json round.json"))
@click.option(
    "--json", "path", type=FILE, help="File that gets the figures as JSON, updated after each case."
)
@click.option(
    "--method",
    type=click.Choice(METHODS),
    default="pfpl",
    show_default=True,
    help="Method that the rounds run.",
)
@click.option(
    "--weighting",
    type=click.Choice(WEIGHTINGS),
    default="complement",
    show_default=True,
    help="Weights of peers under pfpl; uniform runs as a masked sum under masked.",
)
@click.option("--sites", type=click.IntRange(min=3), default=20, show_default=True, help="Number of sites.")
@click.option("--dim", type=COUNT, default=64, show_default=True, help="Dimension of a prototype.")
@click.option(
    "--samples",
    type=COUNT,
    help="Number of training samples of each site.  [default: all that the data set has, divided among the sites]",
)
@click.option("--batch", type=COUNT, default=32, show_default=True, help="Number of samples in a batch.")
@click.option(
    "--epochs",
    type=COUNT,
    default=1,
    show_default=True,
    help="Number of epochs of local training in a round.",
)
@click.option(
    "--repeats", type=COUNT, default=3, show_default=True, help="Number of rounds under each protection."
)
@click.option(
    "--model",
    default="small-cnn",
    show_default=True,
    help="Network that the sites train, one of the built-in models.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Number of worker processes for ciphertexts; with 0 this process computes them itself.",
)
@click.option(
    "--data-root",
    type=click.Path(path_type=Path),
    help="Folder with MNIST's files; without it the data are scikit-learn's digits.",
)
@one_line_errors
def round_(path: Path | None, method: str, weighting: str, **settings: object) -> None:
    """Measure whole rounds, training included, under masked and ckks beside plain."""
    from agreement import method_named
    from algorithms.pfpl import Weighting
    from protoseal.bench.record import machine
    from protoseal.bench.round import RoundBenchmark, measure

    plan = RoundBenchmark(method_named(method), Weighting(weighting), **settings)  # type: ignore[arg-type]  # click has checked them
    cases = recorded("round", measure(plan), path, machine())
    show(cases, COLUMNS, CAPTION)
