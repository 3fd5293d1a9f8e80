"""Class-weighted accuracies against counting samples one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from algorithms.metrics import per_class, pm_l, pm_v, weighted_accuracy

CLASSES = 5
Counts = NDArray[np.int64]


@st.composite
def outcomes(draw: st.DrawFn) -> tuple[Counts, Counts, Counts]:
    """Draw predictions, labels of a test set, and the site's training samples of each class, at least of one."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size = draw(st.integers(1, 40))
    trained_on = rng.integers(0, 30, size=CLASSES) * (rng.random(CLASSES) < 0.6)
    trained_on[rng.integers(CLASSES)] += 1
    return rng.integers(0, CLASSES, size=size), rng.integers(0, CLASSES, size=size), trained_on


def by_samples(predicted: Counts, labels: Counts, weights: list[float]) -> float | None:
    right = total = 0.0
    for p, y in zip(predicted.tolist(), labels.tolist(), strict=True):
        total += weights[y]
        right += weights[y] * (p == y)
    return right / total if total else None


@given(outcomes())
def test_weighted_accuracy_equals_counting_weighted_samples(outcome: tuple[Counts, Counts, Counts]) -> None:
    predicted, labels, trained_on = outcome
    correct, counts = per_class(predicted, labels, CLASSES)
    shares = [int(each) / int(trained_on.sum()) for each in trained_on]
    valid = [1.0 if each else 0.0 for each in trained_on]
    assert pm_v(correct, counts, trained_on) == pytest.approx(by_samples(predicted, labels, valid))
    assert pm_l(correct, counts, trained_on) == pytest.approx(by_samples(predicted, labels, shares))


def test_accuracies_known_answers() -> None:
    """80, 50 and 0 of 100 right; the site has 30 of the first class, 10 of the second, none of the third."""
    correct, counts, trained_on = np.array([80, 50, 0]), np.array([100, 100, 100]), np.array([30, 10, 0])
    assert pm_v(correct, counts, trained_on) == pytest.approx(130 / 200)
    assert pm_l(correct, counts, trained_on) == pytest.approx((3 * 80 + 50) / 400)


def test_metrics_of_a_confusion_matrix_by_hand() -> None:
    """Rows are true classes, columns predicted ones. The site trained on 3 of class 0, 1 of class 2, none of class 1.

    Right: 6 of 8, 1 of 4, 2 of 8. PM(V) counts rows 0 and 2; PM(L) weighs them by 3/4 and 1/4.
    """
    confusion = np.array([[6, 2, 0], [3, 1, 0], [1, 5, 2]])
    true, guess = np.indices(confusion.shape)
    labels, predicted = (np.repeat(each.ravel(), confusion.ravel()) for each in (true, guess))
    correct, counts = per_class(predicted, labels, 3)
    assert correct.tolist() == [6, 1, 2]
    assert counts.tolist() == [8, 4, 8]
    trained_on = np.array([3, 0, 1])
    assert pm_v(correct, counts, trained_on) == pytest.approx((6 + 2) / (8 + 8))
    assert pm_l(correct, counts, trained_on) == pytest.approx((3 * 6 + 1 * 2) / (3 * 8 + 1 * 8))
    swapped = per_class(labels, predicted, 3)
    assert pm_v(*swapped, trained_on) == pytest.approx((6 + 2) / (10 + 2)), "which rows and columns are shows"


def test_pm_l_is_not_the_mean_of_class_accuracies() -> None:
    """PM-L weighs samples: on an uneven test set, the class with more samples counts for more."""
    correct, counts, trained_on = np.array([10, 0]), np.array([10, 30]), np.array([1, 1])
    assert pm_l(correct, counts, trained_on) == pytest.approx(0.25)


def test_per_class_counts() -> None:
    correct, counts = per_class(np.array([0, 1, 1, 2]), np.array([0, 1, 0, 0]), 4)
    assert correct.tolist() == [1, 1, 0, 0]
    assert counts.tolist() == [3, 1, 0, 0]
    assert correct.dtype == counts.dtype == np.int64


def test_weighted_accuracy_without_samples_is_none() -> None:
    none = np.zeros(2, dtype=np.int64)
    assert weighted_accuracy(none, none, np.ones(2)) is None
    assert pm_v(np.array([0, 3]), np.array([0, 5]), np.array([4, 0])) is None
    assert pm_l(np.array([0, 3]), np.array([0, 5]), none) is None
