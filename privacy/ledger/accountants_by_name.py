"""Accountants of a ledger by name (docs/adr/0021-accounting-across-runs.md)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from privacy.accounting.accountant import Composed
from privacy.accounting.accounting_rules import Accounting
from privacy.accounting.events import Event
from privacy.accounting.renyi_filter import epsilon_of_composed
from privacy.ledger.remaining_budget import Accountant


def accountant_of(name: Accounting) -> Accountant:
    """Return the function that computes a history's ε at a δ for a ledger. The function caches its results."""
    return _filtered if name is Accounting.RENYI else cost


def cost(history: Sequence[Event], delta: float) -> float:
    """Return :func:`~privacy.accounting.accountant.epsilon`, cached: simulated sites have equal histories."""
    return _cost(Composed.of(history), delta)


def _filtered(history: Sequence[Event], delta: float) -> float:
    return _filtered_cost(Composed.of(history), delta)


@lru_cache(maxsize=1024)
def _cost(composed: Composed, delta: float) -> float:
    return composed.epsilon(delta)


_filtered_cost = lru_cache(maxsize=1024)(epsilon_of_composed)
