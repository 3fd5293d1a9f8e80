"""Accounting rules of a ledger: which choices may follow from earlier outputs, and the accountant for each rule.

docs/adr/0021-accounting-across-runs.md has the reasons. The Rényi filter counts the ε of a history in which each
mechanism may be chosen after seeing all earlier outputs: a mechanism may run if the total cost, with that mechanism,
stays within a budget fixed beforehand. At one order α, Rényi costs add up under such a choice, and a budget B_α bounds
the total by (α, B_α)-RDP (Feldman and Zrnic 2021, "Individual Privacy Accounting via a Rényi Filter"; Lécuyer 2021,
"Practical Privacy Filters and Odometers with Rényi Differential Privacy"). The best order is not known beforehand, so
this filter keeps a budget for each of :data:`ORDERS` and accepts mechanisms while *any* order has room. Each order
therefore gets an equal part of δ.

**Theorem.** Let Λ be fixed, δ' = δ/|Λ|, and B_α = ε − log(1 − 1/α) + log(δ'·α)/(α − 1). If after every payment there is
an α ∈ Λ with Σ ρ_i(α) ≤ B_α, with ρ_i(α) the Rényi cost of the i-th mechanism given all before it, then all outputs
together are (ε, δ)-private. *Proof.* Let P and Q be the laws of the outputs on two neighbours, X = dP/dQ of all of
them, and α* an order that has room at the end, a function of the outputs. P(S) − e^ε·Q(S) ≤ E_Q (X − e^ε)⁺ =
Σ_α E_Q (X − e^ε)⁺·1{α* = α}. For every x, (x − e^ε)⁺ ≤ c_α·e^((1 − α)ε)·x^α with c_α = (1 − 1/α)^(α − 1)/α. The
process X_t^α·exp((1 − α)·Σ_{i ≤ t} ρ_i(α)) begins with 1 and is a supermartingale under Q, since ρ_i(α) follows from
the outputs before i; stopped before its sum exceeds B_α it is one still, and where α* = α it was not stopped. So each
term is at most c_α·exp((α − 1)·(B_α − ε)) = δ', and all are δ. ∎ With one order it is the known filter. **Without the
division of δ the rule "any order fits" is not covered by this proof**: which order has room at the end may follow from
the outputs. The conversion is that of Canonne, Kamath and Steinke 2020, proposition 12.

Costs of a mechanism:

- A discrete Gaussian of noise multiplier z costs α/2z², like a continuous Gaussian (Canonne, Kamath and Steinke 2020,
  theorem 14), so discreteness adds nothing. docs/adr/0016 covers shared noise.
- A step of DP-SGD costs what ``dp_accounting`` computes for a Gaussian with Poisson sampling (Mironov, Talwar and Zhang
  2019). The Gaussian counts as exact, like in :mod:`privacy.accounting.accountant`.

Limit: the budget has to be fixed beforehand. No theorem covers a budget that is raised after seeing outputs.
Interleaved runs over one ledger are covered, because a payment is recorded before the release it pays for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import lru_cache

from privacy.accounting.accountant import MOST_EPSILON, Composed
from privacy.accounting.events import Event

ORDERS = (2, 3, 5, 9, 17, 33, 65)
"""Rényi orders, fixed for every ledger in use. At whole numbers the cost of a DP-SGD step is a finite sum."""
_ROUNDING_OF_A_STEP = 1e-13
"""Margin added to the cost of each step for float64 rounding: the cost's terms are sums of numbers near 1."""
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


def renyi_epsilon(composed: Composed, delta: float) -> float:
    """Return the least ε with which the filter would have let all of the history run, at ``delta``.

    ε is 0 for an empty history. ε is infinite above :data:`~privacy.accounting.accountant.MOST_EPSILON`, and where
    :meth:`~privacy.accounting.accountant.Composed.epsilon` counts too little noise as infinite. Raises ``ValueError``
    for a δ that is not between 0 and 1.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta must be between 0 and 1, not {delta}")
    if composed == Composed():
        return 0.0
    if composed.is_beyond():
        return math.inf
    # The theorem's δ' = δ/|Λ|: which order has room at the end may follow from the outputs, so each order gets a part.
    part = delta / len(ORDERS)
    # The ε at which the theorem's budget B_α equals the cost.
    epsilon = min(
        cost + math.log1p(-1 / order) - math.log(part * order) / (order - 1)
        for order, cost in zip(ORDERS, costs(composed), strict=True)
    )
    return max(0.0, epsilon) if epsilon <= MOST_EPSILON else math.inf


def costs(composed: Composed) -> tuple[float, ...]:
    """Return the Rényi cost of a history at each of :data:`ORDERS`, under adding or removing one unit."""
    from privacy.accounting.loss_accountants import renyi_costs  # noqa: PLC0415 (takes a second to import)

    # A cost that rounding made too small would let one mechanism more through the filter.
    rounding = _ROUNDING_OF_A_STEP * (1 + sum(training.steps for training in composed.training))
    exact = renyi_costs(composed.training, composed.squares, ORDERS)
    return tuple(cost * (1 + _ROUNDING_OF_A_STEP) + rounding for cost in exact)


_pld_cost = lru_cache(maxsize=1024)(Composed.epsilon)
_renyi_cost = lru_cache(maxsize=1024)(renyi_epsilon)


def accountant_for(rule: Accounting) -> Accountant:
    """Return the function that computes a history's ε at a δ for a ledger. The function caches its results."""
    return renyi_cost if rule is Accounting.RENYI else pld_cost


def pld_cost(history: Sequence[Event], delta: float) -> float:
    """Return :meth:`privacy.accounting.accountant.Composed.epsilon`, cached: simulated sites have equal histories."""
    return _pld_cost(Composed.of(history), delta)


def renyi_cost(history: Sequence[Event], delta: float) -> float:
    """Return :func:`renyi_epsilon`, cached."""
    return _renyi_cost(Composed.of(history), delta)
