"""Facts of each column of a site's table, for the site alone: counts, ranges and missing values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from agreement import TableColumn, TableSection
from secure_client.data.table import Floats, Table, parse_table
from secure_client.errors import DataError
from secure_client.table_format import TableFormat

MOST_DEVIATIONS = 3.0
"""Largest distance of a site's mean from the agreed mean, in agreed deviations: another unit is mostly farther off."""


def describe_table(path: Path, agreed: TableSection, written: TableFormat, classes: tuple[str, ...]) -> str:
    """Return the rows, and each column's range, mean or categories, and missing values.

    Raises :class:`DataError` as reading does, and for a column whose mean is far from the agreed one, unless
    ``far_from_scale`` names the column: its values are likely to be in another unit.
    """
    table = parse_table(path, agreed, written, classes)
    columns = list(zip(agreed.columns, table.values.T, strict=True))
    for column, values in columns:
        _check_unit(column, values[~np.isnan(values)], table, written)
    left_out = len(table.lines) - int(table.kept.sum())
    rows = f"{len(table.lines)} rows" + (f", {left_out} of them left out" if left_out else "")
    rows += f", {len(agreed.features)} features"
    return "; ".join(
        [rows, *(f"{column.name}: {', '.join(_facts(column, values))}" for column, values in columns)]
    )


def _facts(column: TableColumn, values: Floats) -> Iterator[str]:
    present = values[~np.isnan(values)]
    if column.categories is not None:
        for number, category in enumerate(column.categories):
            yield f"{category!r} {int((present == number).sum())}"
    elif len(present):
        least, largest = present.min(), present.max()
        yield (
            f"always {least:g}"
            if least == largest
            else f"{least:g} to {largest:g}, mean {present.mean():.4g}"
        )
    if len(present) < len(values):
        yield f"{len(values) - len(present)} missing"


def _check_unit(column: TableColumn, present: Floats, table: Table, written: TableFormat) -> None:
    if not isinstance(column.scale, tuple) or not len(present) or column.name in written.far_from_scale:
        return
    mean, deviation = column.scale
    if abs(present.mean() - mean) > MOST_DEVIATIONS * deviation:
        raise DataError(
            f"{table.where}: column {column.name!r} has the mean {present.mean():.4g}, more than {MOST_DEVIATIONS:g}"
            f" agreed deviations ({deviation:g}) from the agreed mean {mean:g}: convert it to the agreed unit, list"
            " codes of missing values in missing_in, or name the column in far_from_scale if its values are right"
        )
