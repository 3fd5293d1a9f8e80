"""Command ``protoseal budget plan``: finds the ε, the number of releases or the noise multiplier, given two of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from protoseal.commands.bench_options import COUNT, FILE, counts
from protoseal.commands.budget_option_types import DELTA, FRACTION, POSITIVE, agreement_option
from protoseal.commands.budget_plan_output import answer, draw, show
from protoseal.commands.budget_plan_query import CLASSES, CLIP, DIM, SOLVED, UNITS, question
from protoseal.commands.error_output import one_line_errors


@click.command("plan")
@click.option("--epsilon", type=POSITIVE, help="Of all releases together.")
@click.option("--delta", type=DELTA, default=1e-5, show_default=True)
@click.option("--releases", "count", type=COUNT, help="Of the site's prototypes, over all runs on its data.")
@click.option("--noise-multiplier", "noise", type=POSITIVE, help="Over √(clip² + count weight²).")
@click.option(
    "--solve",
    type=click.Choice([option.strip("-") for option in SOLVED.values()]),
    help="What to find.  [default: the one that nothing gives]",
)
@agreement_option("releases, noise, DP-SGD and query")
@click.option("--clip", type=POSITIVE, help=f"Norm of a record's features.  [default: {CLIP:g}]")
@click.option(
    "--count-weight", type=POSITIVE, help="Of counts beside sums.  [default: clip / dim^¼, the best]"
)
@click.option("--dim", type=COUNT, help=f"Of a prototype.  [default: {DIM}]")
@click.option("--classes", type=COUNT, help=f"[default: {CLASSES}]")
@click.option(
    "--records", callback=counts, default="", help="Of a class, such as 50,500,5000; or subjects, sites."
)
@click.option(
    "--unit",
    type=click.Choice(UNITS),
    help=f"What is protected: a subject and a site with all they have.  [default: {UNITS[0]}, or as agreed]",
)
@click.option(
    "--classes-of-one",
    type=COUNT,
    help="That a subject or a site has records of.  [default: 1 for a subject, all for a site]",
)
@click.option(
    "--counts-of", "source", help="npz:PATH, folder:PATH, a name: the classes of a site's own data."
)
@click.option(
    "--data-root", type=click.Path(file_okay=False, path_type=Path), help="Where torchvision's files are."
)
@click.option("--sampling-rate", type=FRACTION, help="Of DP-SGD beside the releases: with the next two.")
@click.option("--dp-sgd-noise", type=POSITIVE, help="Its noise multiplier.")
@click.option("--steps", type=COUNT, help="Its steps, over all rounds.")
@click.option("--json", "as_json", is_flag=True)
@click.option("--plot", type=FILE, help="Draw the error over records and over releases here (SVG).")
@one_line_errors
def plan_command(*, as_json: bool, plot: Path | None, **options: Any) -> None:
    """Plan a privacy budget before anything is spent.

    Give all but one of --epsilon, --releases and --noise-multiplier, or an agreement for the last two: the command
    finds the missing one, or the one that --solve names. A guarantee is for one record, or another unit, added or
    removed, over everything that was planned. Counts of a site's own data stay on this machine.
    """
    asked = question(**options)
    from privacy.accounting.budget_plan import plan

    made = plan(asked.query, asked.delta, training=asked.training, **asked.given)
    found = answer(asked, made)
    if plot is not None:
        draw(plot, made, tuple(asked.sizes.values()))
    if as_json:
        click.echo(json.dumps(found, indent=2, allow_nan=False))
        return
    show(found)
