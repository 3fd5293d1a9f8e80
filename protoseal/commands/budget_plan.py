"""Command ``protoseal budget plan``: finds the ε, the number of releases or the noise multiplier, given two of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from privacy.errors import Unattainable
from privacy.ledger.lines import now
from protoseal.commands.options import COUNT, DELTA, FRACTION, POSITIVE, agreement_option, counts, example
from protoseal.commands.terminal_output import one_line_errors

if TYPE_CHECKING:
    from privacy.accounting.budget_plan import BudgetPlan, Query
    from privacy.accounting.events import DpSgd
    from protoseal.commands.budget_inputs import Agreed

SOLVED = {"epsilon": "--epsilon", "count": "--releases", "noise": "--noise-multiplier"}
CLIP, DIM, CLASSES = 1.0, 512, 10
UNITS = ("record", "subject", "site")


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
@click.option("--dim", type=COUNT, help=f"Dimension of a prototype.  [default: {DIM}]")
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
    help="Data set whose class counts are used for the error: npz:PATH, folder:PATH, table:PATH or digits; the counts"
    " stay on this machine.",
)
@click.option(
    "--dp-sgd",
    type=(FRACTION, POSITIVE, COUNT),
    help="Sampling rate, noise multiplier and steps over all rounds of DP-SGD beside the releases.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@one_line_errors
def plan_command(*, as_json: bool, **options: Any) -> None:
    """Compute what a privacy budget buys, before anything is spent.

    Give two of --epsilon, --releases and --noise-multiplier, or --epsilon and an agreement that has the others: the
    command computes the third, or the one that --solve names. The guarantee is for one record (or another --unit) added
    or removed, over everything that is planned. The output begins with what that protects from whom, how surely and at
    what cost, and names every value that was assumed.
    """
    source = click.get_current_context().get_parameter_source
    asked = question(
        **options, left_out={name for name in options if source(name) is ParameterSource.DEFAULT}
    )
    from privacy.accounting.budget_plan import plan

    made = plan(asked.query, asked.delta, training=asked.training, **asked.given)
    if asked.agreed is not None:
        made = replace(made, averaged=asked.agreed.averaged(made.releases, counted=asked.wanted == "count"))
    found = answer(asked, made)
    if as_json:
        click.echo(json.dumps(found, indent=2, allow_nan=False))
        return
    show(found)


@dataclass(frozen=True)
class Question:
    """``given`` is what :func:`privacy.accounting.budget_plan.plan` is given, with None for ``wanted``, which it finds.

    ``sizes`` are of classes, by their names where these are known (``named``), or by themselves. ``assumed`` are values
    that neither the options nor the agreement give, by their names.
    """

    query: Query
    delta: float
    training: DpSgd | None
    given: Mapping[str, Any]
    wanted: str
    agreed: Agreed | None
    sizes: Mapping[str, int]
    named: bool
    warnings: tuple[str, ...]
    assumed: Mapping[str, object]


def question(
    *,
    epsilon: float | None,
    delta: float,
    count: int | None,
    noise: float | None,
    solve: str | None,
    file: Path | None,
    records: tuple[int, ...],
    source: str | None,
    dp_sgd: tuple[float, float, int] | None,
    unit: str | None,
    classes_of_one: int | None,
    dim: int | None,
    left_out: AbstractSet[str] = frozenset(),
) -> Question:
    """Return the question of the options, by the names of their arguments.

    ``left_out`` are the names of options that were not given.

    Raises ``click.UsageError`` for options that clash, and the errors of
    :func:`protoseal.commands.budget_inputs.read_agreed` and ``counts_of``.
    """
    from privacy.accounting.events import DpSgd
    from protoseal.commands.budget_inputs import Counted, counts_of, read_agreed

    if source and records:
        raise click.UsageError("--records and --counts-of both give the number of records: give only one")
    agreed = None if file is None else read_agreed(file, CLASSES)
    given = {"epsilon": epsilon, "count": count, "noise": noise}
    wanted = _option_to_solve(given, solve, agreed)
    unit = unit or (UNITS[0] if agreed is None else agreed.privacy.unit.value)
    counted = Counted({}) if source is None else counts_of(source, agreed, unit)
    named = counted.of_class
    asked = _query(agreed, dim, unit, classes_of_one or counted.classes_of_one)
    groups = 1 if named else asked.classes // asked.classes_of_one
    warnings = _delta_warnings(delta, (counted.units,) if named else records, unit, groups)
    training = None if agreed is None else agreed.training
    if dp_sgd is not None:
        rate, multiplier, steps = dp_sgd
        training = DpSgd(multiplier, rate, steps)
    if training is not None and unit == UNITS[-1]:
        raise click.UsageError("DP-SGD samples records or subjects: it has no ε for one site")
    return Question(
        asked,
        delta,
        training,
        given,
        wanted,
        agreed,
        sizes={name: size for name, size in named.items() if size} or {str(size): size for size in records},
        named=bool(named),
        warnings=(*warnings, *(agreed.warnings() if agreed else ())),
        assumed=_assumed(
            asked, delta, agreed, left_out - ({"classes_of_one"} if counted.classes_of_one else set())
        ),
    )


def _assumed(
    query: Query, delta: float, agreed: Agreed | None, left_out: AbstractSet[str]
) -> dict[str, object]:
    """Return the values of ``query``, and ``delta``, that neither an option nor the agreement states."""
    assumed = left_out & ({"delta"} | ({"classes_of_one"} if query.unit != UNITS[0] else set()))
    if agreed is None:
        assumed |= (left_out & {"unit", "dim"}) | {"clip", "count_weight", "classes"}
    elif agreed.classes is None:  # a simulation's file may leave the classes to its data
        assumed |= {"classes"}
    values = {"delta": delta} | asdict(query)
    if agreed is not None:
        values["classes"] = len(
            agreed.agreement.classes
        )  # the query's are cells: several parts of each class
    return {name: values[name] for name in values if name in assumed}


def key_of(option: str) -> str:
    """Return the option's name as JSON has it."""
    return option.strip("-").replace("-", "_")


def _option_to_solve(given: dict[str, Any], solve: str | None, agreed: Agreed | None) -> str:
    """Return the option among ``given`` that is to be found; the agreement supplies others that are None."""
    names = {key_of(option): name for name, option in SOLVED.items()}
    missing = [name for name in given if given[name] is None]
    wanted = names[key_of(solve)] if solve else missing[0] if len(missing) == 1 else None
    if solve and wanted not in missing:
        raise click.UsageError(f"--{solve} is both given and the target of --solve: leave one of the two out")
    if agreed is not None:
        own = {"count": agreed.agreement.releases, "noise": agreed.privacy.noise_multiplier}
        given |= {name: value for name, value in own.items() if name in missing and name != wanted}
    missing = [name for name in given if given[name] is None]
    if len(missing) != 1:
        more = (
            "name the quantity to compute by --solve"
            if agreed
            else f"give all but one of {', '.join(SOLVED.values())}"
        )
        raise click.UsageError(more)
    return missing[0]


def _query(agreed: Agreed | None, dim: int | None, unit: str, of_one: int | None) -> Query:
    from privacy.accounting.budget_plan import Query
    from privacy.accounting.events import Unit
    from privacy.mechanisms.grid import best_count_weight

    clip, weight, classes = CLIP, None, CLASSES
    dim = dim or (DIM if agreed is None else agreed.agreement.dim)
    if agreed is not None:
        clip, weight = agreed.privacy.clip, agreed.privacy.count_weight
        classes = agreed.agreement.most_cells
    most = 1 if unit == Unit.RECORD else classes
    found = of_one or (most if unit == Unit.SITE else 1)
    if found > most:
        raise click.UsageError(f"--classes-of-one {found}: one {unit} has records of {most} classes at most")
    weight = weight or best_count_weight(clip, dim)
    return Query(clip, weight, dim, classes, unit=Unit(unit), classes_of_one=found)


def _delta_warnings(delta: float, records: tuple[int, ...], unit: str, groups: int) -> list[str]:
    """Return lines on data sets with ``groups`` times so many units; refuse a guarantee that one group voids."""
    if not records:
        whose = "sites of a run" if unit == "site" else f"{unit}s of the smallest data set"
        return [f"δ = {delta:g} must be well below one over the {whose}: give --records"]
    if delta >= 1 / min(records):
        raise click.UsageError(
            f"--delta {delta:g} allows to publish one of {min(records)} {unit}s as it is: stay well below"
            f" {1 / min(records):.2g}"
        )
    whole = groups * max(records)
    if delta >= 1 / whole:
        of = f", {groups} times {max(records)}," if groups > 1 else ""
        return [
            f"δ = {delta:g} is no guarantee for a data set with {whole} {unit}s{of} or more: a site refuses it"
        ]
    return []


def answer(asked: Question, made: BudgetPlan) -> dict[str, Any]:
    """Return the plan as JSON; raise ``click.ClickException`` for a plan that no run could follow."""
    agreed, counted = asked.agreed, asked.wanted == "count"
    if counted:
        _check_some(made, agreed)
    found = _as_json(made, asked.sizes, named=asked.named)
    found["solved_for"] = key_of(SOLVED[asked.wanted])
    found |= {"made": now()[:10], "assumed": dict(asked.assumed)} | _stated(asked, made, found["errors"])
    found["agreement"] = None if agreed is None else agreed.facts()
    if counted and agreed is not None:
        found["agreement"]["release_every"] = agreed.release_every(made.releases)
    found["other_releases"] = _other_releases(made, agreed)
    found["warnings"] = [
        *asked.warnings,
        *_of_run(made, agreed, counted=counted),
        *_of_plan(made, tuple(sorted(set(asked.sizes.values())))),
    ]
    return found


def _of_run(made: BudgetPlan, agreed: Agreed | None, *, counted: bool) -> Iterator[str]:
    """Yield how the plan's releases differ from those of one run of the agreement, if they do."""
    if agreed is None:
        return
    run = agreed.most_releases if counted else agreed.agreement.releases
    if made.releases > run:
        trained = ", and DP-SGD is counted for one run" if made.training else ""
        others = "set release_every, or " if run < agreed.most_releases else ""
        yield (
            f"a run of this agreement makes {_releases(run)}{' at most' * counted}, and the plan has {made.releases}:"
            f" {others}use the others in other runs{trained}"
        )
    elif made.releases < run and not counted:
        yield f"a run of this agreement makes {_releases(run)}, and the plan has {made.releases}: set release_every"


def _other_releases(made: BudgetPlan, agreed: Agreed | None) -> dict[str, Any] | None:
    """Return another number of releases and the noise multiplier that it needs at the plan's ε; None if none is enough.

    Where one release serves the run of an agreement, a plan of one is compared with one in each round, and others with
    one; elsewhere the number is ten times the plan's, or the most that a run of the agreement makes.
    """
    serves = agreed is not None and agreed.agreement.has_fixed_query
    every = agreed.agreement.rounds if agreed is not None and serves else 1
    other = 1 if serves and made.releases > 1 else every if every > 1 else 10 * made.releases
    if agreed is not None:
        other = min(other, agreed.most_releases)
    if other == made.releases:
        return None
    try:
        noise = made.with_releases(other).noise_multiplier
    except Unattainable:
        return None
    return {"releases": other, "noise_multiplier": noise, "one_serves_run": serves}


def _stated(asked: Question, made: BudgetPlan, errors: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the plan's first sentence, and the share of members that attacks recognise at most (None: no bound)."""
    from protoseal.audit.trade_off import composed_trade_off, most_recognised
    from protoseal.commands.budget_inputs import NO_GUARANTEE
    from protoseal.reports.privacy_statement import (
        FALSE_ALARMS,
        describe_conditions,
        describe_guarantee,
        describe_observers,
        describe_unit,
    )

    if NO_GUARANTEE in asked.warnings:
        return {"statement": NO_GUARANTEE, "recognised": None}
    privacy = None if asked.agreed is None else asked.agreed.privacy
    colluding = privacy.colluding if privacy is not None and privacy.distributed else None
    cost = f"The plan costs ε = {made.cost:.4g} at δ = {made.delta:g}"
    if errors:
        worst = max(errors, key=lambda error: error["relative"])
        # The sentence is read aloud, and a site's own counts stay on this machine.
        largest = "of its smallest class" if asked.named else f"of {worst['records']} {made.query.unit}s"
        averaged = f" once the {made.averaged} releases of a run are averaged" if made.averaged > 1 else ""
        cost += f", and an error of {worst['relative']:.2g} of the clip in the mean {largest}{averaged}"
    curve = composed_trade_off(made.history)
    recognised = {alarms: most_recognised(curve, alarms) for alarms in FALSE_ALARMS}
    return {
        "statement": describe_guarantee(
            describe_conditions(colluding, "planned noise is", "has not seen these records"),
            describe_unit(made.query.unit, "the data set"),
            describe_observers(colluding, "the planned releases"),
            recognised,
            f"{cost}; a lower ε is safer.",
        ),
        "recognised": recognised[FALSE_ALARMS[0]],
    }


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def show(found: Mapping[str, Any]) -> None:
    """Print an answer for people; warnings go to standard error, but for one that comes before all else."""
    from protoseal.commands.budget_inputs import NO_GUARANTEE

    click.echo(found["statement"])
    assumed = ", ".join(
        f"{name.replace('_', ' ')} {_text(value)}" for name, value in found["assumed"].items()
    )
    click.echo(f"planned on {found['made']}" + (f"; assumed, since not given: {assumed}" if assumed else ""))
    allowed = f"ε = {found['epsilon']:.4g} at δ = {found['delta']:g} for one {found['unit']}"
    click.echo(allowed if found["solved_for"] == "epsilon" else f"{found['spent']:.4g} of {allowed}")
    click.echo(f"{_releases(found['releases'])}, noise multiplier {found['noise_multiplier']:g}")
    if found["other_releases"]:
        other = found["other_releases"]
        serves = "one release serves the run; " if other["one_serves_run"] and other["releases"] > 1 else ""
        run = " and serve the run" if other["releases"] == 1 else ""
        noise = f"a noise multiplier of {other['noise_multiplier']:g}"
        click.echo(f"{serves}{_releases(other['releases'])} would need {noise} at this ε{run}")
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


def _check_some(made: BudgetPlan, agreed: Agreed | None) -> None:
    """Refuse a plan without any release, or with none that a run of the agreement could be."""
    least, run = 1, ""
    if agreed is not None:
        least, run = agreed.fewest_releases, f", the fewest of a run of {agreed.agreement.method.value},"
    if made.releases >= least:
        return
    cost, training = replace(made, releases=least).cost, " and DP-SGD" if made.training else ""
    raise click.ClickException(
        f"{_releases(least)}{run} with noise multiplier {made.noise_multiplier:g}{training} would cost"
        f" {f'ε = {cost:.4g}' if isfinite(cost) else 'more than any ε'} at δ = {made.delta:g}, and {made.epsilon:g} is"
        f" allowed: none fits. --releases {least} in place of the noise finds how much it takes"
    )


def _of_plan(made: BudgetPlan, records: tuple[int, ...]) -> list[str]:
    first = replace(made, averaged=1)
    rough = [str(error.records) for error in map(first.error, records) if not error.first_order]
    unit = made.query.unit
    few = f"the count's noise is over a third of {', '.join(rough)} {unit}s: such classes are often treated as absent"
    return [few] if rough else []


def _as_json(made: BudgetPlan, sizes: Mapping[str, int], *, named: bool) -> dict[str, Any]:
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
        "spent": made.cost,
        "neighbours": "add or remove one",
        **asdict(made.query),
        "coordinates": made.query.coordinates,
        "slack": asdict(made.slack),
        "dp_sgd": None
        if made.training is None
        else {
            "noise_multiplier": made.training.noise_multiplier,
            "sampling_rate": made.training.sampling_rate,
            "steps": made.training.steps,
        },
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
