"""Figures of attacks, as SVG: values by configuration, values over the number of samples, and ROC curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from protoseal.attacks.cases import Verdict
from protoseal.attacks.findings import WORDS
from protoseal.attacks.records import CaseRecord, CurveLine
from protoseal.reports.figures import STYLE, draw_legend, legend_handle, new_figure, series_colour, svg_text

Panels = Mapping[str, Mapping[str, Sequence[CaseRecord]]]
"""Cases by panel (adversary), and in a panel by line (configuration)."""

ALLOWED = "allowed by ε"
"""Beginning of the name of a curve that the claimed ε allows at most."""
UNDEFENDED = "undefended"
"""Name of the line that is drawn in black."""
_MARKS = {
    Verdict.DEFENDED: ("#0b6b2e", "o"),
    Verdict.NOT_DEFENDED: ("#a31515", "X"),
    Verdict.NOISY_VALUES: ("#55555f", "s"),
    Verdict.TOO_WEAK: ("#7a5c00", "D"),
}
_MARKERS = "osD^vP*h"
_COLUMNS = 2
_LEAST_RATE = 1e-4
"""Least rate that the logarithmic axes of an ROC show."""


def values_by_configuration(rows: Sequence[tuple[str, CaseRecord]]) -> str:
    """Draw the value and interval of each named case, from top to bottom, between lines of chance and of success."""
    with mpl.rc_context(STYLE):
        figure = new_figure(1.1 + 0.24 * len(rows))
        axes = figure.add_subplot()
        for place, (_, case) in enumerate(rows):
            colour, marker = _MARKS[case.verdict]
            axes.errorbar(
                case.value,
                place,
                xerr=_interval([case]),
                color=colour,
                marker=marker,
                capsize=3,
                linestyle="none",
            )
        _thresholds(axes, [case for _, case in rows])
        for verdict in dict.fromkeys(case.verdict for _, case in rows):
            axes.plot([], [], color=_MARKS[verdict][0], marker=_MARKS[verdict][1], label=WORDS[verdict])
        axes.set_yticks(range(len(rows)), [name for name, _ in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlabel(rows[0][1].metric if rows else "")
        axes.grid(visible=False, axis="y")
        draw_legend(figure, loc="outside lower center", ncols=3)
        return svg_text(figure)


def values_over_samples(panels: Panels) -> str:
    """Draw the value over the number of samples behind a prototype; a panel for each adversary."""
    metric = next(cases[0].metric for lines in panels.values() for cases in lines.values())
    with mpl.rc_context(STYLE):
        figure, places = _panels(panels, "samples behind a prototype", metric)
        styles = _styles(panels)
        for axes, lines in zip(places, panels.values(), strict=True):
            for name, cases in lines.items():
                ordered = sorted(cases, key=lambda case: case.samples_behind or 0)
                counts = [case.samples_behind or 0 for case in ordered]
                values = [case.value for case in ordered]
                axes.errorbar(counts, values, _interval(ordered), capsize=2, **styles[name])
            drawn = [case for cases in lines.values() for case in cases]
            axes.set_xscale("log", base=2)
            axes.set_xticks(sorted({case.samples_behind or 1 for case in drawn}))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:g}"))
            axes.axhline(drawn[0].chance, color="grey", linestyle=":")
            axes.axhline(drawn[0].chance + drawn[0].margin, color="black", linestyle="--", linewidth=1)
        return _with_legend(figure, [*_handles(styles), *_threshold_handles()])


def roc_curves(panels: Panels) -> str:
    """Draw true- over false-positive rates on logarithmic axes; a broken line is what the claimed ε allows."""
    with mpl.rc_context(STYLE):
        figure, places = _panels(panels, "false-positive rate", "true-positive rate")
        styles = _styles(panels)
        least = _least_rate(panels)
        for axes, lines in zip(places, panels.values(), strict=True):
            axes.plot([least, 1], [least, 1], color="grey", linestyle=":")
            for name, cases in lines.items():
                for words, line in cases[0].curves.items():
                    _rates(axes, line, least, styles[name], allowed=words.startswith(ALLOWED))
            axes.set(xscale="log", yscale="log", xlim=(least, 1.05), ylim=(least * 0.95, 1.05))
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))
                axis.set_minor_formatter(NullFormatter())
        rest = [
            legend_handle("chance", color="grey", linestyle=":"),
            legend_handle(ALLOWED, color="black", linestyle="--"),
        ]
        return _with_legend(figure, [*_handles(styles), *(rest if _has_allowed(panels) else rest[:1])])


def other_curves(panels: Panels) -> str:
    """Draw curves that are no ROC as they are, on linear axes."""
    with mpl.rc_context(STYLE):
        figure, places = _panels(panels, "x", "y")
        styles = _styles(panels)
        for axes, lines in zip(places, panels.values(), strict=True):
            for name, cases in lines.items():
                for words, line in cases[0].curves.items():
                    axes.plot(line.x, line.y, label=words, **styles[name])
            axes.legend(fontsize=7)
        return _with_legend(figure, _handles(styles))


def is_roc(case: CaseRecord) -> bool:
    """Return whether all curves of the case can be rates: within [0, 1], and never falling."""
    return bool(case.curves) and all(_are_rates(line) for line in case.curves.values())


def _are_rates(line: CurveLine) -> bool:
    x, y = np.array(line.x), np.array(line.y)
    inside = all(((numbers >= 0) & (numbers <= 1)).all() for numbers in (x, y))
    return bool(len(x)) and inside and bool((np.diff(y[np.argsort(x, kind="stable")]) >= -1e-9).all())


def _rates(axes: Axes, line: CurveLine, least: float, style: Any, *, allowed: bool) -> None:
    kind = {"linestyle": "--", "marker": ""} if allowed else {"markevery": 0.15}
    axes.plot(np.maximum(line.x, least), np.maximum(line.y, least), **{**style, **kind})


def _least_rate(panels: Panels) -> float:
    rates = [
        x
        for lines in panels.values()
        for cases in lines.values()
        for c in cases[0].curves.values()
        for x in c.x
    ]
    least = min((rate for rate in rates if rate >= _LEAST_RATE), default=_LEAST_RATE)
    return min(least, 0.1)


def _has_allowed(panels: Panels) -> bool:
    drawn = [cases[0] for lines in panels.values() for cases in lines.values()]
    return any(name.startswith(ALLOWED) for case in drawn for name in case.curves)


def _interval(cases: Sequence[CaseRecord]) -> Any:
    return [[case.value - case.low for case in cases], [case.high - case.value for case in cases]]


def _thresholds(axes: Axes, cases: Sequence[CaseRecord]) -> None:
    """Draw chance and the success threshold beside each row, which may differ between adversaries."""
    for place, case in enumerate(cases):
        axes.vlines(case.chance, place - 0.5, place + 0.5, color="grey", linestyle=":")
        axes.vlines(
            case.chance + case.margin, place - 0.5, place + 0.5, color="black", linestyle="--", linewidth=1
        )
    for handle in _threshold_handles():
        axes.add_line(handle)


def _threshold_handles() -> list[Line2D]:
    return [
        legend_handle("chance", color="grey", linestyle=":"),
        legend_handle("success begins", color="black", linestyle="--", linewidth=1),
    ]


def _handles(styles: Mapping[str, Any]) -> list[Line2D]:
    return [legend_handle(name, **style) for name, style in styles.items()]


def _styles(panels: Panels) -> dict[str, Any]:
    """Return a colour and a marker for each line's name: the same in every panel."""
    names = sorted({name for lines in panels.values() for name in lines} - {UNDEFENDED})
    styles = {
        name: {"color": series_colour(index), "marker": _MARKERS[index % len(_MARKERS)], "markersize": 4}
        for index, name in enumerate(names)
    }
    return {UNDEFENDED: {"color": "black", "marker": "x", "markersize": 4}} | styles


def _panels(panels: Panels, horizontal: str, vertical: str) -> tuple[Figure, list[Axes]]:
    """Return a figure with one named panel for each adversary, all with the same axes."""
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(0.8 + 2.5 * rows)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, name in zip(grid, panels, strict=False):
        axes.set_title(name, fontsize=9)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    figure.supxlabel(horizontal, fontsize=9)
    figure.supylabel(vertical, fontsize=9)
    return figure, list(grid[: len(panels)])


def _with_legend(figure: Figure, handles: Sequence[Line2D]) -> str:
    draw_legend(figure, handles, loc="outside upper center", ncols=3)
    return svg_text(figure)
