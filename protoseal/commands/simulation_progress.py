"""Progress of `protoseal simulate`: a bar on a terminal, else lines; reports; scalars for TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from agreement import Method
from protoseal.reports.report import write_report
from protoseal.reports.run_results import mean
from protoseal.reports.tables import percent
from protoseal.simulation.config import SimulationConfig
from protoseal.simulation.experiment import CompletedRound, EndedRun, Watcher, WrittenResult
from protoseal.simulation.ray_runs import EndedTask
from protoseal.simulation.tensorboard import Scalars
from secure_client.output.site_log import SiteRound

LINE_SECONDS = 5.0
"""Least seconds between two progress lines without a terminal; the end of a method is always printed."""


class Reports(Watcher):
    """Watcher that writes ``report.html`` beside each ``result.json``, updated as results come."""

    def on_result(self, written: WrittenResult) -> None:
        """Write the report of the results so far."""
        write_report(written.folder)


class Lines(Watcher):
    """Watcher that prints a line on standard error every few seconds."""

    def __init__(self, console: Console, rounds: int) -> None:
        self._console = console
        self._rounds = rounds
        self._start = time.monotonic()
        self._last_line = self._start

    def on_completed(self, completed: CompletedRound) -> None:
        """Print a line, unless the last line is too recent."""
        now = time.monotonic()
        if now - self._last_line >= LINE_SECONDS:
            self._last_line = now
            done = f"round {completed.round} of {self._rounds}{_describe_accuracy(completed.reports)}"
            self._print_line(f"seed {completed.seed}, {completed.method.value}, {done}")

    def on_run(self, ended: EndedRun) -> None:
        """Print a line at the end of every run."""
        last = {name: rounds[-1] for name, rounds in ended.outcome.site_rounds.items() if rounds}
        origin = "" if ended.anew else " (read from an earlier start)"
        self._print_line(f"seed {ended.seed}, {ended.method.value}{_describe_accuracy(last)}{origin}")

    def _print_line(self, text: str) -> None:
        seconds = time.monotonic() - self._start
        self._console.print(f"{seconds:8.1f} s  {text}", highlight=False, soft_wrap=True)


class RayLines:
    """Printer of a line on standard error for every task of Ray that ends."""

    def __init__(self, runs: int) -> None:
        self._console = Console(stderr=True)
        self._runs = runs
        self._ended = 0
        self._start = time.monotonic()

    def __call__(self, ended: EndedTask) -> None:
        """Print the line; runs that an earlier start had completed have none."""
        self._ended += 1
        seconds = time.monotonic() - self._start
        outcome = "" if ended.error is None else ": failed"
        text = f"{ended.folder.name}, seed {ended.seed}, {ended.method}{outcome}"
        number = f"{self._ended} of at most {self._runs}"
        self._console.print(f"{seconds:8.1f} s  {number}: {text}", highlight=False, soft_wrap=True)


class Bars(Watcher):
    """Watcher that shows one bar of rounds on a terminal, over all seeds and methods."""

    def __init__(self, bar: Bar, task: TaskID, rounds: int) -> None:
        self._bar = bar
        self._task = task
        self._rounds = rounds
        self._completed: dict[tuple[int, Method], int] = {}

    def on_completed(self, completed: CompletedRound) -> None:
        """Advance the bar by one round."""
        self._show(completed.seed, completed.method, completed.round, _describe_accuracy(completed.reports))

    def on_run(self, ended: EndedRun) -> None:
        """Complete the run's part of the bar, also if the run stopped early."""
        self._show(ended.seed, ended.method, self._rounds)

    def _show(self, seed: int, method: Method, rounds: int, text: str = "") -> None:
        """Show the rounds of all runs, which need not run one after the other."""
        self._completed[seed, method] = rounds
        described = f"seed {seed}, {method.value}{text}"
        self._bar.update(self._task, completed=sum(self._completed.values()), description=described)


class Several(Watcher):
    """Watcher that forwards each event to several watchers."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self._watchers = watchers

    def on_completed(self, completed: CompletedRound) -> None:
        """Forward the round to all watchers."""
        for watcher in self._watchers:
            watcher.on_completed(completed)

    def on_run(self, ended: EndedRun) -> None:
        """Forward the end of the run to all watchers."""
        for watcher in self._watchers:
            watcher.on_run(ended)

    def on_result(self, written: WrittenResult) -> None:
        """Forward the result to all watchers."""
        for watcher in self._watchers:
            watcher.on_result(written)


@contextmanager
def show_progress(config: SimulationConfig) -> Iterator[Watcher]:
    """Yield the configuration's watchers for the duration of the simulation."""
    console = Console(stderr=True)
    with ExitStack() as stack:
        watchers: list[Watcher] = [Reports()]
        if config.tensorboard:
            watchers.append(stack.enter_context(Scalars(config.out / "tensorboard")))
        if console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
            )
            bar = stack.enter_context(Bar(*columns, console=console))
            total = len(config.seeds) * len(config.methods) * config.rounds
            watchers.append(Bars(bar, bar.add_task("rounds", total=total), config.rounds))
        else:
            watchers.append(Lines(console, config.rounds))
        yield Several(watchers)


def _describe_accuracy(reports: Mapping[str, SiteRound]) -> str:
    """Return the sites' mean accuracy as text, empty for a round without tests."""
    accuracy = mean(report.accuracy for report in reports.values())
    return "" if accuracy is None else f": {percent(accuracy)} %"
