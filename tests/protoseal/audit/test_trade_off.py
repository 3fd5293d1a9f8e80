"""The share of members that attacks recognise: against closed forms, and Opacus's accountant."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from privacy.accounting.accountant import Composed
from privacy.accounting.events import DpSgd, Event, GaussianRelease
from protoseal.audit.trade_off import GaussianTradeOff, composed_trade_off, most_recognised
from tests.privacy.accountants import prv

NORMAL = NormalDist()
ALARMS = (0.001, 0.01, 0.1)


def recognised(history: list[Event], alarms: float) -> float:
    return most_recognised(composed_trade_off(Composed.of(history)), alarms)


@pytest.mark.parametrize("alarms", ALARMS)
@pytest.mark.parametrize(("noise", "count"), [(1.39, 1), (6.3, 4), (0.5, 1), (13.9, 100)])
def test_of_releases_it_is_the_power_of_the_best_test_between_two_gaussians(
    noise: float, count: int, alarms: float
) -> None:
    """Neyman and Pearson: a sum of the releases is shifted by √count deviations of 1/noise."""
    power = 1 - NORMAL.cdf(NORMAL.inv_cdf(1 - alarms) - math.sqrt(count) / noise)
    found = recognised([GaussianRelease(noise, 650)] * count, alarms)
    assert power <= found == pytest.approx(power, rel=1e-4)


@pytest.mark.parametrize("alarms", ALARMS)
def test_of_one_step_of_dp_sgd_it_is_the_power_against_the_mixture(alarms: float) -> None:
    noise, rate = 0.8, 0.3
    power = (1 - rate) * alarms + rate * (1 - NORMAL.cdf(NORMAL.inv_cdf(1 - alarms) - 1 / noise))
    found = recognised([DpSgd(noise, rate, 1)], alarms)
    assert power <= found <= 1.05 * power + 1e-4


@pytest.mark.parametrize("history", [[DpSgd(2.0, 0.05, 300), *[GaussianRelease(4.0)] * 3]])
def test_of_training_and_releases_it_is_what_another_accountant_allows(history: list[Event]) -> None:
    """Each pair (ε, δ) of Opacus bounds the power by e^ε·α + δ and by 1 − e^-ε·(1 − δ − α)."""
    deltas = np.geomspace(1e-5, 0.3, 25)
    epsilons = np.array([prv(history, float(delta), error=0.02) for delta in deltas])
    for alarms in ALARMS[1:]:
        rising = np.exp(epsilons) * alarms + deltas
        falling = 1 - np.exp(-epsilons) * (1 - deltas - alarms)
        assert recognised(history, alarms) == pytest.approx(min(rising.min(), falling.min()), rel=0.05)


def test_without_noise_all_are_recognised_and_with_endless_noise_as_many_as_false_alarms() -> None:
    assert most_recognised(GaussianTradeOff(40.0), 0.01) == 1.0
    assert most_recognised(GaussianTradeOff(0.0), 0.01) == pytest.approx(0.01)
    assert recognised([DpSgd(1e-4, 0.5, 1)], 0.01) == 1.0


def test_the_bound_of_epsilon_alone_is_looser() -> None:
    history: list[Event] = [GaussianRelease(1.39)]
    loose = math.exp(Composed.of(history).epsilon(1e-5)) * 0.01 + 1e-5
    assert recognised(history, 0.01) < 0.3 * loose
