"""Command ``protoseal bench pairwise``: measures the seconds and bytes of a masked sum at sites and coordinator."""

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
    **{name: name for name in ("case", "sites", "dropped", "seconds")},
    "baseline_shares": "shares",
    "baseline_seconds": "flwr",
    "ratio": "ratio",
    "coordinator_seconds": "coordinator",
    "of_float32": "bytes",
    "baseline_of_float32": "flwr's",
}
CAPTION = "shares: of each secret, in flwr; bytes: sent and received by a site, over its values as float32"
CURVES = {"seconds": "one site, all steps", "coordinator_seconds": "relaying", "unmask_seconds": "unmasking"}


@click.command(
    epilog=example('protoseal bench pairwise --sites 10 --dim 64 --growth "" --json pairwise.json')
)
@click.option(
    "--json", "path", type=FILE, help="File that gets the figures as JSON, updated after each case."
)
@click.option(
    "--sites",
    type=click.IntRange(min=2),
    default=50,
    show_default=True,
    help="Number of sites whose vectors are added up.",
)
@click.option(
    "--classes", type=COUNT, default=10, show_default=True, help="Number of classes, one prototype each."
)
@click.option("--dim", type=COUNT, default=5120, show_default=True, help="Dimension of a prototype.")
@click.option(
    "--dropped",
    type=click.IntRange(min=0),
    help="Number of sites that drop out, measured beside a sum without drop-outs.  [default: 30 % of sites]",
)
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
    default="10,20,50,100",
    show_default=True,
    help="Numbers of sites for the growth curve, with commas between; '' measures none.",
)
@click.option(
    "--sessions",
    callback=counts,
    default="",
    help="Numbers of sites for whole rounds through sessions and coordinator, with commas between; '' measures none.",
)
@click.option(
    "--complete-up-to",
    type=COUNT,
    default=100,
    show_default=True,
    help="Most sites among which every pair has a mask; larger groups use a sparse graph.",
)
@click.option(
    "--ring-bits",
    type=click.Choice(["32", "64"]),
    help="Bits of a masked word.  [default: 32 where sums fit, else 64]",
)
@click.option(
    "--flwr-python",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Python interpreter with flwr installed; its SecAgg+ is then measured as the baseline.",
)
@click.option("--plot", type=FILE, help="File for the growth with sites, as SVG.")
@one_line_errors
def pairwise(path: Path | None, plot: Path | None, ring_bits: str | None, **settings: object) -> None:
    """Measure masked sums: bytes and seconds of a site, seconds of the coordinator, with and without drop-outs."""
    from protoseal.bench.pairwise import Plan, measure
    from protoseal.bench.record import machine

    plan = Plan(
        ring_bits=None if ring_bits is None else int(ring_bits),
        **settings,  # type: ignore[arg-type]  # click has checked them
    )
    cases = recorded("pairwise", measure(plan), path, machine())
    show(cases, COLUMNS, CAPTION)
    if plot is not None:
        draw_growth(plot, cases, "sites", CURVES, ("sites", "seconds"))
