"""Scale of a table's features: agreed numbers, or the statistics of a site's training rows.

A column whose mean is far from the agreed one is refused here, because its values are likely to be in another unit.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from agreement import InputSection, PreprocessingSection, TableColumn, TableSection
from agreement.sections.table import SITE_SCALE
from secure_client.data.samples import Inputs
from secure_client.errors import DataError
from secure_client.table_format import TableFormat, TableScale


def fit_inputs(
    agreed: InputSection | None, train: Inputs, *, where: str
) -> PreprocessingSection | TableScale | None:
    """Return what turns stored records into inputs: for a table, the scale at a site of these ``train`` rows."""
    return fit_scale(agreed, train, where=where) if isinstance(agreed, TableSection) else agreed


def fit_scale(agreed: TableSection, train: Inputs, *, where: str) -> TableScale:
    """Return the scale of each feature, for training rows (N, F) before scaling.

    A site's own statistics are the mean and the population's deviation over the rows whose value is not imputed. A
    feature that is the same in all of these rows is divided by 1. Raises :class:`DataError` for another number of
    features, and for a column without any value.
    """
    _check_shape(train, len(agreed.features), where)
    means: list[float] = []
    deviations: list[float] = []
    for column, values in _split_columns(train, agreed):
        if column.scale == SITE_SCALE:
            if not len(values):
                raise DataError(
                    f"{where}: column {column.name!r} has no value by which to scale it: agree on numbers"
                )
            means += values.mean(axis=0).tolist()
            # Rounding gives equal values a deviation that is small and not 0.
            deviations += np.where(np.ptp(values, axis=0) > 0, values.std(axis=0), 1.0).tolist()
        elif isinstance(column.scale, tuple):
            means.append(column.scale[0])
            deviations.append(column.scale[1])
        else:
            means += [0.0] * column.values
            deviations += [1.0] * column.values
        if column.imputed is not None:  # the mark of missing values stays 0 or 1
            means.append(0.0)
            deviations.append(1.0)
    return TableScale(mean=tuple(means), deviation=tuple(deviations))


def _split_columns(rows: Inputs, agreed: TableSection) -> Iterator[tuple[TableColumn, NDArray[np.float64]]]:
    """Yield each column with its values, (…, V), of the rows (N, F) in which it is not imputed."""
    start = 0
    for column in agreed.columns:
        values = np.asarray(rows[:, start : start + column.values], dtype=np.float64)
        start += column.values
        if column.imputed is not None:
            # Imputed values are the agreed ones at every site: a column of many would seem to have the agreed mean.
            values = values[rows[:, start] == 0]
            start += 1
        yield column, values


def scale_rows(inputs: Inputs, scale: TableScale, where: str) -> NDArray[np.float32]:
    """Return rows (N, F) under the scale, float32; raise :class:`DataError` for values that it cannot hold."""
    _check_shape(inputs, len(scale.mean), where)
    with np.errstate(over="ignore"):
        rows = ((inputs.astype(np.float64) - scale.mean) / scale.deviation).astype(np.float32)
    finite = np.isfinite(rows)
    if not finite.all():
        sample, feature = np.argwhere(~finite)[0].tolist()
        raise DataError(
            f"{where}: feature {feature} of sample {sample} is too large ({inputs[sample, feature]})"
        )
    return rows


def _check_shape(inputs: Inputs, features: int, where: str) -> None:
    if inputs.shape[1:] != (features,):
        raise DataError(
            f"{where}: samples have shape {inputs.shape[1:]}, but [table] of the agreement gives {features} features"
        )


MOST_DEVIATIONS = 3.0
"""Largest distance of a site's mean from the agreed mean, in agreed deviations: another unit is mostly farther off."""

FEWEST_ROWS = 10
"""Fewest values whose mean tells of a unit: that of a few patients may be far away."""


def check_units(inputs: Inputs, agreed: TableSection, written: TableFormat, where: str) -> None:
    """Check features before scaling, (N, F): the mean of each column is near the agreed one.

    Raises :class:`DataError` for another column of :data:`FEWEST_ROWS` values or more, unless ``far_from_scale`` names
    it: its values are likely to be in another unit.
    """
    for column, far in _find_far_columns(inputs, agreed, fewest=FEWEST_ROWS):
        if column.name not in written.far_from_scale:
            raise DataError(
                f"{where}: column {column.name!r} has {far}: convert it to the agreed unit, list codes of missing"
                " values in missing_in, or name the column in far_from_scale if its values are right"
            )


def warn_of_units(inputs: Inputs, agreed: TableSection) -> list[str]:
    """Return a warning for each column whose mean is far from the agreed one: of a few rows it may be right."""
    return [
        f"column {column.name!r} has {far}" for column, far in _find_far_columns(inputs, agreed, fewest=1)
    ]


def _find_far_columns(
    inputs: Inputs, agreed: TableSection, *, fewest: int
) -> Iterator[tuple[TableColumn, str]]:
    for column, values in _split_columns(inputs, agreed):
        if not isinstance(column.scale, tuple) or len(values) < fewest:
            continue
        (mean, deviation), own_mean = column.scale, values.mean()
        if abs(own_mean - mean) > MOST_DEVIATIONS * deviation:
            yield (
                column,
                f"the mean {own_mean:.4g}, more than {MOST_DEVIATIONS:g} agreed deviations ({deviation:g}) from the"
                f" agreed mean {mean:g}",
            )
