"""Facts of each column of a site's table, for the site alone, and columns that are in another unit than agreed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from agreement import TableColumn, TableSection
from secure_client.data.arrays import Inputs
from secure_client.data.table import Floats, Table
from secure_client.errors import DataError
from secure_client.table_format import TableFormat

MOST_DEVIATIONS = 3.0
"""Largest distance of a site's mean from the agreed mean, in agreed deviations: another unit is mostly farther off."""

FEWEST_ROWS = 10
"""Fewest values whose mean tells of a unit: that of a few patients may be far away."""


def describe_table(table: Table) -> str:
    """Return the rows, and each column's range, mean or categories, and missing values."""
    left_out = len(table.lines) - int(table.kept.sum())
    rows = f"{len(table.lines)} rows" + (f", {left_out} of them left out" if left_out else "")
    rows += f", {len(table.agreed.features)} features"
    columns = zip(table.agreed.columns, table.values.T, strict=True)
    return "; ".join(
        [rows, *(f"{column.name}: {', '.join(_facts(column, values))}" for column, values in columns)]
    )


def check_units(inputs: Inputs, agreed: TableSection, written: TableFormat, where: str) -> None:
    """Check features before scaling, (N, F): the mean of each column is near the agreed one.

    Raises :class:`DataError` for another column of :data:`FEWEST_ROWS` values or more, unless ``far_from_scale`` names
    it: its values are likely to be in another unit.
    """
    for column, far in _far_columns(inputs, agreed, fewest=FEWEST_ROWS):
        if column.name not in written.far_from_scale:
            raise DataError(
                f"{where}: column {column.name!r} has {far}: convert it to the agreed unit, list codes of missing"
                " values in missing_in, or name the column in far_from_scale if its values are right"
            )


def warn_of_units(inputs: Inputs, agreed: TableSection) -> list[str]:
    """Return a warning for each column whose mean is far from the agreed one: of a few rows it may be right."""
    return [f"column {column.name!r} has {far}" for column, far in _far_columns(inputs, agreed, fewest=1)]


def _far_columns(inputs: Inputs, agreed: TableSection, *, fewest: int) -> Iterator[tuple[TableColumn, str]]:
    start = 0
    for column in agreed.columns:
        values = inputs[:, start]
        start += column.values
        if column.imputed is not None:
            values = values[inputs[:, start] == 0]
            start += 1
        if not isinstance(column.scale, tuple) or len(values) < fewest:
            continue
        (mean, deviation), own_mean = column.scale, values.mean()
        if abs(own_mean - mean) > MOST_DEVIATIONS * deviation:
            yield (
                column,
                f"the mean {own_mean:.4g}, more than {MOST_DEVIATIONS:g} agreed deviations ({deviation:g}) from the"
                f" agreed mean {mean:g}",
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
