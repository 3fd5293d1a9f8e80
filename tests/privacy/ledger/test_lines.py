"""Lines of a ledger: decisions that spend nothing, and hashes by which nobody can search for a line's content."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import product
from pathlib import Path

import pytest

from privacy.accounting.events import Unit
from privacy.errors import BudgetError, LedgerError, RolledBackError
from privacy.ledger.budget_account import read_account
from privacy.ledger.hash_chain import Anchor, make_line
from privacy.ledger.ledger import Ledger
from privacy.ledger.lines import GUARANTEE, Allowance, Entry, Exposure, Limit, Loss, Spending, line_to_json
from tests.support.ledgers import LIMIT, canonical, count_possible, is_line, open_ledger, spending

MORE = replace(LIMIT, epsilon=5.0)
AGREEMENT = bytes(range(32))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    open_ledger(tmp_path / "heart.ledger").spend(of_records(1))
    return tmp_path / "heart.ledger"


def of_records(number: int) -> Spending:
    """Return spending with a guarantee for records."""
    return replace(spending(number), facts={GUARANTEE: Unit.RECORD.value})


def test_exposure_ends_the_guarantee(path: Path) -> None:
    ledger = open_ledger(path)
    assert ledger.is_guaranteed()
    assert ledger.record_exposure("run-2", AGREEMENT)
    assert not ledger.is_guaranteed()
    ledger.spend(of_records(2))
    again = read_account(path)
    assert not again.guaranteed
    assert [(each.run, each.agreement_hash) for each in again.exposures] == [("run-2", AGREEMENT)]
    assert [each.spending for each in again.entries] == [of_records(1), of_records(2)]


def test_exposure_is_recorded_once_for_each_run_and_agreement(path: Path) -> None:
    said = [open_ledger(path).record_exposure(run, AGREEMENT) for run in ("run-2", "run-2", "run-3")]
    assert said == [True, False, True]
    assert open_ledger(path).record_exposure("run-2", bytes(32))
    assert len(read_account(path).exposures) == 3


def test_exposure_without_budget_left_costs_no_epsilon(tmp_path: Path) -> None:
    poor = Limit(0.1, 1e-5)
    ledger = open_ledger(tmp_path / "poor.ledger", limit=poor)
    with pytest.raises(BudgetError):
        ledger.spend(spending(1))
    ledger.record_exposure("run-1", AGREEMENT)
    assert ledger.epsilon_spent() == 0.0


def test_allowance_raises_the_limit_and_keeps_what_is_spent(path: Path) -> None:
    ledger = open_ledger(path)
    spent = ledger.epsilon_spent()
    assert count_possible(ledger, spending(1).event) < 40
    assert ledger.allow(MORE, "the ethics board, 3 March") == ledger.anchor
    assert count_possible(ledger, spending(1).event) >= 40
    again = open_ledger(path, limit=MORE)
    assert again.epsilon_spent() == spent
    account = read_account(path)
    assert (account.limit, account.budget.limit) == (MORE, LIMIT)
    assert [each.reason for each in account.allowances] == ["the ethics board, 3 March"]


def test_allowance_below_what_is_spent_refuses_releases(path: Path) -> None:
    ledger, less = open_ledger(path), replace(LIMIT, epsilon=0.01)
    ledger.allow(less, "too much")
    with pytest.raises(BudgetError):
        open_ledger(path, limit=less).spend(spending(2))


def test_allowance_of_delta_counts_from_then_on(path: Path) -> None:
    ledger, other = open_ledger(path), replace(LIMIT, delta=1e-6)
    spent = ledger.epsilon_spent()
    ledger.allow(other, "stricter")
    assert open_ledger(path, limit=other).epsilon_spent() > spent


def test_open_with_another_limit_than_the_last_is_refused(path: Path) -> None:
    running = open_ledger(path)
    open_ledger(path).allow(MORE, "more")
    for attempt in (lambda: open_ledger(path), lambda: running.spend(spending(2))):
        with pytest.raises(LedgerError, match=r"epsilon 5 .*epsilon 3 "):
            attempt()
    open_ledger(path, limit=MORE).allow(LIMIT, "as before")
    running.spend(spending(2))


@pytest.mark.parametrize("reason", ["", " ", "two\nlines", "\x1b[2J", "x" * 501, "\udcff"])
def test_allowance_unprintable_reason_is_refused(path: Path, reason: str) -> None:
    before = path.read_bytes()
    with pytest.raises(ValueError, match="printable"):
        open_ledger(path).allow(MORE, reason)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("limit", "message"),
    [(LIMIT, "limit"), (replace(MORE, unit=Unit.SUBJECT), "record.* subject")],
)
def test_allowance_same_limit_or_other_unit_is_refused(path: Path, limit: Limit, message: str) -> None:
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
    "exposure removed": (lambda old: [*old[:2], old[3]], "line 3 .*removed"),
    "limit removed": (lambda old: [*old[:3], old[3].replace(b"5.0", b"9.0")], "line 4 .*changed"),
    "moved": (lambda old: [*old[:2], old[3], old[2]], "line 3 .*moved"),
    "another limit": (
        lambda old: [*old[:3], changed(old[3], epsilon=-1.0)],
        "line 4 .*epsilon",
    ),
    "a whole number": (lambda old: [*old[:3], changed(old[3], epsilon=5)], "line 4 .*limit"),
    "without a reason": (
        lambda old: [*old[:3], changed(old[3], reason="")],
        "line 4 .*reason",
    ),
    "reason of another kind": (lambda old: [*old[:3], changed(old[3], reason=1)], "line 4 .* reason"),
    "another unit": (lambda old: [*old[:3], changed(old[3], unit="ward")], "line 4 .*unit"),
    "more said": (
        lambda old: [*old[:3], changed(old[3], undo=True)],
        "line 4 .* 'limit'",
    ),
    "of no run": (lambda old: [*old[:2], changed(old[2], run=None)], "line 3 .* run:"),
    "no hash": (lambda old: [*old[:2], changed(old[2], agreement="xy")], "line 3 .*agreement"),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_read_account_tampered_decision_is_refused(path: Path, name: str) -> None:
    ledger, (tamper, message) = open_ledger(path), TAMPERINGS[name]
    both(ledger)
    tampered = b"".join(line + b"\n" for line in tamper(path.read_bytes().splitlines()))
    path.write_bytes(tampered)
    for attempt in (lambda: open_ledger(path, limit=MORE), lambda: read_account(path)):
        with pytest.raises(LedgerError, match=message):
            attempt()
    assert path.read_bytes() == tampered


def test_torn_decision_is_dropped_and_the_earlier_limit_holds(path: Path) -> None:
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


def test_older_copy_without_a_decision_is_behind_its_anchor(path: Path) -> None:
    older, ledger = path.read_bytes(), open_ledger(path)
    ledger.allow(replace(LIMIT, epsilon=1.0), "less")
    path.write_bytes(older)
    with pytest.raises(RolledBackError):
        open_ledger(path).check_anchor(ledger.anchor)


BEFORE_SALTS = Path(__file__).parents[2] / "vectors" / "ledger_before_salts.jsonl"
"""Ledger of an earlier version with a line of every kind; its first line alone has a salt."""

EVERY_LINE = BEFORE_SALTS.with_name("ledger_every_line.jsonl")
"""Ledger from before pydantic read the lines: every kind of line, of event and of fact, and both accountants."""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copy(BEFORE_SALTS, tmp_path / "old.ledger"))


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def anchors(path: Path) -> list[Anchor]:
    return [Anchor(seq, str(line["hash"])) for seq, line in enumerate(lines(path))]


def allowances(near: str) -> Iterator[Mapping[str, object]]:
    """Yield what a peer would try: likely limits and reasons, at the seconds around one time."""
    time = datetime.fromisoformat(near)
    for epsilon, reason, second in product(
        (4.0, 4.5, 5.0, 8.0), ("approved", "the board agreed"), range(-30, 3)
    ):
        at = f"{time + timedelta(seconds=second):%Y-%m-%dT%H:%M:%SZ}"
        yield line_to_json(Allowance(replace(LIMIT, epsilon=epsilon), reason, at))


def limits_read(path: Path, seq: int) -> list[object]:
    """Return the limits that the anchors before and after a line let a peer find."""
    before, after = anchors(path)[seq - 1 : seq + 1]
    tried = allowances(str(lines(path)[seq]["time"]))
    return [content["epsilon"] for content in tried if is_line(content, before, after)]


def test_hash_of_a_changed_limit_does_not_give_the_limit(tmp_path: Path, old: Path) -> None:
    """The double is a ledger whose lines have no salt: the same search finds the limit there."""
    ledger = open_ledger(tmp_path / "new.ledger")
    ledger.allow(MORE, "the board agreed")
    assert limits_read(tmp_path / "new.ledger", 1) == []
    assert limits_read(old, 3) == [5.0]


def test_every_line_has_a_salt_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "new.ledger"
    open_ledger(path).spend(spending(1))
    open_ledger(path).record_exposure("run-0", bytes(32))
    open_ledger(path).allow(MORE, "the board agreed")
    open_ledger(path, limit=MORE).record_loss(9)
    salts = [bytes.fromhex(str(line["salt"])) for line in lines(path)]
    assert [len(salt) for salt in salts] == [16] * 5
    assert len(set(salts)) == 5


def test_ledger_before_salts_verifies_and_continues_byte_for_byte(old: Path) -> None:
    before, kept = old.read_bytes(), anchors(old)
    ledger = open_ledger(old, limit=MORE)
    for anchor in kept:
        read_account(old).check_anchor(anchor)
        ledger.check_anchor(anchor)
    assert old.read_bytes() == before
    ledger.spend(spending(3))
    assert old.read_bytes().startswith(before)
    assert ["salt" in line for line in lines(old)] == [True, *[False] * 5, True]
    account = read_account(old)
    assert [each.spending for each in account.entries] == [spending(1), spending(2), spending(3)]
    assert [len(account.exposures), len(account.losses), account.limit] == [1, 1, MORE]


def test_ledger_before_salts_without_a_salted_first_line_opens(tmp_path: Path, old: Path) -> None:
    first = {name: value for name, value in lines(old)[0].items() if name not in {"salt", "hash"}}
    first["hash"] = hashlib.sha256(canonical(first)).hexdigest()
    path = tmp_path / "older.ledger"
    path.write_bytes(canonical(first) + b"\n")
    open_ledger(path).spend(spending(1))
    assert len(read_account(path).entries) == 1


def test_ledger_of_an_earlier_version_verifies_byte_for_byte(tmp_path: Path) -> None:
    path = Path(shutil.copy(EVERY_LINE, tmp_path / "every.ledger"))
    account = read_account(path)
    assert [type(line) for line in account.lines] == [
        Entry,
        Entry,
        Exposure,
        Exposure,
        Loss,
        Allowance,
        Entry,
    ]
    for anchor, line, content in zip(
        anchors(path), (account.budget, *account.lines), lines(path), strict=True
    ):
        account.check_anchor(anchor)
        chaining = {name: content[name] for name in ("seq", "prev", "salt", "hash")}
        assert canonical({**line_to_json(line), **chaining}) == canonical(content)
    before = path.read_bytes()
    open_ledger(path, account.budget.dataset, account.limit).record_loss(20)
    assert path.read_bytes().startswith(before)
