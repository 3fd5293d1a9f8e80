"""A line's hash, which coordinator and peers see, gives no way to search for the line's content."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import product
from pathlib import Path

import pytest

from privacy.ledger.budget_account import read_account
from privacy.ledger.hash_chain import Anchor
from privacy.ledger.lines import Allowance, Entry, Exposure, Loss, line_to_json
from tests.support.budgets import LIMIT, open_ledger, spending
from tests.support.ledger_search import canonical, is_line

MORE = replace(LIMIT, epsilon=5.0)
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


def test_the_hash_of_a_changed_limit_does_not_give_the_limit(tmp_path: Path, old: Path) -> None:
    """The double is a ledger whose lines have no salt: the same search finds the limit there."""
    ledger = open_ledger(tmp_path / "new.ledger")
    ledger.allow(MORE, "the board agreed")
    assert limits_read(tmp_path / "new.ledger", 1) == []
    assert limits_read(old, 3) == [5.0]


def test_every_kind_of_line_has_a_salt_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "new.ledger"
    open_ledger(path).spend(spending(1))
    open_ledger(path).record_exposure("run-0", bytes(32))
    open_ledger(path).allow(MORE, "the board agreed")
    open_ledger(path, limit=MORE).record_loss(9)
    salts = [bytes.fromhex(str(line["salt"])) for line in lines(path)]
    assert [len(salt) for salt in salts] == [16] * 5
    assert len(set(salts)) == 5


def test_a_ledger_from_before_the_salts_is_verified_and_continued_byte_for_byte(old: Path) -> None:
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


def test_an_old_ledger_whose_first_line_has_no_salt_either_is_opened(tmp_path: Path, old: Path) -> None:
    first = {name: value for name, value in lines(old)[0].items() if name not in {"salt", "hash"}}
    first["hash"] = hashlib.sha256(canonical(first)).hexdigest()
    path = tmp_path / "older.ledger"
    path.write_bytes(canonical(first) + b"\n")
    open_ledger(path).spend(spending(1))
    assert len(read_account(path).entries) == 1


def test_old_ledger_with_every_kind_of_line_is_written_again_byte_for_byte(tmp_path: Path) -> None:
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
