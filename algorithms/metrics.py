"""Accuracies of a personalised model, from how many samples of each class it got right (numpy).

Both are Σ_c w_c·correct_c / Σ_c w_c·count_c over a test set's classes, as FedNH's authors compute them; they
differ in what w_c is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from algorithms.linear import Float

Counts = NDArray[np.int64]


def per_class(predicted: Counts, labels: Counts, classes: int) -> tuple[Counts, Counts]:
    """How many samples of each class are predicted rightly, and how many there are: int64 (K,) each.

    ``predicted`` and ``labels`` are int64 (N,). Raises ``ValueError`` for lengths that differ or a label outside
    [0, K).
    """
    if predicted.shape != labels.shape or labels.ndim != 1:
        raise ValueError(f"predictions {predicted.shape} and labels {labels.shape} do not fit together")
    if ((labels < 0) | (labels >= classes)).any():
        raise ValueError(f"a label is outside the {classes} classes")
    right = np.bincount(labels[predicted == labels], minlength=classes)
    return right.astype(np.int64), np.bincount(labels, minlength=classes).astype(np.int64)


def pm_v(correct: Counts, counts: Counts, trained_on: Counts) -> float | None:
    """PM(V): w_c = 1 for classes the site has, 0 for others.

    ``trained_on`` (K,) counts the site's training samples of each class. For the rest see
    :func:`weighted_accuracy`.
    """
    return weighted_accuracy(correct, counts, trained_on > 0)


def pm_l(correct: Counts, counts: Counts, trained_on: Counts) -> float | None:
    """PM(L): w_c = the class's share of the site's training samples, so that a test set of evenly many samples
    a class counts as one with the site's own mix. On a test set that has that mix already, it counts twice.

    ``trained_on`` (K,) is as in :func:`pm_v`.
    """
    return weighted_accuracy(correct, counts, trained_on / max(int(trained_on.sum()), 1))


def weighted_accuracy(correct: Counts, counts: Counts, weights: Float | NDArray[np.bool_]) -> float | None:
    """Σ w·correct / Σ w·count in [0, 1]; None when no sample of the test set has a weight.

    ``correct`` and ``counts`` are int64 (K,), ``weights`` (K,). Raises ``ValueError`` for shapes that do not fit,
    more right than there are, or a weight that is negative or not finite.
    """
    if not correct.shape == counts.shape == weights.shape or counts.ndim != 1:
        raise ValueError(
            f"{correct.shape}, {counts.shape} and {weights.shape}: a number for each class in each"
        )
    if (correct < 0).any() or (correct > counts).any():
        raise ValueError("of each class, between none and all samples are predicted rightly")
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError("a class's weight is finite and not negative")
    total = float(weights @ counts)
    return float(weights @ correct) / total if total > 0.0 else None
