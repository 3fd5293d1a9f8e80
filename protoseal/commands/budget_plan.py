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
from protoseal.commands.options import (
    COUNT,
    DELTA,
    FRACTION,
    POSITIVE,
    agreement_option,
    example,
    parse_counts,
)
from protoseal.commands.terminal_output import one_line_errors

if TYPE_CHECKING:
    from privacy.accounting.budget_plan import BudgetPlan, Query
    from privacy.accounting.events import DpSgd
    from protoseal.commands.budget_inputs import PrivateAgreement

SOLVED = {"epsilon": "--epsilon", "count": "--releases", "noise": "--noise-multiplier"}
CLIP = 1.0
DIM = 512
CLASSES = 10
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
    callback=parse_counts,
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
    # A default that nobody chose is named in the output: a plan for the wrong unit would look like a guarantee.
    source = click.get_current_context().get_parameter_source
    request = read_request(
        **options, left_out={name for name in options if source(name) is ParameterSource.DEFAULT}
    )
    from privacy.accounting.budget_plan import plan as solve

    plan = solve(request.query, request.delta, training=request.training, **request.given)
    if request.agreed is not None:
        averaged = request.agreed.count_averaged(plan.releases, solved=request.unknown == "count")
        plan = replace(plan, averaged=averaged)
    result = plan_to_json(request, plan)
    if as_json:
        click.echo(json.dumps(result, indent=2, allow_nan=False))
    else:
        print_plan(result)


@dataclass(frozen=True)
class PlanRequest:
    """Request for a plan: the arguments of :func:`privacy.accounting.budget_plan.plan`, and what its report names.

    ``given`` has ε, the number of releases and the noise, with None for the ``unknown`` one. ``sizes`` are of classes,
    by their names where these are known (``named``), or by the sizes themselves. ``assumed`` are the values, by name,
    that neither the options nor the agreement give.
    """

    query: Query
    delta: float
    training: DpSgd | None
    given: Mapping[str, Any]
    unknown: str
    agreed: PrivateAgreement | None
    sizes: Mapping[str, int]
    named: bool
    warnings: tuple[str, ...]
    assumed: Mapping[str, object]


def read_request(
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
) -> PlanRequest:
    """Return the request that the options make; ``left_out`` are the names of options that were not given.

    Raises ``click.UsageError`` for options that clash, and the errors of
    :func:`protoseal.commands.budget_inputs.read_private_agreement` and ``count_units``.
    """
    from privacy.accounting.events import DpSgd
    from protoseal.commands.budget_inputs import UnitCounts, count_units, read_private_agreement

    if source and records:
        raise click.UsageError("--records and --counts-of both give the number of records: give only one")
    agreed = None if file is None else read_private_agreement(file, CLASSES)
    given = {"epsilon": epsilon, "count": count, "noise": noise}
    unknown = _choose_unknown(given, solve, agreed)
    unit = unit or (UNITS[0] if agreed is None else agreed.privacy.unit.value)
    counted = UnitCounts({}) if source is None else count_units(source, agreed, unit)
    size_by_class = counted.by_class
    query = _make_query(agreed, dim, unit, classes_of_one or counted.classes_of_one)
    # Sizes given by --records are of single classes: a data set has up to so many times that number of units.
    groups = 1 if size_by_class else query.classes // query.classes_of_one
    warnings = _check_delta(delta, (counted.units,) if size_by_class else records, unit, groups)
    training = None if agreed is None else agreed.training
    if dp_sgd is not None:
        rate, multiplier, steps = dp_sgd
        training = DpSgd(multiplier, rate, steps)
    if training is not None and unit == UNITS[-1]:
        raise click.UsageError("DP-SGD samples records or subjects: it has no ε for one site")
    if counted.classes_of_one:
        left_out = left_out - {"classes_of_one"}
    return PlanRequest(
        query,
        delta,
        training,
        given,
        unknown,
        agreed,
        sizes={name: size for name, size in size_by_class.items() if size}
        or {str(size): size for size in records},
        named=bool(size_by_class),
        warnings=(*warnings, *(agreed.list_warnings() if agreed else ())),
        assumed=_list_assumed(query, delta, agreed, left_out),
    )


def _list_assumed(
    query: Query, delta: float, agreed: PrivateAgreement | None, left_out: AbstractSet[str]
) -> dict[str, object]:
    """Return the values of ``query``, and ``delta``, that neither an option nor the agreement states."""
    assumed = left_out & ({"delta"} | ({"classes_of_one"} if query.unit != UNITS[0] else set()))
    if agreed is None:
        assumed |= (left_out & {"unit", "dim"}) | {"clip", "count_weight", "classes"}
    elif agreed.classes is None:  # a simulation's file may leave the classes to its data
        assumed |= {"classes"}
    values = {"delta": delta} | asdict(query)
    if agreed is not None:
        # The query counts cells: several parts of each class.
        values["classes"] = len(agreed.agreement.classes)
    return {name: values[name] for name in values if name in assumed}


def json_key(option: str) -> str:
    """Return the option's name as JSON has it."""
    return option.strip("-").replace("-", "_")


def _choose_unknown(given: dict[str, Any], solve: str | None, agreed: PrivateAgreement | None) -> str:
    """Return the name in ``given`` that is to be computed; the agreement supplies others that are None."""
    names = {json_key(option): name for name, option in SOLVED.items()}
    missing = [name for name in given if given[name] is None]
    unknown = names[json_key(solve)] if solve else missing[0] if len(missing) == 1 else None
    if solve and unknown not in missing:
        raise click.UsageError(f"--{solve} is both given and the target of --solve: leave one of the two out")
    if agreed is not None:
        agreed_values = {"count": agreed.agreement.releases, "noise": agreed.privacy.noise_multiplier}
        given |= {name: value for name, value in agreed_values.items() if name in missing and name != unknown}
    # Two unknowns have many answers, and none leaves nothing to compute.
    missing = [name for name in given if given[name] is None]
    if len(missing) != 1:
        raise click.UsageError(
            "name the quantity to compute by --solve"
            if agreed
            else f"give all but one of {', '.join(SOLVED.values())}"
        )
    return missing[0]


def _make_query(agreed: PrivateAgreement | None, dim: int | None, unit: str, of_one: int | None) -> Query:
    from privacy.accounting.budget_plan import Query
    from privacy.accounting.events import Unit
    from privacy.mechanisms.grid import best_count_weight

    clip = CLIP if agreed is None else agreed.privacy.clip
    weight = None if agreed is None else agreed.privacy.count_weight
    dim = dim or (DIM if agreed is None else agreed.agreement.dim)
    classes = CLASSES if agreed is None else agreed.agreement.most_cells
    limit = 1 if unit == Unit.RECORD else classes
    classes_of_one = of_one or (limit if unit == Unit.SITE else 1)
    if classes_of_one > limit:
        raise click.UsageError(
            f"--classes-of-one {classes_of_one}: one {unit} has records of {limit} classes at most"
        )
    # Without an agreed weight, the one that minimises the error of a noisy mean at this dimension.
    weight = weight or best_count_weight(clip, dim)
    return Query(clip, weight, dim, classes, unit=Unit(unit), classes_of_one=classes_of_one)


def _check_delta(delta: float, records: tuple[int, ...], unit: str, groups: int) -> list[str]:
    """Return lines on data sets with ``groups`` times so many units; refuse a guarantee that one group voids."""
    if not records:
        whose = "sites of a run" if unit == "site" else f"{unit}s of the smallest data set"
        return [f"δ = {delta:g} must be well below one over the {whose}: give --records"]
    # Publishing one of n records, picked by chance, satisfies ε = 0 at δ = 1/n: such a guarantee protects nobody.
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


def plan_to_json(request: PlanRequest, plan: BudgetPlan) -> dict[str, Any]:
    """Return the plan as JSON; raise ``click.ClickException`` for a plan that no run could follow."""
    agreed = request.agreed
    solved = request.unknown == "count"
    if solved:
        _check_releases(plan, agreed)
    result = _figures_to_json(plan, request.sizes, named=request.named)
    result["solved_for"] = json_key(SOLVED[request.unknown])
    result["made"] = now()[:10]
    result["assumed"] = dict(request.assumed)
    result |= _state_guarantee(request, plan, result["errors"])
    result["agreement"] = None if agreed is None else agreed.to_json()
    if solved and agreed is not None:
        result["agreement"]["release_every"] = agreed.choose_release_every(plan.releases)
    result["other_releases"] = _try_other_releases(plan, agreed)
    result["warnings"] = [*request.warnings, *_compare_with_run(plan, agreed, solved=solved)]
    one_release = replace(plan, averaged=1)
    errors = map(one_release.error, sorted(set(request.sizes.values())))
    rough = [str(error.records) for error in errors if not error.first_order]
    if rough:
        result["warnings"].append(
            f"the count's noise is over a third of {', '.join(rough)} {plan.query.unit}s: such classes are often"
            " treated as absent"
        )
    return result


def _compare_with_run(plan: BudgetPlan, agreed: PrivateAgreement | None, *, solved: bool) -> Iterator[str]:
    """Yield how the plan's releases differ from those of one run of the agreement, if they do."""
    if agreed is None:
        return
    run = agreed.most_releases if solved else agreed.agreement.releases
    makes = f"a run of this agreement makes {_count_releases(run)}"
    if plan.releases > run:
        trained = ", and DP-SGD is counted for one run" if plan.training else ""
        others = "set release_every, or " if run < agreed.most_releases else ""
        limit = " at most" if solved else ""
        yield f"{makes}{limit}, and the plan has {plan.releases}: {others}use the others in other runs{trained}"
    elif plan.releases < run and not solved:
        yield f"{makes}, and the plan has {plan.releases}: set release_every"


def _try_other_releases(plan: BudgetPlan, agreed: PrivateAgreement | None) -> dict[str, Any] | None:
    """Return another number of releases and the noise multiplier that it needs at the plan's ε; None if none is enough.

    Where one release serves the run of an agreement, a plan of one is compared with one in each round, and others with
    one; elsewhere the number is ten times the plan's, or the most that a run of the agreement makes.
    """
    one_serves_run = agreed is not None and agreed.agreement.has_fixed_query
    if one_serves_run and plan.releases > 1:
        other = 1
    elif agreed is not None and one_serves_run and agreed.agreement.rounds > 1:
        other = agreed.agreement.rounds
    else:
        other = 10 * plan.releases
    if agreed is not None:
        other = min(other, agreed.most_releases)
    if other == plan.releases:
        return None
    try:
        noise = plan.with_releases(other).noise_multiplier
    except Unattainable:
        return None
    return {"releases": other, "noise_multiplier": noise, "one_serves_run": one_serves_run}


def _state_guarantee(
    request: PlanRequest, plan: BudgetPlan, errors: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
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

    if NO_GUARANTEE in request.warnings:
        return {"statement": NO_GUARANTEE, "recognised": None}
    privacy = None if request.agreed is None else request.agreed.privacy
    colluding = privacy.colluding if privacy is not None and privacy.distributed else None
    cost = f"The plan costs ε = {plan.cost:.4g} at δ = {plan.delta:g}"
    if errors:
        worst = max(errors, key=lambda error: error["relative"])
        # The sentence is read aloud, and a site's own counts stay on this machine.
        largest = "of its smallest class" if request.named else f"of {worst['records']} {plan.query.unit}s"
        averaged = f" once the {plan.averaged} releases of a run are averaged" if plan.averaged > 1 else ""
        cost += f", and an error of {worst['relative']:.2g} of the clip in the mean {largest}{averaged}"
    curve = composed_trade_off(plan.history)
    recognised = {alarms: most_recognised(curve, alarms) for alarms in FALSE_ALARMS}
    return {
        "statement": describe_guarantee(
            describe_conditions(colluding, "planned noise is", "has not seen these records"),
            describe_unit(plan.query.unit, "the data set"),
            describe_observers(colluding, "the planned releases"),
            recognised,
            f"{cost}; a lower ε is safer.",
        ),
        "recognised": recognised[FALSE_ALARMS[0]],
    }


def _format(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def print_plan(result: Mapping[str, Any]) -> None:
    """Print a plan for people. Warnings go to standard error, except NO GUARANTEE, which begins the output."""
    from protoseal.commands.budget_inputs import NO_GUARANTEE

    click.echo(result["statement"])
    assumed = ", ".join(
        f"{name.replace('_', ' ')} {_format(value)}" for name, value in result["assumed"].items()
    )
    click.echo(f"planned on {result['made']}" + (f"; assumed, since not given: {assumed}" if assumed else ""))
    allowed = f"ε = {result['epsilon']:.4g} at δ = {result['delta']:g} for one {result['unit']}"
    click.echo(allowed if result["solved_for"] == "epsilon" else f"{result['spent']:.4g} of {allowed}")
    click.echo(f"{_count_releases(result['releases'])}, noise multiplier {result['noise_multiplier']:g}")
    if result["other_releases"]:
        other = result["other_releases"]
        serves = "one release serves the run; " if other["one_serves_run"] and other["releases"] > 1 else ""
        run = " and serve the run" if other["releases"] == 1 else ""
        noise = f"a noise multiplier of {other['noise_multiplier']:g}"
        click.echo(f"{serves}{_count_releases(other['releases'])} would need {noise} at this ε{run}")
    if result["dp_sgd"]:
        trained = result["dp_sgd"]
        click.echo(
            f"{trained['steps']} steps of DP-SGD, noise multiplier {trained['noise_multiplier']:g},"
            f" sampling rate {trained['sampling_rate']:g}"
        )
    if result["agreement"]:
        agreed = result["agreement"]
        run = f"{agreed['method']} under {agreed['protection']}, {agreed['rounds']} rounds"
        click.echo(f"{run}: release_every = {agreed['release_every']}")
    if result["errors"]:
        _print_errors(result["errors"], result["unit"])
    for warning in result["warnings"]:
        if warning != NO_GUARANTEE:
            click.echo(f"warning: {warning}", err=True)


def _check_releases(plan: BudgetPlan, agreed: PrivateAgreement | None) -> None:
    """Refuse a plan without any release, or with none that a run of the agreement could be."""
    least, run = 1, ""
    if agreed is not None:
        least, run = agreed.fewest_releases, f", the fewest of a run of {agreed.agreement.method.value},"
    if plan.releases >= least:
        return
    cost, training = replace(plan, releases=least).cost, " and DP-SGD" if plan.training else ""
    raise click.ClickException(
        f"{_count_releases(least)}{run} with noise multiplier {plan.noise_multiplier:g}{training} would cost"
        f" {f'ε = {cost:.4g}' if isfinite(cost) else 'more than any ε'} at δ = {plan.delta:g}, and {plan.epsilon:g} is"
        f" allowed: none fits. --releases {least} in place of the noise finds how much it takes"
    )


def _figures_to_json(plan: BudgetPlan, sizes: Mapping[str, int], *, named: bool) -> dict[str, Any]:
    """``sizes`` of classes by their names, or without any (then by the sizes themselves)."""
    if not isfinite(plan.epsilon):
        raise click.ClickException(
            f"this costs more than any ε at δ = {plan.delta:g}: add noise, or release less"
        )
    errors = {name: asdict(plan.error(size)) for name, size in sizes.items()}
    if not all(map(isfinite, (number for error in errors.values() for number in error.values()))):
        raise click.ClickException(
            f"errors are beyond any number with clip {plan.query.clip:g} and count weight {plan.query.count_weight:g}:"
            " bring them nearer to 1, and to each other"
        )
    return {
        "epsilon": plan.epsilon,
        "delta": plan.delta,
        "releases": plan.releases,
        "noise_multiplier": plan.noise_multiplier,
        "spent": plan.cost,
        "neighbours": "add or remove one",
        **asdict(plan.query),
        "coordinates": plan.query.coordinates,
        "slack": asdict(plan.slack),
        "dp_sgd": None
        if plan.training is None
        else {
            "noise_multiplier": plan.training.noise_multiplier,
            "sampling_rate": plan.training.sampling_rate,
            "steps": plan.training.steps,
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


def _count_releases(count: int) -> str:
    return f"{count} release" if count == 1 else f"{count} releases"
