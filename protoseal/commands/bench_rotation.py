"""``protoseal bench rotation``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from protoseal.commands.bench_options import COUNT, FILE, counts, draw_growth, recorded, show
from protoseal.commands.error_output import one_line_errors

if TYPE_CHECKING:
    pass

COLUMNS = {
    **{name: name for name in ("case", "classes", "dim", "seconds", "baseline")},
    "baseline_seconds": "baseline's",
    "ratio": "ratio",
}


@click.command()
@click.option("--json", "path", type=FILE, help="Write the figures here.")
@click.option("--sites", type=COUNT, default=20, show_default=True, help="Sites of the cohort.")
@click.option("--classes", type=COUNT, default=10, show_default=True)
@click.option("--dim", type=COUNT, default=512, show_default=True, help="Of a prototype.")
@click.option("--repeats", type=COUNT, default=5, show_default=True, help="Of each comparison.")
@click.option(
    "--growth",
    callback=counts,
    default="64,128,256,512,1024,2048",
    show_default=True,
    help="Dimensions; '' for none.",
)
@click.option("--plot", type=FILE, help="Draw the growth, as SVG.")
@one_line_errors
def rotation(path: Path | None, plot: Path | None, **settings: object) -> None:
    """Rotated prototypes: seconds of a site and of the coordinator, beside those of plain ones."""
    from protoseal.bench.record import machine
    from protoseal.bench.rotation import Plan, measure

    plan = Plan(**settings)  # type: ignore[arg-type]  # click has checked them
    cases = recorded("rotation", measure(plan), path, machine())
    show(cases, COLUMNS)
    if plot is not None:
        axes = ("dimension of a prototype", "seconds of a site's protect")
        draw_growth(plot, cases, "dim", {"seconds": "rotation", "baseline_seconds": "plain"}, axes)
