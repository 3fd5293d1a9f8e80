"""Command ``protoseal bench ckks``: times PFPL on ciphertexts beside TenSEAL's high-level code, and measures errors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from protoseal.commands.bench_options import COUNT, FILE, counts, recorded, show
from protoseal.commands.error_output import one_line_errors
from protoseal.commands.examples import example

if TYPE_CHECKING:
    from protoseal.bench.record import Case

COLUMNS = {
    **{name: name for name in ("case", "sites", "dim", "seconds")},
    "baseline_seconds": "baseline's",
    "cpu_ratio": "ratio",
    "over_bound": "over bound",
    "smallest_D": "D",
    "error": "error",
    "bound": "bound",
}
CAPTION = (
    "ratio: of seconds on a core; upload: over the prototypes as float32; D: the smallest of the answers"
)
CURVES = {"cpu_seconds": "packed circuit", "baseline_cpu_seconds": "CKKSVector, scaled"}


@click.command(
    epilog=example('protoseal bench ckks --sites 5 --dim 64 --growth "" --dims "" --json ckks.json')
)
@click.option(
    "--json", "path", type=FILE, help="File that gets the figures as JSON, updated after each case."
)
@click.option(
    "--sites",
    type=click.IntRange(min=3),
    default=20,
    show_default=True,
    help="Number of sites that send prototypes.",
)
@click.option(
    "--classes", type=COUNT, default=10, show_default=True, help="Number of classes, one prototype each."
)
@click.option("--dim", type=COUNT, default=512, show_default=True, help="Dimension of a prototype.")
@click.option(
    "--repeats",
    type=COUNT,
    default=3,
    show_default=True,
    help="Number of times that each comparison is measured; the median counts.",
)
@click.option(
    "--growth",
    callback=counts,
    default="2,5,10,20,30,50",
    show_default=True,
    help="Numbers of sites for the growth curve, with commas between; '' measures none.",
)
@click.option(
    "--dims",
    callback=counts,
    default="64,128,256,512,1024,2048",
    show_default=True,
    help="Dimensions of prototypes for the growth curve, with commas between; '' measures none.",
)
@click.option(
    "--key-sets",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="Number of fresh key sets over which errors are measured; 0 measures none.",
)
@click.option("--plot", type=FILE, help="File for the growth with sites, as SVG.")
@click.option("--plot-dims", type=FILE, help="File for the growth with dimensions, as SVG.")
@one_line_errors
def ckks(path: Path | None, plot: Path | None, plot_dims: Path | None, **settings: object) -> None:
    """Measure PFPL on ciphertexts beside the same sums in TenSEAL's high-level code.

    The figures are CPU seconds, key switches, bytes sent, and errors beside their stated bounds.
    """
    from protoseal.bench.ckks import CkksBenchmark, measure
    from protoseal.bench.record import machine

    plan = CkksBenchmark(**settings)  # type: ignore[arg-type]  # click has checked them
    cases = recorded("ckks", measure(plan), path, machine())
    show(cases, COLUMNS, CAPTION)
    for target, along in ((plot, "sites"), (plot_dims, "dim")):
        if target is not None:
            _draw(target, cases, along)


def _draw(plot: Path, cases: list[Case], along: str) -> None:
    from agreement.storage.run_files import write_text
    from protoseal.bench.curves import growth_curves

    grown = [case.as_json() for case in cases if case.what["case"] == f"growth of {along}"]
    if not grown:
        raise click.UsageError(f"no growth with {along} was measured, so there is nothing to draw")
    lines = {
        label: [(float(str(case[along])), float(str(case[name]))) for case in grown]
        for name, label in CURVES.items()
    }
    write_text(plot, growth_curves(along, "seconds of one core, for all sites", lines))
