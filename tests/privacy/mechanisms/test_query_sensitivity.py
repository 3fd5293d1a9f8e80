"""Neighbouring data sets: one record more or less changes the query by no more than is said, in exact integers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from privacy.mechanisms import grid as grid_module
from privacy.mechanisms.grid import SIGMA, Grid
from privacy.mechanisms.prototype_query import PrototypeQuery
from tests.privacy.neighbours import CLASSES, Records, TooSensitiveError, check_neighbours, records, settings

QUERY = PrototypeQuery(1.0, 1.0, 1.0, 1.0)
ORDINARY = Records(
    np.random.default_rng(3).normal(scale=2.0, size=(6, 4)), np.array([0, 1, 2, 0, 0, 1], dtype=np.int64)
)


@given(st.data(), settings())
def test_one_record_changes_the_query_within_the_sensitivity(
    data: st.DataObject, query: PrototypeQuery
) -> None:
    check_neighbours(query, data.draw(records(query.clip)))


@given(settings())
def test_grid_noise_is_at_least_its_multiple_of_the_sensitivity(query: PrototypeQuery) -> None:
    """The noise is no larger than needed: a grid finer by 1e-5 would break the bound, up to the remainder of whole
    steps.
    """
    grid, noise = query.grid, Fraction(query.noise_multiplier)
    assert grid.sensitivity_squared * noise**2 <= SIGMA**2
    assert grid.radius * Fraction(grid.step) <= Fraction(query.clip) < (grid.radius + 1) * Fraction(grid.step)
    assert (
        grid.weight * Fraction(grid.step)
        <= Fraction(query.count_weight)
        < (grid.weight + 1) * Fraction(grid.step)
    )
    assert ((grid.radius + 1) ** 2 + (grid.weight + 1) ** 2) * noise**2 > SIGMA**2 * (1 - Fraction(1, 10**5))


def test_grid_step_too_small_by_rounding_is_enlarged() -> None:
    """3, 4 and 5 fit the grid without a rest, and the float 0.2 is above a fifth."""
    rounded = 0.2 * math.hypot(3.0, 4.0) / SIGMA
    assert not Grid(rounded, 3 * SIGMA, 4 * SIGMA).keeps(0.2)
    grid = Grid.of(3.0, 4.0, 0.2)
    assert grid == Grid(math.nextafter(rounded, 1.0), 3 * SIGMA - 1, 4 * SIGMA - 1)
    assert grid.keeps(0.2)


@given(st.data(), settings())
def test_clip_records_depends_on_that_record_alone(data: st.DataObject, query: PrototypeQuery) -> None:
    given_records = data.draw(records(query.clip))
    together = query.grid.clip_records(given_records.features)
    alone = [query.grid.clip_records(each[None])[0].tolist() for each in given_records.features]
    assert together.tolist() == alone
    order = np.asfortranarray(given_records.features[::-1])
    assert query.grid.clip_records(order).tolist() == alone[::-1]


def test_clip_records_wide_records_do_not_depend_on_neighbours() -> None:
    features = np.random.default_rng(4).normal(size=(33, 700))
    together = QUERY.grid.clip_records(features)
    for first in range(33):
        assert (
            QUERY.grid.clip_records(features[first : first + 1 + first % 5])
            == together[first : first + 1 + first % 5]
        ).all()


@given(st.data(), settings())
def test_clip_records_within_the_clip_moves_less_than_a_step(
    data: st.DataObject, query: PrototypeQuery
) -> None:
    dim = data.draw(st.integers(1, 5))
    longest = query.grid.radius * query.grid.step * (1 - 1e-9) / dim**0.5
    inside = st.floats(-longest, longest)
    row = np.array([data.draw(st.lists(inside, min_size=dim, max_size=dim))])
    whole = query.grid.clip_records(row)
    apart = np.abs(whole * query.grid.step - row).max()
    assert apart <= query.grid.step * (1 + 1e-6) + query.clip * 1e-15
    assert (np.abs(whole) * query.grid.step <= np.abs(row) * (1 + 1e-12)).all()


def test_clip_records_longer_record_keeps_its_direction() -> None:
    row = np.array([[3e300, -4e300, 0.0]])
    assert QUERY.grid.clip_records(row) * QUERY.grid.step == pytest.approx(
        np.array([[0.6, -0.8, 0.0]]), abs=3e-6
    )


# Weaker doubles: each of them is caught


def _unclipped(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.zeros(len(rows))


def _of_the_batch(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.full(len(rows), float(np.sqrt(np.square(rows).sum(axis=1).mean())))


@pytest.mark.parametrize("norms", [_unclipped, _of_the_batch])
def test_check_finds_norms_of_other_records(norms: object, monkeypatch: pytest.MonkeyPatch) -> None:
    check_neighbours(QUERY, ORDINARY)
    monkeypatch.setattr(grid_module, "_norms", norms)
    monkeypatch.setattr(Grid, "_within", lambda _grid, rows: rows)
    with pytest.raises(TooSensitiveError):
        check_neighbours(QUERY, ORDINARY)


def test_exact_norms_hold_where_float_norms_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last check in whole numbers is enough for the sensitivity, whatever floats say."""
    monkeypatch.setattr(grid_module, "_norms", lambda rows: 0.999 * np.sqrt(np.square(rows).sum(axis=1)))
    check_neighbours(QUERY, ORDINARY)


def test_rounding_alone_can_exceed_the_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    """B steps along one axis and one along the others: to a float that is B. A multiplier as small as this has no use
    but to show it."""
    query = PrototypeQuery(1.0, 1.0, 2.0**-9, 1.0)
    row = np.full((1, 40), 2.0 / query.grid.radius)
    row[0, 0] = 1.0
    given_records = Records(1e3 * row, np.array([1], dtype=np.int64))
    check_neighbours(query, given_records)
    monkeypatch.setattr(Grid, "_within", lambda _grid, rows: rows)
    with pytest.raises(TooSensitiveError):
        check_neighbours(query, given_records)


def test_check_finds_a_record_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = PrototypeQuery.sum_exact

    def doubled(query: PrototypeQuery, *arguments: object) -> object:
        sums = exact(query, *arguments)  # type: ignore[arg-type]  # as they came
        sums.weights[:] = sums.weights.sum()
        return sums

    monkeypatch.setattr(PrototypeQuery, "sum_exact", doubled)
    assert CLASSES > 1
    with pytest.raises(TooSensitiveError):
        check_neighbours(QUERY, ORDINARY)
