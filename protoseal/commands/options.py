"""Types, parsers and texts of options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import click

LARGEST_COUNT = 10**9
COUNT = click.IntRange(1, LARGEST_COUNT)
FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
EXISTING_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
Command = TypeVar("Command", bound=Callable[..., Any])


class Number(click.FloatRange):
    """Finite number in a range; click's own range type accepts "nan" and "inf"."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; fail for one that is not finite or out of range."""
        number = float(super().convert(value, param, ctx))
        if not isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


POSITIVE = Number(min=0, min_open=True)
FRACTION = Number(min=0, min_open=True, max=1)
DELTA = Number(min=0, min_open=True, max=1, max_open=True)


def agreement_option(what: str) -> Callable[[Command], Command]:
    """Return the option ``--agreement``, passed as ``file``: a command takes ``what`` from that file."""
    return click.option(
        "--agreement",
        "file",
        type=EXISTING_FILE,
        help=f"Agreement, or configuration of `protoseal simulate`, from which {what} are taken unless given here.",
    )


def parse_words(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """Parse ``local,self``; None stands for an option that was not given."""
    return None if value is None else tuple(word.strip() for word in value.split(",") if word.strip())


def parse_counts(_: click.Context, __: click.Parameter, value: str) -> tuple[int, ...]:
    """Parse ``5,10,20``; an empty text means no numbers."""
    try:
        numbers = tuple(int(part) for part in value.split(",") if part.strip())
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not a list of whole numbers such as 5,10,20") from error
    if not all(1 <= number <= LARGEST_COUNT for number in numbers):
        raise click.BadParameter(f"each number must be from 1 to {LARGEST_COUNT}")
    return numbers


def parse_epsilons(_: click.Context, __: click.Parameter, value: str | None) -> tuple[float, ...]:
    """Parse ``1,3,8,inf``; without the option, there are none. Every ε must be above 0."""
    if value is None:
        return ()
    try:
        epsilons = tuple(float(part) for part in value.split(",") if part.strip())
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not a list of numbers such as 1,3,8,inf") from error
    # "nan" is a number to float(), and the comparison is False for it.
    if not epsilons or not all(epsilon > 0 for epsilon in epsilons):
        raise click.BadParameter("each ε must be above 0; inf means no noise")
    return epsilons


def example(line: str) -> str:
    """Return an epilog that shows the command line as it stands, without wrapping."""
    return f"\b\nExample:\n  {line}"
