"""Figures of a run's report, each as SVG text."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from protoseal.reports.result_files import RunResult
from secure_client.output.site_prototypes import SitePrototypes

NAMED_SITES = 10
"""Number of sites above which lines and points of single sites are not named."""

STYLE: Any = {  # matplotlib's key types differ between versions
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "sans-serif",
    "font.size": 9,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "protoseal",
    "text.parse_math": False,  # a "$" in a class name is a dollar sign
}
DASHES = {"local": ":", "self": "--"}
"""Line styles of controls; those of full methods are dashes and dots."""


def accuracy_curves(result: RunResult) -> str:
    """Draw accuracy over rounds: thin lines for sites, a thick line for the mean, broken lines for compared methods."""
    with mpl.rc_context(STYLE):
        figure, axes = _new("round", "accuracy on the sites' own test sets, %")
        for index, site in enumerate(result.sites):
            points = [(each.round, each.accuracies.get(site.name)) for each in result.rounds]
            _line(axes, points, color=_colour(index), linewidth=1, alpha=0.7, label=_label(result, site.name))
        means = [(each.round, each.mean_accuracy) for each in result.rounds]
        _line(axes, means, color="black", linewidth=2.5, marker="o", label=f"mean, {result.method}")
        for index, name in enumerate(result.compared):
            points = [(each.round, each.compared.get(name)) for each in result.rounds]
            colour = "black" if name in DASHES else _colour(index)
            style = {"color": colour, "linestyle": DASHES.get(name, "-.")}
            _line(axes, points, linewidth=1.5, label=f"mean, {name}", **style)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        return _with_legend(figure, axes)


def traffic_bars(result: RunResult) -> str:
    """Draw the payload bytes that each site sent and received, in MiB."""
    with mpl.rc_context(STYLE):
        figure, axes = _new("site", "payload, MiB")
        places = np.arange(len(result.sites))
        sent = [site.bytes_up / 2**20 for site in result.sites]
        received = [site.bytes_down / 2**20 for site in result.sites]
        axes.bar(places - 0.2, sent, width=0.38, label="sent by the site")
        axes.bar(places + 0.2, received, width=0.38, label="received by the site")
        if len(places) <= NAMED_SITES:
            axes.set_xticks(places, [site.name for site in result.sites])
        axes.grid(visible=False, axis="x")
        return _with_legend(figure, axes)


@dataclass(frozen=True)
class PrototypeMap:
    """Prototypes of one class in two dimensions. ``explained`` is the share of variance in these dimensions.

    ``local`` and ``personal`` map site to (x, y); a site without a personalised prototype has a local one
    only.
    """

    local: Mapping[str, NDArray[np.float64]]
    personal: Mapping[str, NDArray[np.float64]]
    explained: float


def project(prototypes: Mapping[str, SitePrototypes], class_index: int) -> PrototypeMap:
    """Project one class's local and personalised prototypes of all its sites on their principal components."""
    holders = {site: each for site, each in prototypes.items() if each.counts[class_index] > 0}
    local = {site: each.local[class_index] for site, each in holders.items()}
    personal = {
        site: each.personal[class_index] for site, each in holders.items() if each.has_personal[class_index]
    }
    points, explained = _principal_components(np.stack([*local.values(), *personal.values()]))
    return PrototypeMap(
        local=dict(zip(local, points, strict=False)),
        personal=dict(zip(personal, points[len(local) :], strict=True)),
        explained=explained,
    )


def prototype_scatter(prototypes: PrototypeMap) -> str:
    """Draw each site's local prototype (hollow), with a line to its personalised one (filled)."""
    share = f"{100 * prototypes.explained:.0f} % of the variance"
    with mpl.rc_context(STYLE):
        figure, axes = _new(f"first principal component (both: {share})", "second principal component")
        for index, (site, start) in enumerate(prototypes.local.items()):
            colour = _colour(index)
            named = site if len(prototypes.local) <= NAMED_SITES else None
            axes.plot(*start, "o", markersize=8, markerfacecolor="none", color=colour, label=named)
            if site in prototypes.personal:
                end = prototypes.personal[site]
                axes.plot([start[0], end[0]], [start[1], end[1]], color=colour, alpha=0.4)
                axes.plot(*end, "o", markersize=8, color=colour)
        axes.set_aspect("equal", adjustable="datalim")
        return _with_legend(figure, axes)


def data_uri(svg: str) -> str:
    """Return the SVG as a data URI for ``img``: no scripts run, and identifiers cannot collide."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode("ascii")


def _principal_components(rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Return scores (N, 2) of N rows and their share of the variance; 1 if all rows are equal."""
    centred = rows - rows.mean(axis=0)
    left, scale, _ = np.linalg.svd(centred, full_matrices=False)
    scores = np.zeros((len(rows), 2))
    kept = min(2, len(scale))
    scores[:, :kept] = left[:, :kept] * scale[:kept]
    total = float((scale**2).sum())
    return scores, float((scale[:2] ** 2).sum()) / total if total > 0 else 1.0


def _new(horizontal: str, vertical: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7.2, 3.8), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(horizontal)
    axes.set_ylabel(vertical)
    return figure, axes


def _line(axes: Axes, points: Sequence[tuple[int, float | None]], **style: Any) -> None:
    """Draw a line through the points that have a value, in percent; nothing when none has."""
    known = [(at, 100 * value) for at, value in points if value is not None]
    if known:
        axes.plot(*zip(*known, strict=True), **style)


def _label(result: RunResult, site: str) -> str | None:
    return site if len(result.sites) <= NAMED_SITES else None


def _colour(index: int) -> str:
    return f"C{index % 10}"


def svg_of(figure: Figure) -> str:
    """Return the figure as SVG text, without a date: the same figure gives the same text."""
    text = io.StringIO()
    with mpl.rc_context(STYLE):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _with_legend(figure: Figure, axes: Axes) -> str:
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside right upper")
    return svg_of(figure)
