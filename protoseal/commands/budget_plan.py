"""``protoseal budget plan``."""

from __future__ import annotations

import json
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from protoseal.commands.bench_options import COUNT, FILE, counts
from protoseal.commands.reporting import one_line_errors

if TYPE_CHECKING:
    from secure_client.privacy.events import DpSgd
    from secure_client.privacy.plan import Plan


class Number(click.FloatRange):
    """A finite one in a range: comparisons let "nan" and "inf" pass."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


POSITIVE = Number(min=0, min_open=True)
FRACTION = Number(min=0, min_open=True, max=1)
DELTA = Number(min=0, min_open=True, max=1, max_open=True)
SOLVED = {"epsilon": "--epsilon", "count": "--releases", "noise": "--noise-multiplier"}
DRAWN_RELEASES = (1, 10, 100)
DRAWN_RECORDS = (20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


@click.command("plan")
@click.option("--epsilon", type=POSITIVE, help="Of all releases together.")
@click.option("--delta", type=DELTA, default=1e-5, show_default=True)
@click.option("--releases", "count", type=COUNT, help="Of the site's prototypes, over all runs on its data.")
@click.option("--noise-multiplier", "noise", type=POSITIVE, help="Over √(clip² + count weight²).")
@click.option("--clip", type=POSITIVE, default=1.0, show_default=True, help="Norm of a record's features.")
@click.option(
    "--count-weight", type=POSITIVE, help="Of counts beside sums.  [default: clip / dim^¼, the best]"
)
@click.option("--dim", type=COUNT, default=512, show_default=True, help="Of a prototype.")
@click.option("--classes", type=COUNT, default=10, show_default=True)
@click.option("--records", callback=counts, default="", help="Of a class, such as 50,500,5000.")
@click.option("--sampling-rate", type=FRACTION, help="Of DP-SGD beside the releases: with the next two.")
@click.option("--dp-sgd-noise", type=POSITIVE, help="Its noise multiplier.")
@click.option("--steps", type=COUNT, help="Its steps, over all rounds.")
@click.option("--json", "as_json", is_flag=True)
@click.option("--plot", type=FILE, help="Draw the error over records and over releases here (SVG).")
@one_line_errors
def plan_command(
    epsilon: float | None,
    delta: float,
    count: int | None,
    noise: float | None,
    records: tuple[int, ...],
    sampling_rate: float | None,
    dp_sgd_noise: float | None,
    steps: int | None,
    as_json: bool,
    plot: Path | None,
    **query: Any,
) -> None:
    """What a privacy budget allows, before anything is spent.

    Give all but one of --epsilon, --releases and --noise-multiplier: that one is found. A guarantee is for one record,
    added or removed, over everything that was planned.
    """
    given: dict[str, Any] = {"epsilon": epsilon, "count": count, "noise": noise}
    missing = [option for name, option in SOLVED.items() if given[name] is None]
    if len(missing) != 1:
        raise click.UsageError(f"give all but one of {', '.join(SOLVED.values())}")
    warnings = _of_delta(delta, records)
    from secure_client.privacy.calibration import best_count_weight
    from secure_client.privacy.plan import Query, plan

    query["count_weight"] = query["count_weight"] or best_count_weight(query["clip"], query["dim"])
    made = plan(Query(**query), delta, training=_training(sampling_rate, dp_sgd_noise, steps), **given)
    found = {**_as_json(made, records), "solved_for": missing[0].strip("-").replace("-", "_")}
    found["warnings"] = [*warnings, *_of_plan(made, records)]
    if plot is not None:
        _draw(plot, made, records)
    if as_json:
        click.echo(json.dumps(found, indent=2, allow_nan=False))
        return
    _print(found)


def _training(rate: float | None, noise: float | None, steps: int | None) -> DpSgd | None:
    from secure_client.privacy.events import DpSgd

    if rate is None and noise is None and steps is None:
        return None
    if rate is None or noise is None or steps is None:
        raise click.UsageError("DP-SGD needs --sampling-rate, --dp-sgd-noise and --steps together")
    return DpSgd(noise, rate, steps)


def _of_delta(delta: float, records: tuple[int, ...]) -> list[str]:
    if not records:
        return [
            f"δ = {delta:g} must be well below one over the records of the smallest data set: give --records"
        ]
    if delta >= 1 / min(records):
        raise click.UsageError(
            f"--delta {delta:g} allows to publish one of {min(records)} records as it is: stay well below"
            f" {1 / min(records):.2g}"
        )
    if delta >= 1 / max(records):
        return [f"δ = {delta:g} is no guarantee for a data set with {max(records)} records or more"]
    return []


def _of_plan(made: Plan, records: tuple[int, ...]) -> list[str]:
    rough = [
        str(error.records) for error in map(made.error, records) if made.releases and not error.first_order
    ]
    few = f"the count's noise is over a third of {', '.join(rough)} records: such classes are often treated as absent"
    none = "not even one release is within the budget"
    return [*([few] if rough else []), *([] if made.releases else [none])]


def _as_json(made: Plan, records: tuple[int, ...]) -> dict[str, Any]:
    if not isfinite(made.epsilon):
        raise click.ClickException(
            f"this costs more than any ε at δ = {made.delta:g}: add noise, or release less"
        )
    return {
        "epsilon": made.epsilon,
        "delta": made.delta,
        "releases": made.releases,
        "noise_multiplier": made.noise_multiplier,
        "spent": made.spent,
        "unit": "record",
        "neighbours": "add or remove one",
        **asdict(made.query),
        "coordinates": made.query.coordinates,
        "slack": asdict(made.slack),
        "dp_sgd": None if made.training is None else asdict(made.training),
        "errors": [asdict(made.error(each)) for each in records],
    }


def _print(found: dict[str, Any]) -> None:
    click.echo(
        f"ε = {found['epsilon']:.4g} at δ = {found['delta']:g}, of which {found['spent']:.4g} is spent"
    )
    click.echo(f"{_releases(found['releases'])}, noise multiplier {found['noise_multiplier']:g}")
    if found["dp_sgd"]:
        trained = found["dp_sgd"]
        click.echo(
            f"{trained['steps']} steps of DP-SGD, noise multiplier {trained['noise_multiplier']:g},"
            f" sampling rate {trained['sampling_rate']:g}"
        )
    if found["errors"]:
        table = Table(
            "records of a class", "error of its mean", "of the clip", "of its count", box=SIMPLE_HEAD
        )
        for error in found["errors"]:
            cells = (f"{error[name]:.3g}" for name in ("absolute", "relative", "count"))
            table.add_row(str(error["records"]), *cells)
        Console().print(table)
    for warning in found["warnings"]:
        click.echo(f"warning: {warning}", err=True)


def _releases(count: int) -> str:
    return f"{count} release" if count == 1 else f"{count} releases"


def _draw(plot: Path, made: Plan, records: tuple[int, ...]) -> None:
    from protoseal.bench.curves import growth_curves
    from protoseal.files import write_text

    if not made.releases:
        raise click.ClickException("there is no release to draw the error of")
    over = sorted({*DRAWN_RECORDS, *records})
    plans = [made.with_releases(each) for each in sorted({*DRAWN_RELEASES, made.releases} - {made.releases})]
    lines = {
        _releases(each.releases): [(float(count), each.error(count).relative) for count in over]
        for each in sorted([*plans, made], key=lambda each: each.releases)
    }
    axes = "records of a class", f"error of its mean, of the clip (ε = {made.epsilon:.3g})"
    write_text(plot, growth_curves(*axes, lines))
