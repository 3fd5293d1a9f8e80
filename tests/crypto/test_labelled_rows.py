"""Several rows of a class: turned alike, scaled to their directions, numbered by whole numbers."""

from __future__ import annotations

import numpy as np
import pytest

from crypto.errors import MalformedError
from crypto.prototype_row_checks import directions, whole_numbers
from crypto.rotation import RotationSite, class_key, rotate

SEED, CONTEXT, DIM = bytes(range(32)), b"run, round, attempt, phase", 12
SITE = RotationSite(SEED, CONTEXT)
ROWS = directions(np.random.default_rng(0).normal(size=(6, DIM)))
CLASSES = np.array([0, 0, 2, 2, 2, 5])


def test_each_class_is_turned_by_its_own_rotation() -> None:
    turned = SITE.rotate_rows(ROWS, CLASSES)
    for k in set(CLASSES.tolist()):
        np.testing.assert_array_equal(
            turned[k == CLASSES], rotate(class_key(SEED, CONTEXT, k), ROWS[k == CLASSES])
        )
    same = CLASSES[:, None] == CLASSES[None, :]
    np.testing.assert_allclose((turned @ turned.T)[same], (ROWS @ ROWS.T)[same], atol=1e-14)
    assert np.abs((turned @ turned.T)[~same] - (ROWS @ ROWS.T)[~same]).max() > 0.1


def test_sites_turn_alike_whatever_else_they_have() -> None:
    np.testing.assert_array_equal(
        SITE.rotate_rows(ROWS[2:4], CLASSES[2:4]), SITE.rotate_rows(ROWS, CLASSES)[2:4]
    )


def test_no_rows_and_rows_of_zeros_stay_what_they_are() -> None:
    assert SITE.rotate_rows(ROWS[:0], CLASSES[:0]).shape == (0, DIM)
    assert not SITE.rotate_rows(np.zeros((2, DIM)), CLASSES[:2]).any()


@pytest.mark.parametrize("factor", [1.001, np.nan, np.inf])
def test_rows_that_are_no_directions_are_refused(factor: float) -> None:
    with pytest.raises(MalformedError):
        SITE.rotate_rows(ROWS * factor, CLASSES)


def test_directions_have_length_1_and_zeros_have_none() -> None:
    rows = np.array([[3.0, 4.0], [0.0, 0.0], [1e-200, 0.0], [-2.0, 0.0]])
    found = directions(rows)
    assert not found[2].any(), "neither 0 nor 1 in length"
    np.testing.assert_allclose(found, [[0.6, 0.8], [0.0, 0.0], [0.0, 0.0], [-1.0, 0.0]])


@pytest.mark.parametrize("bad", [-1.0, 0.5, 3.0, 1e300, np.nan])
def test_numbers_that_are_not_whole_or_too_large_are_refused(bad: float) -> None:
    assert whole_numbers(np.array([0.0, 2.0]), 3).tolist() == [0, 2]
    with pytest.raises(MalformedError):
        whole_numbers(np.array([0.0, bad]), 3)
