"""Accounting rules of a ledger: which choices may follow from earlier outputs, and the accountant for each rule.

docs/adr/0021-accounting-across-runs.md has the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import lru_cache

from privacy.accounting.accountant import Composed
from privacy.accounting.events import Event
from privacy.accounting.renyi_filter import renyi_epsilon

Accountant = Callable[[Sequence[Event], float], float]
"""Function that returns a history's epsilon at a delta: never below the true cost, and monotone in the history."""


class Accounting(StrEnum):
    """Accountant of a ledger, which decides which parameters may be chosen after earlier outputs were seen.

    ``PLD`` counts by privacy loss distributions, and refuses DP-SGD beside entries of another agreement. ``PLANNED``
    counts like ``PLD`` without that refusal: the site vouches that all agreements were fixed before the first of them
    released anything. ``RENYI`` counts by a Rényi filter, so that every agreement may depend on all earlier outputs.
    """

    PLD = "pld"
    PLANNED = "pld-planned"
    RENYI = "renyi-filter"


def accountant_for(rule: Accounting) -> Accountant:
    """Return the function that computes a history's ε at a δ for a ledger. The function caches its results."""
    return renyi_cost if rule is Accounting.RENYI else pld_cost


def pld_cost(history: Sequence[Event], delta: float) -> float:
    """Return :meth:`privacy.accounting.accountant.Composed.epsilon`, cached: simulated sites have equal histories."""
    return _pld_cost(Composed.of(history), delta)


def renyi_cost(history: Sequence[Event], delta: float) -> float:
    """Return :func:`privacy.accounting.renyi_filter.renyi_epsilon`, cached."""
    return _renyi_cost(Composed.of(history), delta)


_pld_cost = lru_cache(maxsize=1024)(Composed.epsilon)
_renyi_cost = lru_cache(maxsize=1024)(renyi_epsilon)
