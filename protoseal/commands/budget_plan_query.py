"""Question of ``protoseal budget plan``, from its options, an agreement and a site's own data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from privacy.accounting.budget_plan import Query
    from privacy.accounting.events import DpSgd
    from protoseal.commands.budget_plan_inputs import Agreed

SOLVED = {"epsilon": "--epsilon", "count": "--releases", "noise": "--noise-multiplier"}
CLIP, DIM, CLASSES = 1.0, 512, 10
UNITS = ("record", "subject", "site")


@dataclass(frozen=True)
class Question:
    """``given`` is what :func:`privacy.accounting.budget_plan.plan` is given, with None for ``wanted``, which it finds.

    ``sizes`` are of classes, by their names where these are known (``named``), or by themselves.
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
    data_root: Path | None,
    sampling_rate: float | None,
    dp_sgd_noise: float | None,
    steps: int | None,
    unit: str | None,
    classes_of_one: int | None,
    **query: Any,
) -> Question:
    """Return the question of the options, by the names of their arguments; ``query`` has those of the query.

    Raises ``click.UsageError`` for options that clash, and the errors of
    :func:`protoseal.commands.budget_plan_inputs.read_agreed` and ``counts_of``.
    """
    from protoseal.commands.budget_plan_inputs import Counted, counts_of, read_agreed

    if source and records:
        raise click.UsageError("--records and --counts-of both give the number of records: give only one")
    agreed = None if file is None else read_agreed(file, query["classes"] or CLASSES)
    given = {"epsilon": epsilon, "count": count, "noise": noise}
    wanted = _to_find(given, solve, agreed)
    unit = unit or (UNITS[0] if agreed is None else agreed.privacy.unit.value)
    counted = Counted({}) if source is None else counts_of(source, data_root, agreed, unit)
    named = counted.of_class
    asked = _query(agreed, query, unit, classes_of_one or counted.classes_of_one)
    groups = 1 if named else asked.classes // asked.classes_of_one
    warnings = _of_delta(delta, (counted.units,) if named else records, unit, groups)
    training = _training(sampling_rate, dp_sgd_noise, steps)
    if training is None and agreed is not None:
        training = agreed.training
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
    )


def key_of(option: str) -> str:
    """Return the option's name as JSON has it."""
    return option.strip("-").replace("-", "_")


def _to_find(given: dict[str, Any], solve: str | None, agreed: Agreed | None) -> str:
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


def _query(agreed: Agreed | None, given: dict[str, Any], unit: str, of_one: int | None) -> Query:
    from privacy.accounting.budget_plan import Query
    from privacy.mechanisms.grid import best_count_weight
    from privacy.units import Unit

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


def _training(rate: float | None, noise: float | None, steps: int | None) -> DpSgd | None:
    from privacy.accounting.events import DpSgd

    if rate is None and noise is None and steps is None:
        return None
    if rate is None or noise is None or steps is None:
        raise click.UsageError("DP-SGD needs --sampling-rate, --dp-sgd-noise and --steps together")
    return DpSgd(noise, rate, steps)


def _of_delta(delta: float, records: tuple[int, ...], unit: str, groups: int) -> list[str]:
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
