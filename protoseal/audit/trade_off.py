"""Trade-off curves of a privacy guarantee: the least rate of one test error for each rate of the other.

A mechanism has trade-off function f if, for every event S and all neighbours D and D' (in both directions),
P[M(D) in S] <= 1 - f(P[M(D') in S]) (Dong, Roth and Su 2022). A :class:`TradeOff` is the inverse of that bound,
g(y) = least P[M(D') in S] with P[M(D) in S] = y. It is convex and increasing, with g(y) <= y and g(0) = 0.

Every curve here lies at or below the claimed mechanism's own: whoever has that mechanism also keeps the curve. So no
rounding or approximation in this module can refute a claim that is true.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from privacy.accounting.accountant import Composed

_NORMAL = NormalDist()
_ROUNDING = 1e-9
"""The relative margin by which curves are lowered: far more than float64 loses in any value."""
_LINES = 1000
"""Number of pairs (ε, δ) that define a curve."""
_LEAST_DELTA = 1e-10
"""Pairs with a smaller δ are left out, which lowers a curve by less than that."""


class TradeOff(Protocol):
    """A lower bound g of a neighbour's probabilities, as the module describes it."""

    def least(self, probability: float) -> float:
        """Return g(``probability``), for a probability from 0 to 1."""
        ...


@dataclass(frozen=True)
class GaussianTradeOff:
    """The curve of Gaussian noise, g(y) = Φ(Φ⁻¹(y) - μ), lowered by a ratio of densities of e^``slack``.

    ``mu`` is sensitivity over standard deviation. The slack covers noise that is discrete
    (:func:`privacy.mechanisms.discrete_gaussian.discreteness`): with p <= e^a·q and q <= e^b·p, the discrete
    mechanism's curve is at least e^-b·g(e^-a·y).
    """

    mu: float
    slack: float = 0.0

    def least(self, probability: float) -> float:
        """Return g(``probability``); 0 where that is too small for a float."""
        # Rounding always lowers the curve: a true claim may then be refuted less often, never more.
        shrunk = probability * math.exp(-self.slack) * (1 - _ROUNDING)
        if shrunk <= 0.0:
            return 0.0
        deviations = self.mu - _NORMAL.inv_cdf(shrunk)
        return math.exp(-self.slack) * math.erfc(deviations / math.sqrt(2)) / 2


@dataclass(frozen=True)
class PairsTradeOff:
    """The curve of a mechanism that is (ε, δ)-private for each of many pairs: ``epsilons`` and ``deltas``, (n,) each.

    g(y) is the largest of 0, e^-ε·(y - δ) and 1 - δ - e^ε·(1 - y): the second bounds the event, the third its
    complement. One pair is a claim of (ε, δ) and nothing else.
    """

    epsilons: NDArray[np.float64]
    deltas: NDArray[np.float64]

    def __post_init__(self) -> None:
        falling = np.exp(-self.epsilons)
        rising = np.exp(np.minimum(self.epsilons, 700.0))
        slopes = np.concatenate([falling, rising])
        offsets = np.concatenate([-falling * self.deltas, 1 - self.deltas - rising])
        object.__setattr__(self, "_slopes", slopes)
        object.__setattr__(self, "_offsets", offsets)

    def least(self, probability: float) -> float:
        """Return g(``probability``)."""
        slopes: NDArray[np.float64] = self.__dict__["_slopes"]
        offsets: NDArray[np.float64] = self.__dict__["_offsets"]
        shrunk = probability * (1 - _ROUNDING)  # so that rounding of e^ε cannot raise the curve
        return max(0.0, float((slopes * shrunk + offsets).max()) * (1 - _ROUNDING))


def composed_trade_off(composed: Composed) -> TradeOff:
    """Return the curve of a history of releases and training, as far as the accountant knows it.

    Releases alone have a closed form. With DP-SGD the curve is that of the pairs (ε, δ(ε)) that privacy loss
    distributions give, which are never too small; a history without a finite ε has the curve 0.
    """
    slack = composed.slack()
    if not composed.training:
        return GaussianTradeOff(math.sqrt(composed.squares), slack.epsilon)
    top = composed.epsilon(max(_LEAST_DELTA, 10 * slack.delta)) if slack.delta < 0.1 else math.inf
    if not math.isfinite(top):
        return PairsTradeOff(np.zeros(1), np.ones(1))
    # Each pair is a tangent from below, so that any number of them is valid; more only sharpen the curve.
    epsilons = np.linspace(0.0, top, _LINES)
    return PairsTradeOff(epsilons, composed.deltas(epsilons))


def most_recognised(curve: TradeOff, false_alarms: float) -> float:
    """Return the largest share of members that any test recognises while ``false_alarms`` of non-members seem members.

    It is 1 - g(1 - ``false_alarms``): g bounds the complement of the test, since it holds for D and D' in both orders.
    """
    return min(1.0, max(false_alarms, 1 - curve.least(1 - false_alarms)))
