"""Toolkit of all figures: one style, SVG text that is the same for the same figure."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

STYLE: Any = {  # matplotlib's key types differ between versions
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "sans-serif",
    "font.size": 9,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "svg.fonttype": "none",
    # Without a salt, identifiers in an SVG are random, and the same report would differ at each writing.
    "svg.hashsalt": "protoseal",
    "text.parse_math": False,  # a "$" in a class name is a dollar sign
}
"""Style of all figures, for ``matplotlib.rc_context``."""
NAMED_SITES = 10
"""Number of sites above which a figure does not name single sites."""
_WIDTH = 7.2
_HEIGHT = 3.8


def new_figure(height: float = _HEIGHT, width: float = _WIDTH) -> Figure:
    """Return an empty figure of this size in inches. Call it, and draw, inside ``mpl.rc_context(STYLE)``."""
    return Figure(figsize=(width, height), layout="constrained")


def series_colour(index: int) -> str:
    """Return the colour of the series with this index; colours repeat after ten."""
    return f"C{index % 10}"


def legend_handle(label: str, **style: Any) -> Line2D:
    """Return a line for a legend that is not drawn on any axes."""
    return Line2D([], [], label=label, **style)


def draw_legend(figure: Figure, handles: Sequence[Line2D] | None = None, **options: Any) -> None:
    """Draw a legend outside the axes, at the upper right unless ``options`` say otherwise.

    The entries are ``handles``, or by default all labelled artists; without any there is no legend.
    """
    if handles is None and not any(axes.get_legend_handles_labels()[0] for axes in figure.axes):
        return
    figure.legend(handles=handles, **{"loc": "outside right upper", **options})


def svg_text(figure: Figure) -> str:
    """Return the figure as SVG text, without a date: the same figure gives the same text."""
    text = io.StringIO()
    with mpl.rc_context(STYLE):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
