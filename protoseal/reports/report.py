"""Report of a run, ``report.html``: one self-contained page made from ``result.json`` and the sites' folders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agreement.storage.run_files import FileError, write_text
from agreement.toml_loading import nearest
from protoseal.reports.figures import accuracy_curves, data_uri, project, prototype_scatter, traffic_bars
from protoseal.reports.html_pages import Filters, template
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
    of_seed,
    of_unit,
    paired_text,
    points,
    spread_text,
)
from secure_client.output.site_files import read_prototypes
from secure_client.output.site_log import SiteLog, read_site_log
from secure_client.output.site_prototypes import SitePrototypes

REPORT = "report.html"


def write_report(run: Path, class_name: str | None = None) -> Path:
    """Write ``report.html`` into the folder of a run and return its path.

    The folder must have ``result.json``; sites' folders add the prototypes of one class (``class_name``, or the class
    with the most personalised prototypes) and seconds at each site. The page loads nothing from anywhere else.

    Raises :class:`FileError` when a file is missing or malformed, or the class is unknown.
    """
    result = read_result(run)
    page = template(REPORT, _FILTERS).render(
        result=result,
        curves=data_uri(accuracy_curves(result)),
        traffic=data_uri(traffic_bars(result)),
        prototypes=_prototype_figure(result, _read_each(run, result, read_prototypes), class_name),
        seconds={name: _site_seconds(log) for name, log in _read_each(run, result, read_site_log).items()},
        split=_split_figure(run, result),
        metrics=METRICS,
        of_seed=of_seed(result),
        personalised=has_personalised(result),
        private=is_private(result),
        privacy=privacy_statement(result),
        unit=of_unit(result),
        no_global_model=NO_GLOBAL_MODEL,
        no_prototype=NO_PROTOTYPE if lacks_prototypes(result) else None,
        config=json.dumps(result.config, indent=2, ensure_ascii=False, default=str),
    )
    return write_text(run / REPORT, page)


def _read_each(run: Path, result: RunResult, read: Any) -> dict[str, Any]:
    """Return the result of ``read`` for the folder of each site that has one."""
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
            bool(each.has_personal[index] and each.counts[index])
            for each in prototypes.values()
            if len(each.has_personal) > index
        )
        for index in range(len(result.classes))
    ]
    if not any(answered):
        return None
    index = answered.index(max(answered)) if class_name is None else result.classes.index(class_name)
    if answered[index] == 0:
        raise FileError(f"no site has a personalised prototype of class {class_name!r}; choose another class")
    return {"name": result.classes[index], "image": data_uri(prototype_scatter(project(prototypes, index)))}


def _split_figure(run: Path, result: RunResult) -> str | None:
    """Return the figure of the split that a simulation wrote; of several seeds, that of the first."""
    paths = (run / PLOT, run / f"seed-{result.seed}" / PLOT)
    return next((data_uri(path.read_text(encoding="utf-8")) for path in paths if path.exists()), None)


def _site_seconds(log: SiteLog) -> dict[str, float]:
    """Return mean seconds in a round, by phase."""
    phases = sorted({phase for each in log.rounds for phase in each.seconds})
    return {
        phase: sum(each.seconds.get(phase, 0.0) for each in log.rounds) / len(log.rounds) for phase in phases
    }


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"


def _size(count: int) -> str:
    return f"{count / 2**20:.2f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"


_FILTERS: Filters = {
    "percent": _percent,
    "points": points,
    "spread": spread_text,
    "paired": paired_text,
    "size": _size,
    "epsilon": epsilon_text,
}
