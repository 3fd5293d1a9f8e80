"""Options of the benchmark commands, a table of cases, and result files that are updated after each case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from protoseal.bench.record import Case, Value

MOST = 10**9
COUNT = click.IntRange(1, MOST)
FILE = click.Path(dir_okay=False, path_type=Path)


def counts(_: click.Context, __: click.Parameter, value: str) -> tuple[int, ...]:
    """Parse ``5,10,20``; an empty text means no numbers."""
    try:
        numbers = tuple(int(part) for part in value.split(",") if part.strip())
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not a list of whole numbers such as 5,10,20") from error
    if not all(1 <= number <= MOST for number in numbers):
        raise click.BadParameter(f"each number must be from 1 to {MOST}")
    return numbers


def recorded(name: str, cases: Iterable[Case], path: Path | None, facts: Mapping[str, Value]) -> list[Case]:
    """Return the cases, written to ``path`` after each, so that an interrupted measurement keeps what it has."""
    from protoseal.bench.record import as_record, write_record

    done: list[Case] = []
    with Console(stderr=True).status("the first case") as status:
        for case in cases:
            done.append(case)
            status.update(f"{len(done)} cases done")
            if path is not None:
                write_record(path, as_record(name, facts, done))
    return done


def show(cases: Iterable[Case], columns: Mapping[str, str], caption: str | None = None) -> None:
    """Print a table of the fields that ``columns`` name, by their headings; empty where a case lacks the field."""
    table = Table(*columns.values(), box=SIMPLE_HEAD, padding=0, pad_edge=False, caption=caption)
    table.columns[0].no_wrap = True
    for case in (each.as_json() for each in cases):
        table.add_row(*(_cell(case.get(name)) for name in columns))
    Console().print(table)


def draw_growth(
    plot: Path, cases: Iterable[Case], over: str, curves: Mapping[str, str], axes: tuple[str, str]
) -> None:
    """Draw one curve for each name in ``curves``, with its label, from the growth cases, over the number ``over``."""
    from agreement.storage.run_files import write_text
    from protoseal.bench.curves import growth_curves

    grown = [case.as_json() for case in cases if case.what["case"] == "growth"]
    if not grown:
        raise click.UsageError("--plot draws how figures grow: give numbers to measure")
    lines = {
        label: [(float(str(case[over])), float(str(case[name]))) for case in grown]
        for name, label in curves.items()
    }
    write_text(plot, growth_curves(*axes, lines))


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)
