"""Report of a run, ``report.html``: one self-contained page made from ``result.json`` and the sites' folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from agreement.storage.run_files import FileError
from agreement.toml_loading import nearest
from protoseal.reports.pages import (
    NAMED_SITES,
    STYLE,
    Filters,
    data_uri,
    draw_legend,
    json_text,
    new_figure,
    series_colour,
    svg_text,
    write_page,
)
from protoseal.reports.privacy_statement import privacy_statement
from protoseal.reports.result_files import RunResult, read_result, site_folder
from protoseal.reports.split_report import PLOT
from protoseal.reports.tables import (
    METRICS,
    NO_GLOBAL_MODEL,
    NO_PROTOTYPE,
    epsilon_text,
    has_personalised,
    is_private,
    lacks_prototypes,
    paired_text,
    percent,
    points,
    seed_suffix,
    spread_text,
    unit_suffix,
)
from secure_client.output.site_files import SitePrototypes, read_prototypes
from secure_client.output.site_log import SiteLog, read_site_log

REPORT = "report.html"


def write_report(run: Path, class_name: str | None = None) -> Path:
    """Write ``report.html`` into the folder of a run and return its path.

    The folder must have ``result.json``; sites' folders add the prototypes of one class (``class_name``, or the class
    with the most personalised prototypes) and seconds at each site. The page loads nothing from anywhere else.

    Raises :class:`FileError` when a file is missing or malformed, or the class is unknown.
    """
    result = read_result(run)
    splits = (run / PLOT, run / f"seed-{result.seed}" / PLOT)
    return write_page(
        run / REPORT,
        "report.html",
        _FILTERS,
        result=result,
        curves=data_uri(accuracy_curves(result)),
        traffic=data_uri(traffic_bars(result)),
        prototypes=_prototype_figure(result, _read_sites(run, result, read_prototypes), class_name),
        seconds={name: _mean_seconds(log) for name, log in _read_sites(run, result, read_site_log).items()},
        # The split that a simulation drew; of several seeds, that of the first.
        split=next((data_uri(path.read_text(encoding="utf-8")) for path in splits if path.exists()), None),
        metrics=METRICS,
        of_seed=seed_suffix(result),
        personalised=has_personalised(result),
        private=is_private(result),
        privacy=privacy_statement(result),
        unit=unit_suffix(result),
        no_global_model=NO_GLOBAL_MODEL,
        no_prototype=NO_PROTOTYPE if lacks_prototypes(result) else None,
        config=json_text(result.config),
    )


def _read_sites(run: Path, result: RunResult, read: Any) -> dict[str, Any]:
    folders = {site.name: site_folder(run, site.name) for site in result.sites}
    return {name: read(folder) for name, folder in folders.items() if folder.is_dir()}


def _prototype_figure(
    result: RunResult, prototypes: Mapping[str, SitePrototypes], class_name: str | None
) -> dict[str, str] | None:
    """Return the figure and its class's name; None if no site has both an own and a personalised prototype."""
    if class_name is not None and class_name not in result.classes:
        raise FileError(f"the run has no class {class_name!r}{nearest(class_name, result.classes)}")
    answered = [
        sum(
            bool(saved.has_personal[index] and saved.counts[index])
            for saved in prototypes.values()
            if len(saved.has_personal) > index
        )
        for index in range(len(result.classes))
    ]
    if not any(answered):
        return None
    index = answered.index(max(answered)) if class_name is None else result.classes.index(class_name)
    # A named class may be one that no site was answered for.
    if answered[index] == 0:
        raise FileError(f"no site has a personalised prototype of class {class_name!r}; choose another class")
    return {"name": result.classes[index], "image": data_uri(prototype_scatter(project(prototypes, index)))}


def _mean_seconds(log: SiteLog) -> dict[str, float]:
    phases = sorted({phase for done in log.rounds for phase in done.seconds})
    return {
        phase: sum(done.seconds.get(phase, 0.0) for done in log.rounds) / len(log.rounds) for phase in phases
    }


def _size(count: int) -> str:
    return f"{count / 2**20:.2f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"


_FILTERS: Filters = {
    "percent": lambda share: "–" if share is None else percent(share),
    "points": points,
    "spread": spread_text,
    "paired": paired_text,
    "size": _size,
    "epsilon": epsilon_text,
}


# Figures


DASHES = {"local": ":", "self": "--"}
"""Line styles of controls; those of full methods are dashes and dots."""


def accuracy_curves(result: RunResult) -> str:
    """Draw accuracy over rounds: thin lines for sites, a thick line for the mean, broken lines for compared methods."""
    with mpl.rc_context(STYLE):
        figure, axes = _new_axes("round", "accuracy on the sites' own test sets, %")
        for index, site in enumerate(result.sites):
            points = [(done.round, done.accuracies.get(site.name)) for done in result.rounds]
            _line(
                axes,
                points,
                color=series_colour(index),
                linewidth=1,
                alpha=0.7,
                label=site.name if len(result.sites) <= NAMED_SITES else None,
            )
        means = [(done.round, done.mean_accuracy) for done in result.rounds]
        _line(axes, means, color="black", linewidth=2.5, marker="o", label=f"mean, {result.method}")
        for index, name in enumerate(result.compared):
            points = [(done.round, done.compared.get(name)) for done in result.rounds]
            colour = "black" if name in DASHES else series_colour(index)
            style = {"color": colour, "linestyle": DASHES.get(name, "-.")}
            _line(axes, points, linewidth=1.5, label=f"mean, {name}", **style)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        return _svg_with_legend(figure)


def traffic_bars(result: RunResult) -> str:
    """Draw the payload bytes that each site sent and received, in MiB."""
    with mpl.rc_context(STYLE):
        figure, axes = _new_axes("site", "payload, MiB")
        places = np.arange(len(result.sites))
        sent = [site.bytes_up / 2**20 for site in result.sites]
        received = [site.bytes_down / 2**20 for site in result.sites]
        axes.bar(places - 0.2, sent, width=0.38, label="sent by the site")
        axes.bar(places + 0.2, received, width=0.38, label="received by the site")
        if len(places) <= NAMED_SITES:
            axes.set_xticks(places, [site.name for site in result.sites])
        axes.grid(visible=False, axis="x")
        return _svg_with_legend(figure)


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
    holders = {site: saved for site, saved in prototypes.items() if saved.counts[class_index] > 0}
    local = {site: saved.local[class_index] for site, saved in holders.items()}
    personal = {
        site: saved.personal[class_index]
        for site, saved in holders.items()
        if saved.has_personal[class_index]
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
        figure, axes = _new_axes(f"first principal component (both: {share})", "second principal component")
        for index, (site, start) in enumerate(prototypes.local.items()):
            colour = series_colour(index)
            named = site if len(prototypes.local) <= NAMED_SITES else None
            axes.plot(*start, "o", markersize=8, markerfacecolor="none", color=colour, label=named)
            if site in prototypes.personal:
                end = prototypes.personal[site]
                axes.plot([start[0], end[0]], [start[1], end[1]], color=colour, alpha=0.4)
                axes.plot(*end, "o", markersize=8, color=colour)
        axes.set_aspect("equal", adjustable="datalim")
        return _svg_with_legend(figure)


def _principal_components(rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Return scores (N, 2) of N rows and their share of the variance; 1 if all rows are equal."""
    centred = rows - rows.mean(axis=0)
    # Own and personalised prototypes share the axes, or a line between the two would have no meaning.
    left, scale, _ = np.linalg.svd(centred, full_matrices=False)
    scores = np.zeros((len(rows), 2))
    rank = min(2, len(scale))
    scores[:, :rank] = left[:, :rank] * scale[:rank]
    total = float((scale**2).sum())
    return scores, float((scale[:2] ** 2).sum()) / total if total > 0 else 1.0


def _line(axes: Axes, points: Sequence[tuple[int, float | None]], **style: Any) -> None:
    """Draw a line through the points that have a value, in percent; nothing when none has."""
    percents = [(at, 100 * value) for at, value in points if value is not None]
    if percents:
        rounds, values = zip(*percents, strict=True)
        axes.plot(rounds, values, **style)


def _new_axes(horizontal: str, vertical: str) -> tuple[Figure, Axes]:
    figure = new_figure()
    axes = figure.add_subplot()
    axes.set_xlabel(horizontal)
    axes.set_ylabel(vertical)
    return figure, axes


def _svg_with_legend(figure: Figure) -> str:
    draw_legend(figure)
    return svg_text(figure)
