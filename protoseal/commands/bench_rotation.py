"""Command ``protoseal bench rotation``: times the secret rotation of prototypes at a site and the coordinator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from protoseal.commands.bench_options import COUNT, FILE, counts, draw_growth, recorded, show
from protoseal.commands.error_output import one_line_errors
from protoseal.commands.examples import example

if TYPE_CHECKING:
    pass

COLUMNS = {
    **{name: name for name in ("case", "classes", "dim", "seconds", "baseline")},
    "baseline_seconds": "baseline's",
    "ratio": "ratio",
}


@click.command(epilog=example('protoseal bench rotation --sites 5 --dim 64 --growth "" --json rotation.json'))
@click.option(
    "--json", "path", type=FILE, help="File that gets the figures as JSON, updated after each case."
)
@click.option(
    "--sites", type=COUNT, default=20, show_default=True, help="Number of sites that send prototypes."
)
@click.option(
    "--classes", type=COUNT, default=10, show_default=True, help="Number of classes, one prototype each."
)
@click.option("--dim", type=COUNT, default=512, show_default=True, help="Dimension of a prototype.")
@click.option(
    "--repeats",
    type=COUNT,
    default=5,
    show_default=True,
    help="Number of times that each comparison is measured; the median counts.",
)
@click.option(
    "--growth",
    callback=counts,
    default="64,128,256,512,1024,2048",
    show_default=True,
    help="Dimensions of prototypes for the growth curve, with commas between; '' measures none.",
)
@click.option("--plot", type=FILE, help="File for the growth with dimensions, as SVG.")
@one_line_errors
def rotation(path: Path | None, plot: Path | None, **settings: object) -> None:
    """Measure rotated prototypes: seconds of a site and of the coordinator, beside those of plain prototypes."""
    from protoseal.bench.record import machine
    from protoseal.bench.rotation import RotationBenchmark, measure

    plan = RotationBenchmark(**settings)  # type: ignore[arg-type]  # click has checked them
    cases = recorded("rotation", measure(plan), path, machine())
    show(cases, COLUMNS)
    if plot is not None:
        axes = ("dimension of a prototype", "seconds of a site's protect")
        draw_growth(plot, cases, "dim", {"seconds": "rotation", "baseline_seconds": "plain"}, axes)
