"""Report of a split: how many samples of each class every site and domain has, as files and a plot.

The report exists for simulations only: class counts of real sites are private, and no deployment collects them.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from agreement.storage.run_files import write_text
from protoseal.reports.pages import (
    NAMED_SITES,
    STYLE,
    draw_legend,
    legend_handle,
    new_figure,
    series_colour,
    svg_text,
)
from protoseal.splits import SiteArrays

CSV, JSON, PLOT = "split.csv", "split.json", "split.svg"
NAMED_CLASSES = 30
"""Number of classes above which the plot labels only every second, third, … class."""

LARGEST_DOT = 160.0
"""Area, in points squared, of the dot for a plot's largest count, if the room allows."""


@dataclass(frozen=True)
class SplitRow:
    """Numbers of samples of each class, in class order, in one part of a site's samples of one domain.

    ``part`` is train, validation or test.
    """

    site: str
    domain: str
    part: str
    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        """Number of samples of all classes."""
        return sum(self.counts)


def split_rows(sites: Sequence[SiteArrays], classes: Sequence[str]) -> list[SplitRow]:
    """Return a row for each site, domain and part, in the order of sites, then in the site's order."""
    return [
        SplitRow(site.name, domain, part, tuple(map(int, counts)))
        for site in sites
        for number, domain in enumerate(site.domains)
        for part, samples in site.parts.items()
        for counts in [np.bincount(samples.labels[samples.domains == number], minlength=len(classes))]
    ]


def split_csv(rows: Sequence[SplitRow], classes: Sequence[str]) -> str:
    """Return the rows as CSV (RFC 4180, ending in line feeds): site, domain, part, all, then the classes by name."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["site", "domain", "part", "all", *classes])
    writer.writerows([row.site, row.domain, row.part, row.total, *row.counts] for row in rows)
    return text.getvalue()


def split_json(rows: Sequence[SplitRow], classes: Sequence[str]) -> str:
    """Return the rows as JSON: ``{"schema": 1, "classes", "rows": [{"site", "domain", "part", "counts"}]}``."""
    listed = [
        {"site": row.site, "domain": row.domain, "part": row.part, "counts": list(row.counts)} for row in rows
    ]
    return (
        json.dumps({"schema": 1, "classes": list(classes), "rows": listed}, indent=2, ensure_ascii=False)
        + "\n"
    )


def split_figure(rows: Sequence[SplitRow], classes: Sequence[str]) -> Figure:
    """Draw a dot for each site and class of its training samples, with an area proportional to their number.

    Colours are domains; the dot of a site with several domains is divided into rings, whose areas add up.
    """
    trained = [row for row in rows if row.part == "train"]
    sites = list(dict.fromkeys(row.site for row in trained))
    domains = list(dict.fromkeys(row.domain for row in trained))
    counts = np.zeros((len(sites), len(domains), len(classes)), dtype=np.int64)
    for row in trained:
        counts[sites.index(row.site), domains.index(row.domain)] += np.array(row.counts)
    with mpl.rc_context(STYLE):
        size = (max(4.0, min(14.0, 1.6 + 0.32 * len(sites))), max(2.4, min(9.0, 1.2 + 0.24 * len(classes))))
        figure = new_figure(size[1], size[0])
        axes = figure.add_subplot()
        _dots(axes, counts, _largest_dot(size, len(sites), len(classes)))
        _name_axes(axes, sites, classes)
        if len(domains) > 1:
            handles = [
                legend_handle(name, linestyle="", marker="o", color=series_colour(number))
                for number, name in enumerate(domains)
            ]
            draw_legend(figure, handles)
    return figure


def write_split(out: Path, sites: Sequence[SiteArrays], classes: Sequence[str]) -> list[Path]:
    """Write ``split.csv``, ``split.json`` and ``split.svg`` into ``out`` and return their paths.

    The same split writes the same bytes.
    """
    rows = split_rows(sites, classes)
    return [
        write_text(out / CSV, split_csv(rows, classes)),
        write_text(out / JSON, split_json(rows, classes)),
        write_text(out / PLOT, svg_text(split_figure(rows, classes))),
    ]


def _largest_dot(size: tuple[float, float], sites: int, classes: int) -> float:
    """Return an area with which neighbours do not touch: 72 points an inch, four fifths of the distance of centres."""
    room = 0.8 * 72.0 * min(0.8 * size[0] / max(sites, 1), 0.8 * size[1] / max(classes, 1))
    return min(LARGEST_DOT, room**2)


def _dots(axes: Axes, counts: NDArray[np.int64], largest: float) -> None:
    """Draw ``counts`` (sites, domains, classes): the outermost ring first, so that the inner ones lie on it."""
    largest_count = max(1, int(counts.sum(axis=1).max()))
    # A domain's dot covers its own samples and those after it, so that its ring has the area of its own.
    outer = counts[:, ::-1].cumsum(axis=1)[:, ::-1]
    for domain in range(counts.shape[1]):
        site, label = np.nonzero(counts[:, domain])
        areas = largest * outer[site, domain, label] / largest_count
        axes.scatter(site, label, s=areas, color=series_colour(domain), linewidths=0, zorder=2)
    axes.set_title(f"training samples by area; the largest dot: {largest_count:,}")


def _name_axes(axes: Axes, sites: Sequence[str], classes: Sequence[str]) -> None:
    axes.set_xlabel("site")
    axes.set_ylabel("class")
    axes.set_xlim(-0.7, len(sites) - 0.3)
    axes.set_ylim(len(classes) - 0.3, -0.7)
    # Rounded up, so that labels never overlap.
    step = -(-len(sites) // (4 * NAMED_SITES))
    angle = 90 if len(sites) > NAMED_SITES // 2 else 0
    axes.set_xticks(range(0, len(sites), step), sites[::step], rotation=angle)
    step = -(-len(classes) // NAMED_CLASSES)
    axes.set_yticks(range(0, len(classes), step), classes[::step])
