"""Cells of classes: which one a record is in, that one record changes one of them alone, and what is made of noise."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from algorithms.finch import finch_rows
from privacy.mechanisms import prototype_query
from privacy.mechanisms.cell_query import Cells, ReleasedCells, release_cells
from privacy.mechanisms.prototype_query import PrototypeQuery, Sums
from tests.privacy.neighbours import CLASSES, Records, TooSensitiveError, records, settings

Float = NDArray[np.float64]
Ints = NDArray[np.int64]
Assigned = Callable[[Cells, Float, Ints], Ints]
QUERY = PrototypeQuery(1.0, 1.0, 1.0, 1.0)
RNG = np.random.default_rng(8)
ORDINARY = Records(RNG.normal(size=(36, 4)), np.arange(36, dtype=np.int64) % CLASSES)
CENTRES = Cells.around(RNG.normal(size=(7, 4)), np.array([0, 0, 0, 1, 2, 2, 2], dtype=np.int64), CLASSES)


@st.composite
def cells(draw: st.DrawFn, dim: int) -> Cells:
    """Draw up to five centres a class, some alike, some zero or huge, and classes without."""
    values = st.sampled_from([0.0, 1.0, -1.0, 1e300, 1e-300]) | st.floats(-10.0, 10.0)
    rows = draw(st.lists(st.lists(values, min_size=dim, max_size=dim), max_size=8))
    labels = draw(st.lists(st.integers(0, CLASSES - 1), min_size=len(rows), max_size=len(rows)))
    centres = np.array(rows, dtype=np.float64).reshape(len(rows), dim)
    return Cells.around(centres, np.array(labels, dtype=np.int64), CLASSES)


def asked(query: PrototypeQuery, cells: Cells, given: Records, assigned: Assigned) -> Sums:
    return query.sum_exact(given.features, assigned(cells, given.features, given.labels), len(cells))


def check_neighbours(
    query: PrototypeQuery, cells: Cells, given: Records, assigned: Assigned = Cells.assign
) -> None:
    """Check that without any one record one cell of its class changes, by no more than the stated norm."""
    whole = asked(query, cells, given, assigned)
    for record, label in enumerate(given.labels.tolist()):
        rest = asked(query, cells, given.without(record), assigned)
        counted = (whole.weights - rest.weights).tolist()
        moved = [
            [a - b for a, b in zip(row.tolist(), other.tolist(), strict=True)]
            for row, other in zip(whole.vectors, rest.vectors, strict=True)
        ]
        changed = [at for at, row in enumerate(moved) if any(row) or counted[at]]
        if len(changed) != 1 or cells.classes[changed[0]] != label:
            raise TooSensitiveError(f"a record of class {label} changes the cells {changed}")
        (cell,) = changed
        if sum(value**2 for value in moved[cell]) + counted[cell] ** 2 > query.grid.sensitivity_squared:
            raise TooSensitiveError(f"{moved[cell]} and {counted[cell]} are more than {query.grid}")


# Which cell a record is in


def test_assign_takes_the_centre_with_the_largest_cosine() -> None:
    found = CENTRES.assign(ORDINARY.features, ORDINARY.labels)
    for row, label, cell in zip(ORDINARY.features, ORDINARY.labels, found, strict=True):
        cosines = [
            float(row @ centre) / float(np.linalg.norm(centre)) if owner == label else -math.inf
            for centre, owner in zip(CENTRES.centres, CENTRES.classes, strict=True)
        ]
        assert int(cell) == int(np.argmax(cosines))
    assert len(set(found.tolist())) > CLASSES


def test_assign_ties_and_zeros_take_the_first_centre() -> None:
    centres = np.array([[1.0, 0.0], [1e-9, 0.0], [0.0, 5.0], [2.0, 0.0]])
    found = Cells.around(centres, np.zeros(4, dtype=np.int64), 1)
    features = np.array([[3.0, 1.0], [0.0, 0.0], [1e-200, 1e-199], [-1.0, -1.0]])
    assert found.assign(features, np.zeros(4, dtype=np.int64)).tolist() == [0, 0, 2, 0]


def test_around_class_without_a_centre_is_one_cell() -> None:
    found = Cells.around(np.ones((2, 3)), np.array([1, 1], dtype=np.int64), 4)
    assert found.classes.tolist() == [0, 1, 1, 2, 3]
    assert found.assign(np.ones((3, 3)), np.array([3, 0, 1], dtype=np.int64)).tolist() == [4, 0, 1]


@given(st.data())
def test_assign_depends_on_that_record_alone(data: st.DataObject) -> None:
    given_records = data.draw(records(1.0))
    drawn = data.draw(cells(given_records.features.shape[1]))
    together = drawn.assign(given_records.features, given_records.labels)
    alone = [
        int(drawn.assign(row[None], label[None])[0])
        for row, label in zip(given_records.features, given_records.labels, strict=True)
    ]
    assert together.tolist() == alone
    assert drawn.classes[together].tolist() == given_records.labels.tolist()


def test_assign_wide_records_do_not_depend_on_neighbours() -> None:
    """Their cosines are as alike as floats allow: of a matrix product, rows differ with its shape."""
    centres = RNG.normal(size=(2, 700))
    beside = RNG.normal(size=(64, 700))
    between = centres[0] / np.linalg.norm(centres[0]) - centres[1] / np.linalg.norm(centres[1])
    beside -= np.outer(beside @ between, between) / (between @ between)
    drawn, labels = Cells.around(centres, np.zeros(2, dtype=np.int64), 1), np.zeros(64, dtype=np.int64)
    together = drawn.assign(beside, labels)
    assert 0 < together.sum() < 64
    for first in range(64):
        part = slice(first, first + 1 + first % 5)
        np.testing.assert_array_equal(drawn.assign(beside[part], labels[part]), together[part])


# Neighbours


@given(st.data(), settings())
def test_one_record_changes_one_cell_whatever_the_centres(data: st.DataObject, query: PrototypeQuery) -> None:
    given_records = data.draw(records(query.clip))
    check_neighbours(query, data.draw(cells(given_records.features.shape[1])), given_records)


def _by_finch(cells: Cells, features: Float, labels: Ints) -> Ints:
    """Return a class's own clusters, as the query without noise does."""
    found = np.zeros(len(labels), dtype=np.int64)
    for k in np.unique(labels):
        own = np.flatnonzero(cells.classes == k)
        found[labels == k] = own[np.minimum(finch_rows(features[labels == k]), len(own) - 1)]
    return found


def _by_moving_centres(cells: Cells, features: Float, labels: Ints) -> Ints:
    """Assign each record to the centre nearest to the record less the mean of all records."""
    return cells.assign(features - features.mean(axis=0), labels)


def _by_rank(cells: Cells, _: Float, labels: Ints) -> Ints:
    """Assign records to cells by turns, so that cells are of one size."""
    sizes = np.bincount(cells.classes)
    firsts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return np.asarray(firsts[labels] + np.arange(len(labels)) % sizes[labels], dtype=np.int64)


@pytest.mark.parametrize("assigned", [_by_finch, _by_moving_centres, _by_rank])
def test_check_finds_cells_that_depend_on_other_records(assigned: Assigned) -> None:
    check_neighbours(QUERY, CENTRES, ORDINARY)
    with pytest.raises(TooSensitiveError):
        check_neighbours(QUERY, CENTRES, ORDINARY, assigned)


def test_check_finds_cells_that_share_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that counts in every cell of its class, as soft assignments would have it."""
    exact = PrototypeQuery.sum_exact

    def shared(query: PrototypeQuery, features: Float, at: Ints, parts: int) -> Sums:
        sums = exact(query, features, at, parts)
        for k in range(CLASSES):
            sums.weights[CENTRES.classes == k] = sums.weights[CENTRES.classes == k].sum()
        return sums

    monkeypatch.setattr(PrototypeQuery, "sum_exact", shared)
    with pytest.raises(TooSensitiveError):
        check_neighbours(QUERY, CENTRES, ORDINARY)


# What is made of the noisy answer


def released(
    counts: list[float], classes: list[int], monkeypatch: pytest.MonkeyPatch, least: float = 3.0
) -> ReleasedCells:
    """Return the release of cells with these noisy counts, whose records all have the features (cell + 1, 0)."""
    query = PrototypeQuery(100.0, 1.0, 1e-2, least)
    found = Cells.around(np.ones((len(classes), 2)), np.array(classes, dtype=np.int64), max(classes) + 1)
    weights = np.rint(np.array(counts) * query.grid.weight).astype(np.int64)
    vectors = np.zeros((len(counts), 2), dtype=np.int64)
    vectors[:, 0] = np.rint(np.array(counts) * (np.arange(len(counts)) + 1) / query.grid.step)
    monkeypatch.setattr(Sums, "add_noise", lambda _: (vectors, weights))
    return release_cells(query.start(len(found), 2), found)


def test_release_cells_keeps_cells_of_enough_records(monkeypatch: pytest.MonkeyPatch) -> None:
    found = released([5.0, 2.9, -4.0, 3.1, 0.0, 8.0], [0, 0, 0, 1, 1, 2], monkeypatch)
    assert found.labels.tolist() == [0, 1, 2]
    np.testing.assert_allclose(found.counts, [5.0, 3.1, 8.0], rtol=1e-4)
    np.testing.assert_allclose(found.rows, [[1, 0], [4, 0], [6, 0]], rtol=1e-3, atol=1e-12)


@pytest.mark.parametrize(("counts", "there"), [([2.0, 2.5, 2.5, 2.0], True), ([1.0, 2.0, 2.0, 0.9], False)])
def test_release_cells_joins_small_cells_with_enough_together(
    monkeypatch: pytest.MonkeyPatch, counts: list[float], there: bool
) -> None:
    """The count of four cells has twice the noise of one cell, and so the minimum is twice as large: 6 here."""
    found = released(counts, [0, 0, 0, 0], monkeypatch)
    assert found.labels.tolist() == [0] * there
    if there:
        mean = sum(count * (at + 1) for at, count in enumerate(counts)) / sum(counts)
        np.testing.assert_allclose(found.counts, [sum(counts)], rtol=1e-4)
        np.testing.assert_allclose(found.rows, [[mean, 0.0]], rtol=1e-3, atol=1e-12)


def test_release_cells_of_whole_classes_is_the_query_over_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Cells.around(np.zeros((0, 4)), np.zeros(0, dtype=np.int64), CLASSES)
    sums = QUERY.sum_exact(ORDINARY.features, whole.assign(ORDINARY.features, ORDINARY.labels), CLASSES)
    noise = np.random.default_rng(1).normal(0.0, 2.0**20, CLASSES * 5).astype(np.int64)
    monkeypatch.setattr(prototype_query, "discrete_gaussian", lambda *_: noise)
    cells_released, released_classes = release_cells(sums, whole), sums.release()
    assert cells_released.labels.tolist() == np.flatnonzero(released_classes.present).tolist()
    np.testing.assert_array_equal(cells_released.rows, released_classes.rows[released_classes.present])
    np.testing.assert_array_equal(cells_released.counts, released_classes.counts[released_classes.present])


@pytest.mark.parametrize(("labels", "classes"), [([3], 3), ([-1], 3)], ids=["beyond", "negative"])
def test_around_label_beyond_the_classes_is_refused(labels: list[int], classes: int) -> None:
    with pytest.raises(ValueError, match="label"):
        Cells.around(np.ones((1, 2)), np.array(labels, dtype=np.int64), classes)


@pytest.mark.parametrize(
    ("classes", "centres"),
    [
        ([0, 2], np.ones((2, 2))),
        ([1, 0], np.ones((2, 2))),
        ([1], np.ones((1, 2))),
        ([0], np.full((1, 2), np.nan)),
    ],
    ids=["a class without", "out of order", "the first without", "not finite"],
)
def test_cells_that_are_no_partition_are_refused(classes: list[int], centres: Float) -> None:
    with pytest.raises(ValueError, match=r"ordered by class|not finite"):
        Cells(np.array(classes, dtype=np.int64), centres)
