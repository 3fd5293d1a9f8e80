"""The Rényi filter: its costs against independent ones, its conversion, and which ledgers go by it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from opacus.accountants.analysis.rdp import compute_rdp

from privacy.accounting.accountant import Composed
from privacy.accounting.accounting_rules import ORDERS, Accounting, accountant_for, costs
from privacy.accounting.events import DpSgd, Event, GaussianRelease
from privacy.errors import BudgetError, LedgerError
from privacy.ledger.budget_account import read_account
from privacy.ledger.ledger import Ledger
from privacy.ledger.lines import Limit, ReleaseName, Spending
from tests.support.composed import epsilon, filtered_epsilon

DELTA = 1e-5
TRAINING = DpSgd(2.5, 0.1, 50)
HISTORIES: dict[str, list[Event]] = {
    "releases": [GaussianRelease(6.219, 5130)] * 20,
    "training": [DpSgd(1.0, 0.01, 1000)],
    "both": [GaussianRelease(3.8, 650), TRAINING, GaussianRelease(8.0, 650), DpSgd(1.2, 0.02, 300)],
    "much": [DpSgd(0.8, 0.05, 400)],
    "little": [GaussianRelease(40.0)],
}


@pytest.mark.parametrize(
    "step", [DpSgd(2.5, 0.1, 200), DpSgd(1.0, 0.01, 1000), DpSgd(0.5, 0.2, 3), DpSgd(2.0, 1.0, 7)]
)
def test_costs_of_training_agree_with_another_library(step: DpSgd) -> None:
    theirs = compute_rdp(
        q=step.sampling_rate, noise_multiplier=step.noise_multiplier, steps=step.steps, orders=list(ORDERS)
    )
    ratios = np.array(costs(Composed.of([step]))) / theirs
    assert (ratios >= 1 - 1e-12).all()
    assert (ratios <= 1 + 1e-8).all()


def test_costs_of_releases_are_half_the_order_times_their_squares() -> None:
    squares = 20 / 6.219**2
    assert costs(Composed.of(HISTORIES["releases"])) == pytest.approx(
        [order * squares / 2 for order in ORDERS]
    )


@pytest.mark.parametrize("sigma", [0.6, 1.0, 3.0])
def test_costs_of_discrete_noise_are_at_most_continuous(sigma: float) -> None:
    """Exact sums show the cost for a shift of one and of two."""
    x = np.arange(-400, 401)
    for shift in (1, 2):
        for order in ORDERS[:4]:
            log_p, log_q = -(x**2) / (2 * sigma**2), -((x - shift) ** 2) / (2 * sigma**2)
            norm = np.logaddexp.reduce(log_p)
            moment = np.logaddexp.reduce(order * log_p - (order - 1) * log_q) - norm
            assert moment / (order - 1) <= order * shift**2 / (2 * sigma**2) * (1 + 1e-12)


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
def test_filtered_epsilon_divides_delta_among_the_orders(history: list[Event]) -> None:
    """The filter admits events within the budget of any order, with δ divided by the number of orders."""
    found, paid = filtered_epsilon(history, DELTA), costs(Composed.of(history))

    def has_room(limit: float) -> bool:
        part = DELTA / len(ORDERS)
        return any(
            cost <= limit - math.log(1 - 1 / order) + math.log(part * order) / (order - 1)
            for order, cost in zip(ORDERS, paid, strict=True)
        )

    assert has_room(found * (1 + 1e-9))
    assert not has_room(found * (1 - 1e-9))


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
def test_filtered_epsilon_is_above_a_plans_and_below_1_75_times(history: list[Event]) -> None:
    """The largest order decides for a small ε, which would need a larger order."""
    planned = epsilon(history, DELTA)
    assert planned < filtered_epsilon(history, DELTA) < 1.75 * planned + 0.1


def test_filtered_epsilon_empty_is_zero_and_little_noise_infinite() -> None:
    assert filtered_epsilon([], DELTA) == 0.0
    assert filtered_epsilon([GaussianRelease(1e-3)], DELTA) == math.inf
    for delta in (0.0, 1.0):
        with pytest.raises(ValueError, match="delta"):
            filtered_epsilon([TRAINING], delta)


# Which ledgers go by it


def opened(path: Path, accountant: Accounting, limit: float = 9.0) -> Ledger:
    return Ledger(
        path, "scans", Limit(limit, DELTA, accountant=accountant), epsilon=accountant_for(accountant)
    )


def spending(event: Event, agreement: int, number: int = 1) -> Spending:
    return Spending(ReleaseName(f"run-{agreement}", number, "any"), bytes([agreement] * 32), event)


@pytest.mark.parametrize(
    ("first", "second"),
    [(TRAINING, TRAINING), (TRAINING, GaussianRelease(9.0)), (GaussianRelease(9.0), TRAINING)],
)
def test_check_covered_training_and_a_second_agreement_need_a_rule(
    tmp_path: Path, first: Event, second: Event
) -> None:
    path = tmp_path / "pld.jsonl"
    ledger = opened(path, Accounting.PLD)
    for number in (1, 2):  # a round that is paid again is of the same agreement
        ledger.spend(spending(first, 1, number))
    before = path.read_bytes()
    with pytest.raises(BudgetError, match="renyi-filter"):
        ledger.spend(spending(second, 2))
    assert path.read_bytes() == before
    for accountant in (Accounting.PLANNED, Accounting.RENYI):
        other = opened(tmp_path / f"{accountant}.jsonl", accountant)
        for number, event in enumerate((first, second), 1):
            other.spend(spending(event, number))
        assert other.epsilon_spent() == accountant_for(accountant)([first, second], DELTA)


def test_check_covered_releases_alone_need_no_filter(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "releases.jsonl", Accounting.PLD)
    for agreement in (1, 2, 3):
        ledger.spend(spending(GaussianRelease(9.0), agreement))
    assert ledger.epsilon_spent() == epsilon([GaussianRelease(9.0)] * 3, DELTA)


def test_ledger_with_the_filter_stops_at_its_own_count(tmp_path: Path) -> None:
    """The filter stops before privacy loss distributions would: the difference is the cost of adaptivity."""
    limit = filtered_epsilon([TRAINING] * 3, DELTA)
    ledger, paid = opened(tmp_path / "filter.jsonl", Accounting.RENYI, limit), 0
    while filtered_epsilon([TRAINING] * (paid + 1), DELTA) <= limit:
        paid += 1
        ledger.spend(spending(TRAINING, paid))
    with pytest.raises(BudgetError):
        ledger.spend(spending(TRAINING, paid + 1))
    assert paid == 3
    assert epsilon([TRAINING] * (paid + 1), DELTA) < limit


def test_ledger_records_its_accountant_and_refuses_another(tmp_path: Path) -> None:
    path = tmp_path / "filter.jsonl"
    opened(path, Accounting.RENYI)
    assert read_account(path).limit.accountant is Accounting.RENYI
    for other in (Accounting.PLD, Accounting.PLANNED):
        with pytest.raises(LedgerError, match="renyi-filter"):
            opened(path, other)


def test_allow_changes_the_accountant_but_never_away_from_the_filter(tmp_path: Path) -> None:
    path = tmp_path / "scans.jsonl"
    ledger = opened(path, Accounting.PLD)
    ledger.spend(spending(TRAINING, 1))
    ledger.allow(Limit(9.0, DELTA, accountant=Accounting.RENYI), "the next agreement follows from this run")
    again = opened(path, Accounting.RENYI)
    again.spend(spending(TRAINING, 2))
    assert again.epsilon_spent() == filtered_epsilon([TRAINING] * 2, DELTA)
    for other in (Accounting.PLD, Accounting.PLANNED):
        with pytest.raises(ValueError, match="renyi-filter"):
            again.allow(Limit(9.0, DELTA, accountant=other), "back")
