"""``protoseal bench pairwise``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from protoseal.commands.bench_options import COUNT, FILE, counts, draw_growth, recorded, show
from protoseal.commands.error_output import one_line_errors

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


@click.command()
@click.option("--json", "path", type=FILE, help="Write the figures here.")
@click.option(
    "--sites", type=click.IntRange(min=2), default=50, show_default=True, help="Members of the group."
)
@click.option("--classes", type=COUNT, default=10, show_default=True)
@click.option("--dim", type=COUNT, default=5120, show_default=True, help="Of a prototype.")
@click.option(
    "--dropped", type=click.IntRange(min=0), help="Drop-outs beside none.  [default: 30 % of sites]"
)
@click.option("--repeats", type=COUNT, default=3, show_default=True, help="Of each comparison.")
@click.option(
    "--growth",
    callback=counts,
    default="10,20,50,100",
    show_default=True,
    help="Numbers of sites; '' for none.",
)
@click.option(
    "--sessions",
    callback=counts,
    default="",
    help="Numbers of sites; whole rounds through their own sessions and the coordinator.",
)
@click.option(
    "--complete-up-to", type=COUNT, default=100, show_default=True, help="Larger groups have a sparse graph."
)
@click.option("--ring-bits", type=click.Choice(["32", "64"]), help="[default: 32 where sums fit]")
@click.option(
    "--flwr-python",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A Python with flwr in it, whose SecAgg+ is the baseline.",
)
@click.option("--plot", type=FILE, help="Draw the growth, as SVG.")
@one_line_errors
def pairwise(path: Path | None, plot: Path | None, ring_bits: str | None, **settings: object) -> None:
    """Masked sums: bytes and seconds of a site, seconds of the coordinator, with and without drop-outs."""
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
