"""Checks that every protection makes on rows: float64, shape (K, d), finite, Euclidean norm at most 1."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crypto.errors import MalformedError
from crypto.protection import Cohort, Rows

NORM_SLACK = 1e-9
"""How far rounding may carry a norm beyond 1."""


def contributed(rows: Rows, site: str, cohort: Cohort) -> Rows:
    """A site's rows as they are sent: checked, and zero for classes it does not hold in the cohort.

    What stands in the other rows is neither looked at nor sent. Raises :class:`MalformedError`.
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
        raise MalformedError(f"rows are float64 of shape {expected}, not {rows.dtype} of {rows.shape}")


def check_values(rows: Rows) -> None:
    """Raise :class:`MalformedError` for a value that is not finite, or a row longer than 1."""
    if not np.isfinite(rows).all():
        raise MalformedError("a row holds a value that is not finite")
    longest = float(np.linalg.norm(rows, axis=1).max(initial=0.0))
    if longest > 1.0 + NORM_SLACK:
        raise MalformedError(
            f"a row has norm {longest:.9f}; rows are divided by their public norm bound first"
        )


def directions(rows: Rows) -> Rows:
    """Rows (M, d) scaled to length 1; zeros for a row that is too short to have a direction."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(np.where(norms > 0.0, rows / np.where(norms > 0.0, norms, 1.0), 0.0), dtype=np.float64)


def whole_numbers(values: Rows, below: int) -> NDArray[np.int64]:
    """Numbers that travel as float64, as integers. :class:`MalformedError` unless they are whole, from 0, and below."""
    if not ((values >= 0) & (values < below) & (values == np.rint(values))).all():
        raise MalformedError(f"a number is not whole, or not from 0 to {below - 1}")
    return values.astype(np.int64)
