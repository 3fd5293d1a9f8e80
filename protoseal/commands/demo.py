"""Command ``protoseal demo``: runs a whole federation on this machine as separate processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from protoseal.commands.options import FOLDER, example
from protoseal.commands.terminal_output import one_line_errors, print_warnings

if TYPE_CHECKING:
    from protoseal.demo import Progress


@click.command(epilog=example("protoseal demo --out runs/demo --rounds 3"))
@click.option(
    "--out",
    type=FOLDER,
    default=Path("runs/demo"),
    show_default=True,
    help="Folder for everything that the demo writes.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 100),
    default=8,
    show_default=True,
    help="Number of rounds of training.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**31),
    default=0,
    show_default=True,
    help="Seed of the data split, the initial model and the training.",
)
@click.option("--json", "as_json", is_flag=True, help="Print result.json instead of tables.")
@one_line_errors
def demo(out: Path, rounds: int, seed: int, as_json: bool) -> None:
    """Run a whole federation on this machine: a CA, a coordinator and five sites as processes, under ckks.

    The folder of --out then has a folder with the log of each party, result.json and report.html.
    """
    if "numpy" not in sys.modules:
        # NumPy reads this when it is loaded. The parties' processes need the cores.
        os.environ.setdefault("OMP_NUM_THREADS", "1")

    from protoseal.demo import run_demo
    from protoseal.reports.report import write_report
    from protoseal.reports.tables import result_tables

    with _open_display(Console(stderr=True)) as show:
        outcome = run_demo(out.absolute(), seed=seed, rounds=rounds, on_progress=show)
    report = write_report(out)
    print_warnings(outcome.result.diagnoses)
    if as_json:
        click.echo(outcome.result.model_dump_json(by_alias=True, indent=2))
        return
    for table in result_tables(outcome.result):
        Console().print(table)
    for sentence in outcome.sentences:
        Console().print(sentence, highlight=False, soft_wrap=False)
    click.echo("One run is one draw of data and initial weights; docs/results/accuracy.md compares ten.")
    click.echo(f"Everything is in {out}; open {report}")


@contextmanager
def _open_display(console: Console) -> Iterator[Callable[[Progress], None]]:
    """Show progress: on a terminal an updating table, elsewhere a line for each site and round."""
    if not console.is_terminal:
        yield _Lines(console).show
        return
    with Live(console=console, transient=True, refresh_per_second=4) as live:
        yield lambda progress: live.update(_make_table(progress))


def _make_table(progress: Progress) -> Table:
    from protoseal.reports.tables import percent

    table = Table(title=progress.step, title_justify="left")
    for name in ("site", "round", "accuracy %", "kB up", "kB down"):
        table.add_column(name, justify="left" if name == "site" else "right")
    for name, log in sorted(progress.sites.items()):
        if log.rounds:
            last = log.rounds[-1]
            up = f"{log.bytes_up / 1000:,.0f}"
            down = f"{log.bytes_down / 1000:,.0f}"
            table.add_row(name, str(last.round), percent(last.accuracy), up, down)
    return table


class _Lines:
    """Progress display that prints each step and each site's round once."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._step = ""
        self._rounds: dict[str, int] = {}

    def show(self, progress: Progress) -> None:
        """Print the steps and rounds since the last call."""
        from protoseal.reports.tables import accuracy_text

        if progress.step != self._step:
            self._step = progress.step
            self._console.print(progress.step)
        for name, log in sorted(progress.sites.items()):
            if len(log.rounds) > self._rounds.get(name, 0):
                self._rounds[name] = len(log.rounds)
                last = log.rounds[-1]
                accuracy = "" if last.accuracy_classifier is None else f", accuracy {accuracy_text(last)}"
                self._console.print(f"  {name}: round {last.round}{accuracy}")
