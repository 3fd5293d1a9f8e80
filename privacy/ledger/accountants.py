"""Accountants of a ledger by their names (docs/adr/0021-accounting-across-runs.md)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from privacy.accounting.accountant import Composed
from privacy.accounting.accounting_rules import Accounting
from privacy.accounting.events import Event
from privacy.accounting.renyi_filter import epsilon_of_composed
from privacy.ledger.remaining_budget import Accountant


def accountant_of(name: Accounting) -> Accountant:
    """Return what counts a history for a ledger: ε at a δ. Both remember what they counted."""
    return _filtered if name is Accounting.RENYI else cost


def cost(history: Sequence[Event], delta: float) -> float:
    """Return :func:`accounting.epsilon`, remembered: sites that one process simulates have the same histories."""
    return _cost(Composed.of(history), delta)


def _filtered(history: Sequence[Event], delta: float) -> float:
    return _filtered_cost(Composed.of(history), delta)


@lru_cache(maxsize=1024)
def _cost(composed: Composed, delta: float) -> float:
    return composed.epsilon(delta)


_filtered_cost = lru_cache(maxsize=1024)(epsilon_of_composed)
