"""Checks of rows that every protection makes: float64, shape (K, d), finite, Euclidean norm at most 1."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crypto.errors import MalformedError
from crypto.protection import Cohort, Rows

NORM_SLACK = 1e-9
"""Slack for rounding by which a norm may exceed 1."""


def rows_to_send(rows: Rows, site: str, cohort: Cohort) -> Rows:
    """Return a site's checked rows as they are sent, with zeros for classes it does not hold in the cohort.

    The values of those other rows are neither checked nor sent. Raises :class:`MalformedError`.
    """
    check_shape(rows, cohort)
    holds = cohort.holds[cohort.index(site)]
    sent = np.where(holds[:, None], rows, 0.0)
    check_values(sent)
    return sent


def check_rows(rows: Rows, cohort: Cohort) -> None:
    """Raise :class:`MalformedError` unless the rows have the cohort's shape and their norms are at most 1."""
    check_shape(rows, cohort)
    check_values(rows)


def check_shape(rows: Rows, cohort: Cohort) -> None:
    """Raise :class:`MalformedError` unless rows are float64 of shape (K, d)."""
    expected = (cohort.classes, cohort.dim)
    if rows.dtype != np.float64 or rows.shape != expected:
        raise MalformedError(f"rows must be float64 of shape {expected}, not {rows.dtype} of {rows.shape}")


def check_values(rows: Rows) -> None:
    """Raise :class:`MalformedError` for a value that is not finite, or a row longer than 1."""
    if not np.isfinite(rows).all():
        raise MalformedError("a row has a value that is not finite")
    longest = float(np.linalg.norm(rows, axis=1).max(initial=0.0))
    if longest > 1.0 + NORM_SLACK:
        raise MalformedError(f"a row has norm {longest:.9f}, above 1: divide rows by their public norm bound")


def directions(rows: Rows) -> Rows:
    """Scale rows (M, d) to length 1; a zero row stays zero."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(np.where(norms > 0.0, rows / np.where(norms > 0.0, norms, 1.0), 0.0), dtype=np.float64)


def whole_numbers(values: Rows, below: int) -> NDArray[np.int64]:
    """Convert float64 values to integers; raise :class:`MalformedError` unless all are whole, from 0 to below − 1."""
    if not ((values >= 0) & (values < below) & (values == np.rint(values))).all():
        raise MalformedError(f"a number is not whole, or not from 0 to {below - 1}")
    return values.astype(np.int64)
