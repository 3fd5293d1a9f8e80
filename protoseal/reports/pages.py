"""Toolkit of all reports: self-contained HTML pages in one frame and style, with embedded SVG figures.

A report renders a template of this package, which extends ``page.html``::

    write_page(folder / "report.html", "report.html", filters, result=result, curves=data_uri(svg))

No page loads a resource from elsewhere: figures are embedded, and the page's content policy forbids loading. The same
values give the same bytes, those of a figure included.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import matplotlib as mpl
from jinja2 import Environment, FunctionLoader, StrictUndefined
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from agreement.storage.run_files import write_text

Filters = Mapping[str, Callable[..., object]]


def write_page(path: Path, template: str, filters: Filters, **values: object) -> Path:
    """Render a template with ``values``, write the page to ``path`` and return the path.

    Values are escaped, and a missing value raises ``jinja2.UndefinedError``.
    """
    environment = Environment(
        loader=FunctionLoader(_read_template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters
    return write_text(path, environment.get_template(template).render(**values))


def _read_template(name: str) -> str:
    return (files("protoseal.reports") / name).read_text(encoding="utf-8")


def json_text(table: Mapping[str, Any]) -> str:
    """Return settings as indented JSON, to be shown on a page."""
    return json.dumps(table, indent=2, ensure_ascii=False, default=str)


def data_uri(svg: str) -> str:
    """Return the SVG as a data URI for ``img``: no scripts run, and identifiers cannot collide."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode("ascii")


# Figures

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
