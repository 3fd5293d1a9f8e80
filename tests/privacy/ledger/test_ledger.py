"""Ledger records, refusals, and the stated remainder of the budget."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.accounting.accounting_rules import Accounting
from privacy.accounting.events import DpSgd, Event, GaussianRelease, Unit
from privacy.errors import BudgetError, LedgerError
from privacy.ledger.budget_account import read_account
from privacy.ledger.ledger import Ledger
from privacy.ledger.lines import Entry, Limit, ReleaseName, Spending, line_from_json, line_to_json
from privacy.ledger.remaining_budget import MOST_RELEASES, MOST_STEPS, count_remaining
from tests.support.ledgers import (
    DATASET,
    LIMIT,
    count_possible,
    exact_epsilon,
    has_paid_for,
    open_ledger,
    spending,
)

EVENTS = st.one_of(
    st.builds(GaussianRelease, st.floats(0.5, 1e6), st.integers(0, 10**6)),
    st.builds(DpSgd, st.floats(0.5, 1e6), st.floats(0, 1, exclude_min=True), st.integers(1, 10**6)),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "heart.ledger"


def training(steps: int, noise: float = 100.0) -> Spending:
    return Spending(ReleaseName("run-1", 1, "extractor"), bytes(32), DpSgd(noise, 0.01, steps))


def paid(event: Event) -> Entry:
    return Entry(Spending(ReleaseName("run-1", 1, "it"), bytes(32), event), "2026-01-01T00:00:00Z")


@pytest.mark.parametrize(("noise", "releases"), [(1.39, 1), (6.2, 20), (13.9, 100)])
def test_exact_epsilon_guiding_cases(noise: float, releases: int) -> None:
    assert exact_epsilon([GaussianRelease(noise)] * releases, 1e-5) == pytest.approx(3.0, rel=0.01)


def test_open_again_reads_the_spendings_back(path: Path) -> None:
    ledger = open_ledger(path)
    heads = [ledger.spend(spending(1)), ledger.spend(training(3))]
    again = open_ledger(path)
    assert again.history == (spending(1).event, training(3).event)
    assert [again.anchor, again.epsilon_spent()] == [heads[-1], ledger.epsilon_spent()]
    account = read_account(path)
    assert [each.spending for each in account.entries] == [spending(1), training(3)]
    assert (account.budget.dataset, account.budget.limit) == (DATASET, LIMIT)


def test_has_paid_for_compares_run_round_and_name(path: Path) -> None:
    ledger = open_ledger(path)
    ledger.spend(spending(2))
    assert has_paid_for(ledger, spending(2).release)
    for other in (spending(1), spending(2, "run-2"), spending(2, what="clustering")):
        assert not has_paid_for(ledger, other.release)


def test_spend_same_release_again_is_paid_again(path: Path) -> None:
    ledger = open_ledger(path)
    ledger.spend(spending(1))
    once = ledger.epsilon_spent()
    ledger.spend(spending(1))
    assert (len(ledger.history), ledger.epsilon_spent() > once) == (2, True)


def test_spend_most_payments_reached_is_refused_for_that_release_alone(path: Path) -> None:
    for _ in range(2):
        Ledger(path, DATASET, LIMIT, epsilon=exact_epsilon, most_payments=2).spend(spending(1))
    ledger = Ledger(path, DATASET, LIMIT, epsilon=exact_epsilon, most_payments=2)
    with pytest.raises(BudgetError):
        ledger.spend(spending(1))
    ledger.spend(replace(spending(1), agreement_hash=bytes([1] * 32)))
    ledger.spend(spending(2))
    assert len(read_account(ledger.path).entries) == 4


def test_open_new_file_is_for_its_owner_alone(path: Path) -> None:
    before = os.umask(0)
    try:
        open_ledger(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o666)
    open_ledger(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_open_new_budget_is_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    open_ledger(path)
    open_ledger(path)
    assert [record.message for record in caplog.records] == [
        f"{path}: a new privacy budget begins for data set '{DATASET}'"
    ]


@pytest.mark.parametrize(
    ("dataset", "limit", "message"),
    [
        ("lungs", LIMIT, "heart-2024.*lungs"),
        (DATASET, replace(LIMIT, epsilon=8.0), "epsilon 3 .* epsilon 8 "),
        (DATASET, replace(LIMIT, epsilon=1.0), "epsilon 3 .* epsilon 1 "),
        (DATASET, replace(LIMIT, delta=1e-4), "1e-05 .*0.0001"),
        (DATASET, replace(LIMIT, unit=Unit.SUBJECT), "record.* subject"),
    ],
)
def test_open_other_data_set_or_limit_is_refused(
    path: Path, dataset: str, limit: Limit, message: str
) -> None:
    open_ledger(path)
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=message):
        open_ledger(path, dataset, limit)
    assert path.read_bytes() == before


def test_spend_beyond_the_limit_is_refused_with_the_releases_left(path: Path) -> None:
    ledger = open_ledger(path)
    count = count_possible(ledger, spending(1).event)
    for number in range(count):
        assert count_possible(ledger, spending(1).event) == count - number
        ledger.spend(spending(number))
    before, spent = path.read_bytes(), f"{ledger.epsilon_spent():.6g}"
    with pytest.raises(BudgetError) as refused:
        ledger.spend(spending(99))
    assert path.read_bytes() == before
    message = str(refused.value)
    assert message.startswith("prototypes of round 99 in run 'run-1' would bring data set 'heart-2024' to ")
    assert "above its limit of epsilon 3 at delta 1e-05 for one record" in message
    assert f"epsilon {spent} is spent. Of this kind 0 releases with noise multiplier 6.2 remain" in message


def test_spend_training_beyond_the_limit_is_refused_with_the_steps_left(path: Path) -> None:
    ledger = open_ledger(path)
    with pytest.raises(BudgetError) as refused:
        ledger.spend(training(10_000))
    fitting = count_possible(ledger, training(10_000).event)
    assert f"Of this kind {fitting} steps of DP-SGD with noise multiplier 100 " in str(refused.value)
    with pytest.raises(BudgetError):
        ledger.spend(training(fitting + fitting // 100 + 1))
    ledger.spend(training(fitting))
    assert count_possible(ledger, training(1).event) <= fitting // 100


@settings(deadline=None)
@given(st.integers(0, 2 * MOST_RELEASES), st.integers(1, 10**6))
def test_count_remaining_finds_the_number_wherever_the_search_starts(possible: int, steps: int) -> None:
    """Exactly up to 100, and 1 % below the truth at most; by an accountant that knows the number."""

    def epsilon(history: Sequence[Event], delta: float) -> float:
        return (
            sum(each.steps if isinstance(each, DpSgd) else 1 for each in history) / possible
            if history
            else 0.0
        )

    limit = Limit(1.0, 1e-5)
    for event, most in ((GaussianRelease(1.0), MOST_RELEASES), (DpSgd(1.0, 0.1, steps), MOST_STEPS)):
        found = count_remaining((), event, limit, epsilon) if possible else 0
        truth = min(possible, most)
        assert truth - truth // 100 <= found <= truth


@pytest.mark.parametrize("answer", [float("inf"), float("nan")])
def test_spend_infinite_or_nan_epsilon_is_refused(path: Path, answer: float) -> None:
    with pytest.raises(BudgetError):
        Ledger(path, DATASET, LIMIT, epsilon=lambda history, delta: answer).spend(spending(1))


def test_spend_from_threads_shares_one_budget(path: Path) -> None:
    ledger = open_ledger(path)
    count, sent = count_possible(ledger, spending(1).event), list[int]()

    def spend(first: int) -> None:
        try:
            for number in range(first, 1000, 4):
                ledger.spend(spending(number))
                sent.append(number)
        except BudgetError:
            pass

    threads = [threading.Thread(target=spend, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sent) == len(open_ledger(path).history) == count


@settings(max_examples=20, deadline=None)
@given(st.lists(EVENTS, min_size=1, max_size=6))
def test_epsilon_spent_never_decreases(events: list[Event]) -> None:
    with TemporaryDirectory() as folder:
        path, limit = Path(folder) / "heart.ledger", Limit(5.0, 1e-5)
        ledger, before = open_ledger(path, limit=limit), 0.0
        for number, event in enumerate(events):
            asked = Spending(ReleaseName("run", number, "it"), b"", event)
            total = exact_epsilon((*ledger.history, event), limit.delta)
            try:
                ledger.spend(asked)
            except BudgetError:
                assert total > limit.epsilon
            assert before <= ledger.epsilon_spent() <= limit.epsilon
            assert open_ledger(path, limit=limit).epsilon_spent() == ledger.epsilon_spent()
            before = ledger.epsilon_spent()


@given(EVENTS)
def test_line_round_trip_keeps_the_event(event: Event) -> None:
    assert line_from_json(line_to_json(paid(event))) == paid(event)


@pytest.mark.parametrize(
    "content",
    [
        [],
        {},
        {"mechanism": ["dp-sgd"]},
        {"mechanism": "laplace", "scale": 1.0},
        {"mechanism": "gaussian release", "noise_multiplier": 1.0, "coordinates": 1, "more": 1},
        {"mechanism": "gaussian release", "noise_multiplier": "1", "coordinates": 1},
        {"mechanism": "gaussian release", "noise_multiplier": 0, "coordinates": 1},
        {"mechanism": "gaussian release", "noise_multiplier": 10**400, "coordinates": 1},
        {"mechanism": "gaussian release", "noise_multiplier": True, "coordinates": 1},
        {"mechanism": "gaussian release", "noise_multiplier": 1.0, "coordinates": 1.0},
        {"mechanism": "dp-sgd", "noise_multiplier": 1.0, "sampling_rate": 0.0, "steps": 1},
        {"mechanism": "dp-sgd", "noise_multiplier": 1.0, "sampling_rate": 1.1, "steps": 1},
        {"mechanism": "dp-sgd", "noise_multiplier": 1.0, "sampling_rate": 0.1, "steps": 0},
        {"mechanism": "dp-sgd", "noise_multiplier": float("inf"), "sampling_rate": 0.1, "steps": 1},
    ],
)
def test_line_from_json_invalid_event_is_refused(content: object) -> None:
    with pytest.raises(ValueError, match=r".+"):
        line_from_json(line_to_json(paid(GaussianRelease(1.0))) | {"event": content})


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0, 0.1), (float("inf"), 0.1), (float("nan"), 0.1), (1, 0), (1, 1)]
)
def test_limit_invalid_epsilon_or_delta_is_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError, match=r"(epsilon|delta) is"):
        Limit(epsilon, delta)


@pytest.mark.parametrize(("field", "name"), [("unit", Unit.SUBJECT), ("accountant", Accounting.RENYI)])
def test_limit_text_becomes_unit_or_accountant(field: str, name: Unit | Accounting) -> None:
    """A text that is compared by identity would count for one record, and by the default accountant."""
    content: dict[str, Any] = {field: str(name)}
    assert getattr(replace(LIMIT, **content), field) is name
    content = {field: f"another {name}"}
    with pytest.raises(ValueError, match="another"):
        replace(LIMIT, **content)
