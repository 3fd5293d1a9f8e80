"""Output of ``protoseal budget plan``: the plan, the error of prototypes under it, and warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from protoseal.commands.budget_plan_query import SOLVED, Question, key_of

if TYPE_CHECKING:
    from privacy.accounting.budget_plan import Plan
    from protoseal.commands.budget_plan_inputs import Agreed

DRAWN_RELEASES = (1, 10, 100)
DRAWN_RECORDS = (20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


def answer(asked: Question, made: Plan) -> dict[str, Any]:
    """Return the plan as JSON; raise ``click.ClickException`` for a plan that no run could follow."""
    agreed, counted = asked.agreed, asked.wanted == "count"
    if counted:
        _check_some(made, agreed)
    found = _as_json(made, asked.sizes, named=asked.named)
    found["solved_for"] = key_of(SOLVED[asked.wanted])
    found["agreement"] = None if agreed is None else agreed.facts()
    if counted and agreed is not None:
        found["agreement"]["release_every"] = agreed.release_every(made.releases)
    return found | {"warnings": [*asked.warnings, *_of_plan(made, tuple(sorted(set(asked.sizes.values()))))]}


def show(found: Mapping[str, Any]) -> None:
    """Print an answer for people; warnings go to standard error, but for one that comes before all else."""
    from protoseal.commands.budget_plan_inputs import NO_GUARANTEE

    if NO_GUARANTEE in found["warnings"]:
        click.echo(NO_GUARANTEE)
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
        if warning != NO_GUARANTEE:
            click.echo(f"warning: {warning}", err=True)


def draw(plot: Path, made: Plan, records: Sequence[int]) -> None:
    """Draw the error over records, with a line for each of several numbers of releases, as SVG."""
    from agreement.storage.atomic_files import write_text
    from protoseal.bench.curves import growth_curves

    over = sorted({*DRAWN_RECORDS, *records})
    plans = [made.with_releases(each) for each in sorted({*DRAWN_RELEASES, made.releases} - {made.releases})]
    lines = {
        _releases(each.releases): [(float(count), each.error(count).relative) for count in over]
        for each in sorted([*plans, made], key=lambda each: each.releases)
    }
    axes = f"{made.query.unit}s of a class", f"error of its mean, of the clip (ε = {made.epsilon:.3g})"
    write_text(plot, growth_curves(*axes, lines))


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
    errors = {name: asdict(made.error(size)) for name, size in sizes.items()}
    if not all(map(isfinite, (number for error in errors.values() for number in error.values()))):
        raise click.ClickException(
            f"errors are beyond any number with clip {made.query.clip:g} and count weight {made.query.count_weight:g}:"
            " bring them nearer to 1, and to each other"
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
        "errors": [({"class": name} if named else {}) | error for name, error in errors.items()],
    }


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
