import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection

from protoseal.reports.split_report import SplitRow, split_figure, split_rows, write_split
from protoseal.splits import SiteArrays, by_domain, iid, with_validation
from secure_client.data.samples import Samples
from tests.support.site_data import data, per_class

CLASSES = ("a", "b", "c, or $d")


@dataclass(frozen=True)
class Dots:
    """Marks that one domain adds to a plot."""

    places: list[tuple[float, float]]
    sizes: list[float]
    colour: tuple[float, ...]


def dots(axes: Axes) -> list[Dots]:
    drawn = [each for each in axes.collections if isinstance(each, PathCollection)]
    return [
        Dots(
            [(float(x), float(y)) for x, y in np.asarray(each.get_offsets())],
            np.asarray(each.get_sizes()).tolist(),
            tuple(np.asarray(each.get_facecolor())[0]),
        )
        for each in drawn
    ]


def samples(labels: list[int], domains: list[int]) -> Samples:
    return Samples(np.zeros((len(labels), 1), np.float32), np.array(labels), np.array(domains))


SITES = (
    SiteArrays("site-1", samples([0, 0, 2], [0, 0, 1]), samples([0], [0]), ("photo", "sketch")),
    SiteArrays("site-2", samples([1] * 8, [0] * 8), samples([1], [0]), ("sketch",), samples([1, 1], [0, 0])),
)
ROWS = [
    SplitRow("site-1", "photo", "train", (2, 0, 0)),
    SplitRow("site-1", "photo", "test", (1, 0, 0)),
    SplitRow("site-1", "sketch", "train", (0, 0, 1)),
    SplitRow("site-1", "sketch", "test", (0, 0, 0)),
    SplitRow("site-2", "sketch", "train", (0, 8, 0)),
    SplitRow("site-2", "sketch", "validation", (0, 2, 0)),
    SplitRow("site-2", "sketch", "test", (0, 1, 0)),
]


def test_split_rows_count_classes_by_site_domain_part() -> None:
    assert split_rows(SITES, CLASSES) == ROWS


def test_split_rows_add_up_to_samples() -> None:
    whole = data(20, domains=3)
    sites = with_validation(iid(whole, sites=4, seed=0), 0.2, 0)
    total = np.sum([row.counts for row in split_rows(sites, whole.classes)], axis=0)
    assert total.tolist() == per_class(whole.train, 4).tolist()


def test_write_split_files_hold_rows(tmp_path: Path) -> None:
    paths = write_split(tmp_path / "run", SITES, CLASSES)
    assert [path.name for path in paths] == ["split.csv", "split.json", "split.svg"]
    table = list(csv.DictReader(io.StringIO(paths[0].read_text())))
    assert [(row["site"], row["domain"], row["part"]) for row in table] == [
        (row.site, row.domain, row.part) for row in ROWS
    ]
    assert [tuple(int(row[name]) for name in CLASSES) for row in table] == [row.counts for row in ROWS]
    assert [int(row["all"]) for row in table] == [2, 1, 1, 0, 8, 2, 1]
    loaded = json.loads(paths[1].read_text())
    assert (loaded["schema"], loaded["classes"]) == (1, list(CLASSES))
    assert [SplitRow(**{**row, "counts": tuple(row["counts"])}) for row in loaded["rows"]] == ROWS


def test_write_split_same_split_same_bytes(tmp_path: Path) -> None:
    first, again = (write_split(tmp_path / name, SITES, CLASSES) for name in ("a", "b"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]


def test_split_figure_dots_have_areas_in_proportion() -> None:
    """One collection for each domain; a dot covers its own samples and those of the domains drawn on it."""
    axes = split_figure(ROWS, CLASSES).axes[0]
    photo, sketch = dots(axes)
    assert photo.places == [(0, 0)]
    assert sketch.places == [(0, 2), (1, 1)]
    largest = sketch.sizes[1]
    assert photo.sizes[0] == pytest.approx(largest * 2 / 8)
    assert sketch.sizes[0] == pytest.approx(largest * 1 / 8)
    assert axes.get_title().endswith("the largest dot: 8")


def test_split_figure_rings_add_up() -> None:
    both = [
        SplitRow("s", "x", "train", (3,)),
        SplitRow("s", "y", "train", (1,)),
        SplitRow("s", "y", "test", (9,)),
    ]
    outer, inner = dots(split_figure(both, ("a",)).axes[0])
    assert inner.sizes[0] == pytest.approx(outer.sizes[0] / 4)
    assert outer.colour != inner.colour


def test_split_figure_many_sites_fit() -> None:
    whole = data(800, domains=1, classes=10)
    sites = by_domain(whole, sites=100, seed=0)
    classes = tuple(f"class {number}" for number in range(200))
    figure = split_figure(split_rows(sites, classes), classes)
    assert figure.get_size_inches().tolist() == [14.0, 9.0]
    named = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert named[0] == "site-001"
    assert len(named) <= 40
    assert len(figure.axes[0].get_yticklabels()) <= 30
