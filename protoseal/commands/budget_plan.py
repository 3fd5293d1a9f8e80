"""``protoseal budget plan``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from protoseal.commands.bench_options import COUNT, FILE, counts
from protoseal.commands.budget_options import DELTA, FRACTION, POSITIVE, agreement_option
from protoseal.commands.reporting import one_line_errors

if TYPE_CHECKING:
    from protoseal.commands.budget_inputs import Agreed
    from secure_client.privacy.events import DpSgd
    from secure_client.privacy.plan import Plan, Query

SOLVED = {"epsilon": "--epsilon", "count": "--releases", "noise": "--noise-multiplier"}
CLIP, DIM, CLASSES = 1.0, 512, 10
UNITS = ("record", "subject", "site")
DRAWN_RELEASES = (1, 10, 100)
DRAWN_RECORDS = (20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


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
def plan_command(
    epsilon: float | None,
    delta: float,
    count: int | None,
    noise: float | None,
    solve: str | None,
    file: Path | None,
    records: tuple[int, ...],
    source: str | None,
    data_root: Path | None,
    sampling_rate: float | None,
    dp_sgd_noise: float | None,
    steps: int | None,
    as_json: bool,
    plot: Path | None,
    unit: str | None,
    classes_of_one: int | None,
    **query: Any,
) -> None:
    """What a privacy budget allows, before anything is spent.

    Give all but one of --epsilon, --releases and --noise-multiplier, or an agreement for the last two: the one that
    is missing is found, or the one that --solve names. A guarantee is for one record, or another unit, added or
    removed, over everything that was planned. Counts of a site's own data are used here and go nowhere.
    """
    from protoseal.commands.budget_inputs import Counted, counts_of, read_agreed

    if source and records:
        raise click.UsageError("--records and --counts-of both say how many records there are: give one")
    agreed = None if file is None else read_agreed(file, query["classes"] or CLASSES)
    given: dict[str, Any] = {"epsilon": epsilon, "count": count, "noise": noise}
    found_one = _to_find(given, solve, agreed)
    unit = unit or (UNITS[0] if agreed is None else agreed.privacy.unit.value)
    counted = Counted({}) if source is None else counts_of(source, data_root, agreed, unit)
    named = counted.of_class
    warnings = _of_delta(delta, (counted.units,) if named else records, unit)
    from secure_client.privacy.plan import plan

    training = _training(sampling_rate, dp_sgd_noise, steps)
    if training is None and agreed is not None:
        training = agreed.training
    if training is not None and unit == UNITS[-1]:
        raise click.UsageError("DP-SGD samples records or subjects: it has no ε for one site")
    asked = _query(agreed, query, unit, classes_of_one or counted.classes_of_one)
    made = plan(asked, delta, training=training, **given)
    _check_some(made, agreed)
    sizes = {name: size for name, size in named.items() if size} or {str(size): size for size in records}
    found = {**_as_json(made, sizes, named=bool(named)), "solved_for": _key(SOLVED[found_one])}
    found["agreement"] = None if agreed is None else agreed.facts()
    if agreed is not None and found_one == "count":
        found["agreement"]["release_every"] = agreed.release_every(made.releases)
    warnings += agreed.warnings() if agreed else []
    found["warnings"] = [*warnings, *_of_plan(made, tuple(sorted(set(sizes.values()))))]
    if plot is not None:
        _draw(plot, made, tuple(sizes.values()))
    if as_json:
        click.echo(json.dumps(found, indent=2, allow_nan=False))
        return
    _print(found)


def _to_find(given: dict[str, Any], solve: str | None, agreed: Agreed | None) -> str:
    """Which of ``given`` is None in the end; others that were are those of the agreement."""
    names = {_key(option): name for name, option in SOLVED.items()}
    missing = [name for name in given if given[name] is None]
    wanted = names[_key(solve)] if solve else missing[0] if len(missing) == 1 else None
    if solve and wanted not in missing:
        raise click.UsageError(f"--{solve} is given, and --solve asks for it: leave one of the two out")
    if agreed is not None:
        own = {"count": agreed.agreement.releases, "noise": agreed.privacy.noise_multiplier}
        given |= {name: value for name, value in own.items() if name in missing and name != wanted}
    missing = [name for name in given if given[name] is None]
    if len(missing) != 1:
        more = (
            "say by --solve which to find" if agreed else f"give all but one of {', '.join(SOLVED.values())}"
        )
        raise click.UsageError(more)
    return missing[0]


def _query(agreed: Agreed | None, given: dict[str, Any], unit: str, of_one: int | None) -> Query:
    from algorithms.grid import best_count_weight
    from protoseal.config import Unit
    from secure_client.privacy.plan import Query

    usual: dict[str, Any] = {"clip": CLIP, "dim": DIM, "classes": CLASSES}
    if agreed is not None:
        privacy, agreement = agreed.privacy, agreed.agreement
        usual = {"clip": privacy.clip, "count_weight": privacy.count_weight}
        usual |= {"dim": agreement.dim, "classes": agreement.most_cells}
    query = usual | {name: value for name, value in given.items() if value is not None}
    query["count_weight"] = query.get("count_weight") or best_count_weight(query["clip"], query["dim"])
    most = 1 if unit == Unit.RECORD else query["classes"]
    found = of_one or (most if unit == Unit.SITE else 1)
    if found > most:
        raise click.UsageError(f"--classes-of-one {found}: one {unit} has records of {most} classes at most")
    return Query(**query, unit=Unit(unit), classes_of_one=found)


def _key(option: str) -> str:
    return option.strip("-").replace("-", "_")


def _training(rate: float | None, noise: float | None, steps: int | None) -> DpSgd | None:
    from secure_client.privacy.events import DpSgd

    if rate is None and noise is None and steps is None:
        return None
    if rate is None or noise is None or steps is None:
        raise click.UsageError("DP-SGD needs --sampling-rate, --dp-sgd-noise and --steps together")
    return DpSgd(noise, rate, steps)


def _of_delta(delta: float, records: tuple[int, ...], unit: str) -> list[str]:
    if not records:
        whose = "sites of a run" if unit == "site" else f"{unit}s of the smallest data set"
        return [f"δ = {delta:g} must be well below one over the {whose}: give --records"]
    if delta >= 1 / min(records):
        raise click.UsageError(
            f"--delta {delta:g} allows to publish one of {min(records)} {unit}s as it is: stay well below"
            f" {1 / min(records):.2g}"
        )
    if delta >= 1 / max(records):
        return [f"δ = {delta:g} is no guarantee for a data set with {max(records)} {unit}s or more"]
    return []


def _check_some(made: Plan, agreed: Agreed | None) -> None:
    """Refuse a plan without any release, or with none that a run of the agreement could be."""
    least, run = 1, ""
    if agreed is not None:
        least, run = agreed.fewest_releases, f", the fewest of a run of {agreed.agreement.method.value},"
    if made.releases >= least:
        return
    cost, training = replace(made, releases=least).spent, " and DP-SGD" if made.training else ""
    raise click.ClickException(
        f"{_releases(least)}{run} with noise multiplier {made.noise_multiplier:g}{training} would cost"
        f" {f'ε = {cost:.4g}' if isfinite(cost) else 'more than any ε'} at δ = {made.delta:g}, and {made.epsilon:g} is"
        f" allowed: none fits. --releases {least} in place of the noise finds how much it takes"
    )


def _of_plan(made: Plan, records: tuple[int, ...]) -> list[str]:
    rough = [str(error.records) for error in map(made.error, records) if not error.first_order]
    unit = made.query.unit
    few = f"the count's noise is over a third of {', '.join(rough)} {unit}s: such classes are often treated as absent"
    return [few] if rough else []


def _as_json(made: Plan, sizes: Mapping[str, int], *, named: bool) -> dict[str, Any]:
    """``sizes`` of classes by their names, or without any (then by the sizes themselves)."""
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
        "neighbours": "add or remove one",
        **asdict(made.query),
        "coordinates": made.query.coordinates,
        "slack": asdict(made.slack),
        "dp_sgd": None if made.training is None else asdict(made.training),
        "errors": [
            ({"class": name} if named else {}) | asdict(made.error(size)) for name, size in sizes.items()
        ],
    }


def _print(found: dict[str, Any]) -> None:
    allowed = f"ε = {found['epsilon']:.4g} at δ = {found['delta']:g} for one {found['unit']}"
    click.echo(allowed if found["solved_for"] == "epsilon" else f"{found['spent']:.4g} of {allowed}")
    click.echo(f"{_releases(found['releases'])}, noise multiplier {found['noise_multiplier']:g}")
    if found["dp_sgd"]:
        trained = found["dp_sgd"]
        click.echo(
            f"{trained['steps']} steps of DP-SGD, noise multiplier {trained['noise_multiplier']:g},"
            f" sampling rate {trained['sampling_rate']:g}"
        )
    if found["agreement"]:
        agreed = found["agreement"]
        run = f"{agreed['method']} under {agreed['protection']}, {agreed['rounds']} rounds"
        click.echo(f"{run}: release_every = {agreed['release_every']}")
    if found["errors"]:
        _print_errors(found["errors"], found["unit"])
    for warning in found["warnings"]:
        click.echo(f"warning: {warning}", err=True)


def _print_errors(errors: Sequence[Mapping[str, Any]], unit: str) -> None:
    names = ["class"] if "class" in errors[0] else []
    heads = (f"{unit}s of a class", "error of its mean", "of the clip", "of its count")
    table = Table(*names, *heads, box=SIMPLE_HEAD)
    for error in errors:
        cells = (f"{error[name]:.3g}" for name in ("absolute", "relative", "count"))
        table.add_row(*(error[name] for name in names), str(error["records"]), *cells)
    Console().print(table)


def _releases(count: int) -> str:
    return f"{count} release" if count == 1 else f"{count} releases"


def _draw(plot: Path, made: Plan, records: tuple[int, ...]) -> None:
    from protoseal.bench.curves import growth_curves
    from protoseal.files import write_text

    over = sorted({*DRAWN_RECORDS, *records})
    plans = [made.with_releases(each) for each in sorted({*DRAWN_RELEASES, made.releases} - {made.releases})]
    lines = {
        _releases(each.releases): [(float(count), each.error(count).relative) for count in over]
        for each in sorted([*plans, made], key=lambda each: each.releases)
    }
    axes = f"{made.query.unit}s of a class", f"error of its mean, of the clip (ε = {made.epsilon:.3g})"
    write_text(plot, growth_curves(*axes, lines))
