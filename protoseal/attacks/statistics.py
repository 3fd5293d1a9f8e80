"""Statistics of membership attacks: ROC, true-positive rates at low false-positive rates, and what ε allows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]


def auc(members: Float, outsiders: Float) -> float:
    """Return the area under the ROC curve: the chance that a member scores above an outsider, ties as half."""
    if not len(members) or not len(outsiders):
        return float("nan")
    ordered = np.sort(outsiders)
    below = np.searchsorted(ordered, members, "left")
    ties = np.searchsorted(ordered, members, "right") - below
    return float((below + ties / 2).mean() / len(outsiders))


def true_positive_rate(members: Float, outsiders: Float, false_positive_rate: float) -> float:
    """Return the share of members above the threshold that at most that share of outsiders exceeds."""
    allowed = int(np.floor(false_positive_rate * len(outsiders)))
    threshold = np.sort(outsiders)[::-1][allowed] if allowed < len(outsiders) else -np.inf
    return float((members > threshold).mean())


def roc(members: Float, outsiders: Float, rates: Float) -> Float:
    """Return the true-positive rates at false-positive ``rates`` (n,)."""
    return np.array([true_positive_rate(members, outsiders, rate) for rate in rates])


def allowed_by(epsilon: float, delta: float, rates: Float) -> Float:
    """Return the largest true-positive rates that (ε, δ) allows at false-positive ``rates`` (Kairouz et al. 2015)."""
    above = np.exp(epsilon) * rates + delta
    other = 1.0 - np.exp(-epsilon) * (1.0 - delta - rates)
    return np.asarray(np.clip(np.minimum(above, other), 0.0, 1.0))
