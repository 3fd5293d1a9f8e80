"""Growth curves of a benchmark's figures, in the style of a report's figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.figure import Figure

from protoseal.reports.figures import STYLE, svg_text

_LEAST_STEP = 1.2
"""Smallest ratio of two numbers beside a logarithmic axis."""


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
    kept: list[float] = []
    for place in places:
        if not kept or place > _LEAST_STEP * kept[-1]:
            kept.append(place)
    return kept
