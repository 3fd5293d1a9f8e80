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


def compose_losses(training: tuple[DpSgd, ...], squares: float, width: float) -> PLDAccountant:
    """Return an accountant by privacy loss distributions on a grid of this ``width``.

    ``squares`` is Σ 1/noise_multiplier² over Gaussian releases.
    """
    # Equal Gaussians compose to one whose squared inverse noise is the sum of theirs, so all releases are one event.
    accountant = deepcopy(_compose_training(training, width))
    if squares:
        accountant.compose(GaussianDpEvent(1 / math.sqrt(squares)))
    return accountant


@lru_cache(maxsize=8)
def _compose_training(training: tuple[DpSgd, ...], width: float) -> PLDAccountant:
    """Compose training once for all numbers of releases that a search tries; callers must copy the result."""
    accountant = PLDAccountant(NEIGHBOURS, value_discretization_interval=width)
    for steps in training:
        accountant.compose(_as_event(steps))
    return accountant


def renyi_costs(training: Sequence[DpSgd], squares: float, orders: Sequence[int]) -> tuple[float, ...]:
    """Return the Rényi cost at each of ``orders``, of releases and training as in :func:`compose_losses`."""
    # Rényi costs add up at each order (Mironov 2017, proposition 1), also where a mechanism was chosen adaptively.
    accountant = RdpAccountant(orders, NEIGHBOURS)
    if squares:
        accountant.compose(GaussianDpEvent(1 / math.sqrt(squares)))
    for steps in training:
        accountant.compose(_as_event(steps))
    return tuple(map(float, accountant.rdp))


def _as_event(training: DpSgd) -> DpEvent:
    # Poisson sampling: each record joins a step independently, so that adding one changes no other record's chance.
    step = PoissonSampledDpEvent(training.sampling_rate, GaussianDpEvent(training.noise_multiplier))
    return SelfComposedDpEvent(step, training.steps)
