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
from protoseal.commands.examples import example


@click.command("plan", epilog=example("protoseal budget plan --epsilon 3 --releases 10"))
@click.option(
    "--epsilon", type=POSITIVE, help="Total ε of everything that is planned, for the unit of --unit."
)
@click.option(
    "--delta", type=DELTA, default=1e-5, show_default=True, help="δ of that guarantee, a probability."
)
@click.option(
    "--releases",
    "count",
    type=COUNT,
    help="Number of releases of the site's prototypes, over all runs on its data.",
)
@click.option(
    "--noise-multiplier",
    "noise",
    type=POSITIVE,
    help="Standard deviation of the noise over the sensitivity √(clip² + count weight²).",
)
@click.option(
    "--solve",
    type=click.Choice([option.strip("-") for option in SOLVED.values()]),
    help="Quantity to compute.  [default: the one that is not given]",
)
@agreement_option("releases, noise, DP-SGD and query")
@click.option("--clip", type=POSITIVE, help=f"Bound on the norm of a record's features.  [default: {CLIP:g}]")
@click.option(
    "--count-weight",
    type=POSITIVE,
    help="Weight of class counts beside sums of features.  [default: clip / dim^¼, the best]",
)
@click.option("--dim", type=COUNT, help=f"Dimension of a prototype.  [default: {DIM}]")
@click.option("--classes", type=COUNT, help=f"Number of classes.  [default: {CLASSES}]")
@click.option(
    "--records",
    callback=counts,
    default="",
    help="Numbers of records (or subjects, or sites) of a class for which the error is shown, such as 50,500,5000.",
)
@click.option(
    "--unit",
    type=click.Choice(UNITS),
    help=f"Unit of privacy: a record, a subject with all its records, or a site.  [default: {UNITS[0]}, or as agreed]",
)
@click.option(
    "--classes-of-one",
    type=COUNT,
    help="Number of classes that one subject or site has records of.  [default: 1 for a subject, all for a site]",
)
@click.option(
    "--counts-of",
    "source",
    help="Data set whose class counts are used for the error: npz:PATH, folder:PATH or a name; the counts stay on"
    " this machine.",
)
@click.option(
    "--data-root",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder with torchvision's data files.",
)
@click.option(
    "--sampling-rate",
    type=FRACTION,
    help="Sampling rate of DP-SGD that is planned beside the releases; needs --dp-sgd-noise and --steps.",
)
@click.option("--dp-sgd-noise", type=POSITIVE, help="Noise multiplier of DP-SGD.")
@click.option("--steps", type=COUNT, help="Number of steps of DP-SGD, over all rounds.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@click.option("--plot", type=FILE, help="File for the error of prototypes over records and releases, as SVG.")
@one_line_errors
def plan_command(*, as_json: bool, plot: Path | None, **options: Any) -> None:
    """Compute what a privacy budget buys, before anything is spent.

    Give two of --epsilon, --releases and --noise-multiplier, or --epsilon and an agreement that has the others: the
    command computes the third, or the one that --solve names. The guarantee is for one record (or another --unit) added
    or removed, over everything that is planned.
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
