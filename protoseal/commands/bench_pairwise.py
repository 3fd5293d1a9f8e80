"""Command ``protoseal bench pairwise``: measures the seconds and bytes of a masked sum at sites and coordinator."""

from __future__ import annotations

from pathlib import Path

import click

from protoseal.commands.bench_options import COUNT, FILE, counts, draw_growth, recorded, show
from protoseal.commands.error_output import one_line_errors
from protoseal.commands.examples import example

COLUMNS = {
    **{name: name for name in ("sites", "holders", "threshold", "dropped")},
    "of_float32": "bytes",
    "seconds": "site, s",
    "coordinator_seconds": "coordinator, s",
    "coordinator_unmask": "of it UNMASK, s",
}
CAPTION = "bytes: sent and received by a site, over its values as float32; seconds are of a core"
CURVES = {
    "seconds": "one site, all steps",
    "coordinator_seconds": "coordinator, all steps",
    "coordinator_unmask": "coordinator, UNMASK",
}


@click.command(
    epilog=example("protoseal bench pairwise --sites 10,20 --dim 64 --repeats 1 --json pairwise.json")
)
@click.option(
    "--json", "path", type=FILE, help="File that gets the figures as JSON, updated after each case."
)
@click.option(
    "--sites",
    callback=counts,
    default="10,20,50,100",
    show_default=True,
    help="Numbers of sites whose vectors are added up, with commas between.",
)
@click.option(
    "--classes", type=COUNT, default=10, show_default=True, help="Number of classes, one prototype each."
)
@click.option("--dim", type=COUNT, default=5120, show_default=True, help="Dimension of a prototype.")
@click.option(
    "--dropped",
    type=click.FloatRange(0, 1),
    default=0.3,
    show_default=True,
    help="Share of the sites that drop out after they made shares.",
)
@click.option(
    "--repeats",
    type=COUNT,
    default=3,
    show_default=True,
    help="Number of rounds of each number of sites; the median counts.",
)
@click.option(
    "--complete-up-to",
    type=click.IntRange(2),
    default=100,
    show_default=True,
    help="Most sites among which every pair has a mask; larger groups use a sparse graph.",
)
@click.option(
    "--ring-bits",
    type=click.Choice(["32", "64"]),
    help="Bits of a masked word.  [default: 32 where sums fit, else 64]",
)
@click.option("--plot", type=FILE, help="File for the growth with sites, as SVG.")
@one_line_errors
def pairwise(
    path: Path | None, plot: Path | None, ring_bits: str | None, complete_up_to: int, **settings: object
) -> None:
    """Measure masked sums: bytes and seconds of a site, and seconds of the coordinator."""
    from agreement import MaskingSection
    from protoseal.bench.pairwise import MaskedSumBenchmark, measure
    from protoseal.bench.record import machine

    plan = MaskedSumBenchmark(
        masking=MaskingSection.model_validate(
            {"complete_up_to": complete_up_to, "ring_bits": None if ring_bits is None else int(ring_bits)}
        ),
        **settings,  # type: ignore[arg-type]  # click has checked them
    )
    cases = recorded("pairwise", measure(plan), path, machine())
    show(cases, COLUMNS, CAPTION)
    if plot is not None:
        draw_growth(plot, cases, "sites", CURVES, ("sites", "seconds"))
