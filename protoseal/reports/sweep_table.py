"""Table of a sweep: ``sweep.json`` and ``sweep.csv``, a row for each method of each combination of settings."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from rich.table import Table

from agreement.storage.run_files import Record, Share, write_json, write_text
from protoseal.reports.result_files import RunResult
from protoseal.reports.tables import METRICS, add_columns, new_table, percent

CSV, JSON = "sweep.csv", "sweep.json"


class SweepFigure(Record):
    """Mean over the seeds of a mean over the sites, and the sample standard deviation with two or more seeds."""

    mean: Share
    standard_deviation: Annotated[float, Field(ge=0)] | None = None


class SweepRow(Record):
    """Figures of one method in one combination. ``figures`` has the metrics that the method has."""

    folder: str
    """Folder of the combination, below that of the sweep."""
    settings: dict[str, str]
    """Values of the settings that vary, as given."""
    method: str
    seeds: tuple[int, ...]
    figures: dict[str, SweepFigure]


class SweepResult(Record):
    """``sweep.json``. While the sweep continues, and after an interruption, ``complete`` is false."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    rows: tuple[SweepRow, ...]
    complete: bool


def sweep_rows(folder: str, settings: Mapping[str, str], result: RunResult) -> list[SweepRow]:
    """Return a row for each method of one combination's result, in the order in which the methods ran."""
    rows = []
    for method, accuracies in result.metrics.items():
        figures = {}
        for name in METRICS:
            value, spread = getattr(accuracies, name), result.summary.get(method, {}).get(name)
            if spread is not None:
                figures[name] = SweepFigure(mean=spread.mean, standard_deviation=spread.standard_deviation)
            elif value is not None and len(result.seeds) < 2:
                figures[name] = SweepFigure(mean=value)
        seeds = tuple(seed.seed for seed in result.seeds) or (result.seed,)
        rows.append(
            SweepRow(folder=folder, settings=dict(settings), method=method, seeds=seeds, figures=figures)
        )
    return rows


def write_sweep(out: Path, sweep: SweepResult) -> None:
    """Write ``sweep.json`` and ``sweep.csv`` into the folder of the sweep."""
    write_json(out / JSON, sweep)
    write_text(out / CSV, sweep_csv(sweep.rows))


def sweep_csv(rows: Sequence[SweepRow]) -> str:
    """Return the rows as CSV (RFC 4180, ending in line feeds).

    The columns are the settings that vary, ``method``, ``seeds``, for each metric its mean and its standard deviation
    as shares, and ``folder``. A figure that a row lacks is empty.
    """
    keys = list(rows[0].settings) if rows else []
    figures = [column for name in METRICS for column in (name, f"{name}_standard_deviation")]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*keys, "method", "seeds", *figures, "folder"])
    for row in rows:
        numbers: list[float | None] = []
        for name in METRICS:
            figure = row.figures.get(name)
            numbers += [None, None] if figure is None else [figure.mean, figure.standard_deviation]
        seeds = " ".join(str(seed) for seed in row.seeds)
        writer.writerow([*row.settings.values(), row.method, seeds, *numbers, row.folder])
    return text.getvalue()


def sweep_table(rows: Sequence[SweepRow]) -> Table:
    """Return accuracies for a terminal: means over sites and seeds ± the standard deviation over seeds, in per cent."""
    keys = list(rows[0].settings) if rows else []
    metrics = ("accuracy", "accuracy_global")
    table = new_table("sweep: mean ± standard deviation over seeds, %")
    add_columns(table, [*keys, "method"], ["seeds", *(METRICS[name] for name in metrics)])
    for row in rows:
        figures = [_figure_text(row.figures.get(name)) for name in metrics]
        table.add_row(*row.settings.values(), row.method, str(len(row.seeds)), *figures)
    return table


def _figure_text(figure: SweepFigure | None) -> str:
    if figure is None:
        return percent(None)
    deviation = figure.standard_deviation
    return percent(figure.mean) + ("" if deviation is None else f" ± {percent(deviation)}")
