"""Cost of a history in one call, as tests ask for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from privacy.accounting.accountant import Composed
from privacy.accounting.accounting_rules import renyi_epsilon
from privacy.accounting.events import Event


def epsilon(history: Sequence[Event], delta: float) -> float:
    """Return ε by privacy loss distributions."""
    return Composed.of(history).epsilon(delta)


def delta_of(history: Sequence[Event], epsilon: float) -> float:
    """Return δ by privacy loss distributions."""
    return float(Composed.of(history).deltas(np.array([epsilon]))[0]) if history else 0.0


def filtered_epsilon(history: Sequence[Event], delta: float) -> float:
    """Return ε by the Rényi filter."""
    return renyi_epsilon(Composed.of(history), delta)
