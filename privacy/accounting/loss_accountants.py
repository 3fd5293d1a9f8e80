"""Composition of DP-SGD training and Gaussian releases by ``dp_accounting``: as losses, or Rényi costs by order.

Importing ``dp_accounting`` takes a second, so callers import this module only where an ε or a δ is computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from functools import lru_cache

from dp_accounting import (
    DpEvent,
    GaussianDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from privacy.accounting.events import DpSgd

NEIGHBOURS = NeighboringRelation.ADD_OR_REMOVE_ONE


def by_losses(training: tuple[DpSgd, ...], squares: float, width: float) -> PLDAccountant:
    """Return an accountant by privacy loss distributions on a grid of this ``width``.

    ``squares`` is Σ 1/noise_multiplier² over Gaussian releases.
    """
    accountant = deepcopy(_trained(training, width))
    if squares:
        accountant.compose(GaussianDpEvent(1 / math.sqrt(squares)))
    return accountant


@lru_cache(maxsize=8)
def _trained(training: tuple[DpSgd, ...], width: float) -> PLDAccountant:
    """Compose training once for all numbers of releases that a search tries; callers must copy the result."""
    accountant = PLDAccountant(NEIGHBOURS, value_discretization_interval=width)
    for each in training:
        accountant.compose(_as_event(each))
    return accountant


def renyi_costs(training: Sequence[DpSgd], squares: float, orders: Sequence[int]) -> tuple[float, ...]:
    """Return the Rényi cost at each of ``orders``, of releases and training as in :func:`by_losses`."""
    accountant = RdpAccountant(orders, NEIGHBOURS)
    if squares:
        accountant.compose(GaussianDpEvent(1 / math.sqrt(squares)))
    for each in training:
        accountant.compose(_as_event(each))
    return tuple(map(float, accountant.rdp))


def _as_event(training: DpSgd) -> DpEvent:
    step = PoissonSampledDpEvent(training.sampling_rate, GaussianDpEvent(training.noise_multiplier))
    return SelfComposedDpEvent(step, training.steps)
