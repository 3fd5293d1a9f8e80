"""``protoseal bench round``."""

from __future__ import annotations

from pathlib import Path

import click

from protoseal.commands.bench_options import COUNT, FILE, recorded, show
from protoseal.commands.error_output import one_line_errors

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


@click.command("round")
@click.option("--json", "path", type=FILE, help="Write the figures here.")
@click.option("--method", type=click.Choice(METHODS), default="pfpl", show_default=True)
@click.option("--sites", type=click.IntRange(min=3), default=20, show_default=True)
@click.option("--dim", type=COUNT, default=64, show_default=True, help="Of a prototype.")
@click.option("--samples", type=COUNT, help="That each site trains with.  [default: all there are]")
@click.option("--batch", type=COUNT, default=32, show_default=True, help="Samples in a batch.")
@click.option("--epochs", type=COUNT, default=1, show_default=True, help="Of local training.")
@click.option("--repeats", type=COUNT, default=3, show_default=True, help="Rounds under each protection.")
@click.option("--model", default="small-cnn", show_default=True, help="What sites train.")
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Processes for ciphertexts; 0: none but this one.",
)
@click.option(
    "--data-root", type=click.Path(path_type=Path), help="Where MNIST is; else scikit-learn's digits."
)
@one_line_errors
def round_(path: Path | None, method: str, **settings: object) -> None:
    """Whole rounds, training included, under masked and ckks beside plain ones."""
    from agreement import Method
    from protoseal.bench.record import machine
    from protoseal.bench.round import Plan, measure

    plan = Plan(method=Method(method), **settings)  # type: ignore[arg-type]  # click has checked them
    cases = recorded("round", measure(plan), path, machine())
    show(cases, COLUMNS, CAPTION)
