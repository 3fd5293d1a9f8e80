"""Lines that spend nothing: exact values that left, and limits that were changed with a reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from privacy.accounting.events import Unit
from privacy.errors import BudgetError, LedgerError, RolledBackError
from privacy.ledger.budget_account import read_account
from privacy.ledger.hash_chain import Anchor, make_line
from privacy.ledger.ledger import Ledger
from privacy.ledger.lines import GUARANTEE, Limit, Spending
from tests.support.budgets import LIMIT, open_ledger, spending

MORE = replace(LIMIT, epsilon=5.0)
AGREEMENT = bytes(range(32))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    open_ledger(tmp_path / "heart.ledger").spend(of_records(1))
    return tmp_path / "heart.ledger"


def of_records(number: int) -> Spending:
    """Return spending with a guarantee for records."""
    return replace(spending(number), facts={GUARANTEE: Unit.RECORD.value})


def test_once_exact_values_left_nothing_is_guaranteed_any_more(path: Path) -> None:
    ledger = open_ledger(path)
    assert ledger.is_guaranteed()
    assert ledger.record_exposure("run-2", AGREEMENT)
    assert not ledger.is_guaranteed()
    ledger.spend(of_records(2))
    again = read_account(path)
    assert not again.guaranteed
    assert [(each.run, each.agreement_hash) for each in again.exposures] == [("run-2", AGREEMENT)]
    assert [each.spending for each in again.entries] == [of_records(1), of_records(2)]


def test_a_run_is_named_once_for_each_agreement(path: Path) -> None:
    said = [open_ledger(path).record_exposure(run, AGREEMENT) for run in ("run-2", "run-2", "run-3")]
    assert said == [True, False, True]
    assert open_ledger(path).record_exposure("run-2", bytes(32))
    assert len(read_account(path).exposures) == 3


def test_exact_values_cost_no_epsilon_and_are_recorded_when_nothing_is_left(tmp_path: Path) -> None:
    poor = Limit(0.1, 1e-5)
    ledger = open_ledger(tmp_path / "poor.ledger", limit=poor)
    with pytest.raises(BudgetError):
        ledger.spend(spending(1))
    ledger.record_exposure("run-1", AGREEMENT)
    assert ledger.epsilon_spent() == 0.0


def test_a_limit_is_raised_and_what_was_spent_stays(path: Path) -> None:
    ledger = open_ledger(path)
    spent = ledger.epsilon_spent()
    assert ledger.remaining(spending(1).event) < 40
    assert ledger.allow(MORE, "the ethics board, 3 March") == ledger.anchor
    assert ledger.remaining(spending(1).event) >= 40
    again = open_ledger(path, limit=MORE)
    assert again.epsilon_spent() == spent
    account = read_account(path)
    assert (account.limit, account.budget.limit) == (MORE, LIMIT)
    assert [each.reason for each in account.allowances] == ["the ethics board, 3 March"]


def test_a_limit_below_what_is_spent_lets_nothing_more_go(path: Path) -> None:
    ledger, less = open_ledger(path), replace(LIMIT, epsilon=0.01)
    ledger.allow(less, "too much")
    with pytest.raises(BudgetError, match=r"above its limit of epsilon 0\.01"):
        open_ledger(path, limit=less).spend(spending(2))


def test_delta_counts_from_then_on(path: Path) -> None:
    ledger, other = open_ledger(path), replace(LIMIT, delta=1e-6)
    spent = ledger.epsilon_spent()
    ledger.allow(other, "stricter")
    assert open_ledger(path, limit=other).epsilon_spent() > spent


def test_a_site_whose_file_says_another_limit_than_the_last_is_refused(path: Path) -> None:
    running = open_ledger(path)
    open_ledger(path).allow(MORE, "more")
    for attempt in (lambda: open_ledger(path), lambda: running.spend(spending(2))):
        with pytest.raises(LedgerError, match=r"has a limit of epsilon 5 .* is asked for epsilon 3 "):
            attempt()
    open_ledger(path, limit=MORE).allow(LIMIT, "as before")
    running.spend(spending(2))


@pytest.mark.parametrize("reason", ["", " ", "two\nlines", "\x1b[2J", "x" * 501, "\udcff"])
def test_a_reason_is_printable(path: Path, reason: str) -> None:
    before = path.read_bytes()
    with pytest.raises(ValueError, match="printable"):
        open_ledger(path).allow(MORE, reason)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("limit", "message"),
    [(LIMIT, "already"), (replace(MORE, unit=Unit.SUBJECT), "one record says nothing of one subject")],
)
def test_an_invalid_change_of_the_limit_is_refused(path: Path, limit: Limit, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_ledger(path).allow(limit, "why not")


def both(ledger: Ledger) -> None:
    ledger.record_exposure("run-2", AGREEMENT)
    ledger.allow(MORE, "more")


def changed(line: bytes, **values: object) -> bytes:
    """Return the line changed, with its hash made to fit."""
    entry = json.loads(line)
    after = Anchor(entry.pop("seq") - 1, entry.pop("prev"))
    del entry["hash"], entry["salt"]
    return make_line(after, {**entry, **values})[:-1]


TAMPERINGS: dict[str, tuple[Callable[[list[bytes]], list[bytes]], str]] = {
    "exposure removed": (lambda old: [*old[:2], old[3]], "line 3 .* a line was removed"),
    "limit removed": (lambda old: [*old[:3], old[3].replace(b"5.0", b"9.0")], "line 4 was changed"),
    "moved": (lambda old: [*old[:2], old[3], old[2]], "line 3 .* lines were moved"),
    "another limit": (
        lambda old: [*old[:3], changed(old[3], epsilon=-1.0)],
        "line 4 is not valid .* positive",
    ),
    "a whole number": (lambda old: [*old[:3], changed(old[3], epsilon=5)], "line 4 "),
    "without a reason": (
        lambda old: [*old[:3], changed(old[3], reason="")],
        "line 4 is not valid .* printable",
    ),
    "reason of another kind": (lambda old: [*old[:3], changed(old[3], reason=1)], "line 4 .* reason"),
    "another unit": (lambda old: [*old[:3], changed(old[3], unit="ward")], "line 4 is not valid"),
    "more said": (
        lambda old: [*old[:3], changed(old[3], undo=True)],
        "line 4 .* 'limit'",
    ),
    "of no run": (lambda old: [*old[:2], changed(old[2], run=None)], "line 3 .* run:"),
    "no hash": (lambda old: [*old[:2], changed(old[2], agreement="xy")], "line 3 is not valid"),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_tampering_with_decisions_is_refused_by_name(path: Path, name: str) -> None:
    ledger, (tamper, message) = open_ledger(path), TAMPERINGS[name]
    both(ledger)
    tampered = b"".join(line + b"\n" for line in tamper(path.read_bytes().splitlines()))
    path.write_bytes(tampered)
    for attempt in (lambda: open_ledger(path, limit=MORE), lambda: read_account(path)):
        with pytest.raises(LedgerError, match=message):
            attempt()
    assert path.read_bytes() == tampered


def test_a_line_that_a_crash_cut_off_is_dropped_and_the_limit_before_it_holds(path: Path) -> None:
    open_ledger(path).record_exposure("run-2", AGREEMENT)
    exposed = path.read_bytes()
    open_ledger(path).allow(MORE, "more")
    whole = path.read_bytes()
    for end in (len(exposed) + 1, len(whole) - 2):
        path.write_bytes(whole[:end])
        open_ledger(path).spend(spending(9))
        assert path.read_bytes().startswith(exposed)
        assert read_account(path).limit == LIMIT
    path.write_bytes(whole[:-1])
    open_ledger(path, limit=MORE)
    assert path.read_bytes() == whole


def test_an_older_copy_lacks_a_decision_and_is_behind_its_anchor(path: Path) -> None:
    older, ledger = path.read_bytes(), open_ledger(path)
    ledger.allow(replace(LIMIT, epsilon=1.0), "less")
    path.write_bytes(older)
    with pytest.raises(RolledBackError):
        open_ledger(path).check_anchor(ledger.anchor)
