"""Accuracies PM(V) and PM(L) of a personalised model, and the entropy of labels (numpy).

Both accuracies are Σ_c w_c·correct_c / Σ_c w_c·count_c over a test set's classes, as FedNH's authors compute them, with
different weights w_c.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from algorithms.gram_matrix import Float

Counts = NDArray[np.int64]


def per_class(predicted: Counts, labels: Counts, classes: int) -> tuple[Counts, Counts]:
    """Return each class's number of correct predictions and number of samples, both int64 (K,).

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
    """Return PM(V): w_c = 1 for classes that the site has, 0 for others.

    ``trained_on`` (K,) counts the site's training samples of each class. Other arguments, result and errors are as in
    :func:`weighted_accuracy`.
    """
    return weighted_accuracy(correct, counts, trained_on > 0)


def pm_l(correct: Counts, counts: Counts, trained_on: Counts) -> float | None:
    """Return PM(L): w_c is the class's share of the site's training samples.

    A test set with equally many samples of each class then counts like a test set with the site's class mix. The
    limit: on a test set that already has that mix, the mix counts twice. ``trained_on`` (K,) is as in :func:`pm_v`.
    """
    # A site without training samples has weights of 0, and so no PM(L).
    return weighted_accuracy(correct, counts, trained_on / max(int(trained_on.sum()), 1))


def weighted_accuracy(correct: Counts, counts: Counts, weights: Float | NDArray[np.bool_]) -> float | None:
    """Return Σ w·correct / Σ w·count in [0, 1], or None if no sample of the test set has a weight.

    ``correct`` and ``counts`` are int64 (K,), ``weights`` (K,). Raises ``ValueError`` for shapes that do not fit,
    more correct predictions than samples, or a weight that is negative or not finite.
    """
    if not correct.shape == counts.shape == weights.shape or counts.ndim != 1:
        raise ValueError(
            f"correct {correct.shape}, counts {counts.shape} and weights {weights.shape} need one number per class"
        )
    if (correct < 0).any() or (correct > counts).any():
        raise ValueError("a class's correct predictions must be between 0 and its number of samples")
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError("a class's weight must be finite and not negative")
    total = float(weights @ counts)
    return float(weights @ correct) / total if total > 0.0 else None


def entropy(counts: Counts) -> float:
    """Return −Σ_c p_c·ln p_c of the classes' shares p, in nats; 0 without samples.

    This is the least cross entropy of a model that gives every sample the same probabilities. ``counts`` are int64
    (K,).
    """
    shares = counts[counts > 0] / max(int(counts.sum()), 1)
    # A single class gives −0.0 without the maximum.
    return max(0.0, float(-(shares * np.log(shares)).sum()))
