"""Types of options that several commands share, and the example at the end of their ``--help``."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import click

MOST = 10**9
COUNT = click.IntRange(1, MOST)
FILE = click.Path(dir_okay=False, path_type=Path)
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
    """``--agreement``, as the argument ``file``: ``what`` is taken from it."""
    return click.option(
        "--agreement",
        "file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help=f"Agreement, or configuration of `protoseal simulate`, from which {what} are taken unless given here.",
    )


def counts(_: click.Context, __: click.Parameter, value: str) -> tuple[int, ...]:
    """Parse ``5,10,20``; an empty text means no numbers."""
    try:
        numbers = tuple(int(part) for part in value.split(",") if part.strip())
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not a list of whole numbers such as 5,10,20") from error
    if not all(1 <= number <= MOST for number in numbers):
        raise click.BadParameter(f"each number must be from 1 to {MOST}")
    return numbers


def example(line: str) -> str:
    """Return an epilog that shows the command line as it stands, without wrapping."""
    return f"\b\nExample:\n  {line}"
