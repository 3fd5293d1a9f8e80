"""Record of a benchmark: cases with their times and ratios, as JSON, as a table and as growth curves.

``{"schema": 1, "name", "machine", "cases": [{…, "seconds", "baseline_seconds", "ratio"}]}``; a case without a
baseline has null there.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import click
import matplotlib as mpl
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from agreement.storage.run_files import write_text
from protoseal.commands.options import FILE
from protoseal.reports.pages import STYLE, svg_text

Value = str | int | float | None
Task = Callable[[], object]
_LEAST_STEP = 1.2
"""Smallest ratio of two numbers beside a logarithmic axis."""

json_option = click.option(
    "--json",
    "path",
    type=FILE,
    help="File that gets the figures as JSON, updated after each case.",
)


class Spent(NamedTuple):
    """Seconds of wall-clock time, and CPU seconds of this process."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Case:
    """One comparison: the case's fields, and the times of both sides; no ratio without a baseline."""

    what: Mapping[str, Value]
    spent: Sequence[Spent]
    baseline: Sequence[Spent] = ()

    @property
    def ratio(self) -> float | None:
        """Speed relative to the baseline: the median over pairs that ran one after the other."""
        return self._ratio([spent.wall for spent in self.baseline], [spent.wall for spent in self.spent])

    @property
    def cpu_ratio(self) -> float | None:
        """Speed relative to the baseline in CPU seconds, which other load on the machine disturbs less.

        The ratio is valid for one thread only: threads of one program wait for each other, and waiting counts.
        """
        return self._ratio([spent.cpu for spent in self.baseline], [spent.cpu for spent in self.spent])

    def as_json(self) -> dict[str, Value]:
        """Return one object of ``cases``."""
        return {
            **self.what,
            "seconds": _median([spent.wall for spent in self.spent]),
            "baseline_seconds": _median([spent.wall for spent in self.baseline]),
            "ratio": self.ratio,
            "cpu_ratio": self.cpu_ratio,
            "repeats": len(self.spent),
        }

    @staticmethod
    def _ratio(baseline: Sequence[float], ours: Sequence[float]) -> float | None:
        return _median(
            [theirs / mine for theirs, mine in zip(baseline, ours, strict=True)] if baseline else []
        )


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def spent_on(task: Task) -> Spent:
    """Return the time of a task."""
    begin = time.perf_counter(), time.process_time()
    task()
    return Spent(time.perf_counter() - begin[0], time.process_time() - begin[1])


def compare(what: Mapping[str, Value], ours: Task, baseline: Task, repeats: int) -> Case:
    """Time both sides alternately, so that other load affects both equally, after one warm-up run."""
    pairs = [(spent_on(baseline), spent_on(ours)) for _ in range(repeats + 1)][1:]
    return Case(what, [mine for _, mine in pairs], [theirs for theirs, _ in pairs])


def machine(**more: Value) -> dict[str, Value]:
    """Describe the machine. ``load`` is of the last minute; a value well above 1 means that the machine was shared."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
        **more,
    }


def peak_memory() -> int:
    """Return the peak memory of this process in bytes, as Linux counts it; elsewhere 0."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    kibibytes = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(kibibytes[0]) * 1024 if kibibytes else 0


def as_record(name: str, machine: Mapping[str, Value], cases: Sequence[Case]) -> dict[str, object]:
    """Return the content of the whole file."""
    return {"schema": 1, "name": name, "machine": dict(machine), "cases": [case.as_json() for case in cases]}


def write_record(path: Path, record: Mapping[str, object]) -> Path:
    """Write the record as JSON; raise for NaN and infinity, which JSON lacks."""
    return write_text(path, json.dumps(record, indent=2, allow_nan=False) + "\n")


def _processor() -> str:
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text(encoding="utf-8").splitlines() if cpus.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def record_cases(
    name: str, cases: Iterable[Case], path: Path | None, facts: Mapping[str, Value]
) -> list[Case]:
    """Return the cases, written to ``path`` after each, so that an interrupted measurement keeps what it has."""
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
    for case in cases:
        fields = case.as_json()
        table.add_row(*(_cell(fields.get(name)) for name in columns))
    Console().print(table)


def draw_growth(
    plot: Path,
    cases: Iterable[Case],
    over: str,
    curves: Mapping[str, str],
    axes: tuple[str, str],
    name: str = "growth",
) -> None:
    """Draw the fields of the cases called ``name`` over their number ``over``, as SVG.

    ``curves`` has the label of each field. Raises ``click.UsageError`` if no case has that name.
    """
    grown = [case.as_json() for case in cases if case.what["case"] == name]
    if not grown:
        raise click.UsageError(f"--plot draws how figures grow with {over}: give numbers to measure")
    lines = {
        label: [(float(str(case[over])), float(str(case[field]))) for case in grown]
        for field, label in curves.items()
    }
    write_text(plot, growth_curves(*axes, lines))


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def growth_curves(horizontal: str, vertical: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Draw a line through the points (x, y) of each name as SVG, on logarithmic axes: a power law is straight."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 3.8), layout="constrained")
        axes = figure.add_subplot()
        axes.set(xlabel=horizontal, ylabel=vertical, xscale="log", yscale="log")
        for name, points in lines.items():
            axes.plot(*zip(*sorted(points), strict=True), marker="o", label=name)
        places = _apart(sorted({x for points in lines.values() for x, _ in points}))
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        figure.legend(loc="outside right upper")
        return svg_text(figure)


def _apart(places: Sequence[float]) -> list[float]:
    """Return the places whose labels do not overlap the previous label."""
    labelled: list[float] = []
    for place in places:
        if not labelled or place > _LEAST_STEP * labelled[-1]:
            labelled.append(place)
    return labelled
