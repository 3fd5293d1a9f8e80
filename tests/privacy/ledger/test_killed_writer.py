"""A site that is killed, or whose power is cut, between any two steps: the ledger never shows less than what left."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from privacy.errors import LedgerError
from privacy.ledger.budget_account import read_account
from privacy.ledger.lines import ReleaseName
from tests.support.budgets import LIMIT, open_ledger, spending
from tests.support.marks import full_but
from tests.support.spending_process import Settings, exposed_in, limit_after


def deaths(
    folder: Path, double: str = "", *, begun: bool = False, line: str = "spending"
) -> Iterator[tuple[Settings, str]]:
    """Yield the ledgers of processes that died before their first step, before their second, and so on, until one
    survives.

    With ``begun`` it finds a ledger with an entry, and a second one of which a crash left the half.
    """
    for point in range(1, 100):
        place = folder / str(point)
        place.mkdir()
        settings = Settings(str(place), point=point, double=double, line=line)
        if begun:
            open_ledger(settings.ledger).spend(spending(1, "run-0"))
            whole = settings.ledger.read_bytes()
            settings.ledger.write_bytes(whole + whole.splitlines()[1][:100])
        process = settings.start()
        code = process.exit_code()
        if code == 0:
            return
        assert code == -signal.SIGKILL, process.log()
        yield settings, json.loads(settings.death.read_text(encoding="utf-8"))["where"]
    raise AssertionError("it never came to its end")


def check_nothing_hidden(settings: Settings) -> None:
    """Check that the ledger shows all that left, and that it can be used further."""
    sent = settings.sent.read_text(encoding="utf-8").split() if settings.sent.exists() else []
    ledger = open_ledger(settings.ledger)
    assert all(ledger.has_paid_for(ReleaseName(settings.run, int(number), "prototypes")) for number in sent)
    assert (
        0 <= len(ledger.history) - len(sent) <= 1 + ledger.has_paid_for(ReleaseName("run-0", 1, "prototypes"))
    )
    before = ledger.epsilon_spent()
    ledger.spend(spending(9, "run-2"))
    assert open_ledger(settings.ledger).epsilon_spent() > before


def after_power_cut(settings: Settings) -> Settings:
    """Return a copy of what is sure to be on the disk, with all that left."""
    left = json.loads(settings.death.read_text(encoding="utf-8"))["left"]
    copy = replace(settings, folder=settings.folder + "-cut")
    Path(copy.folder).mkdir()
    if settings.sent.exists():
        shutil.copy(settings.sent, copy.sent)
    if left is not None:
        copy.ledger.write_bytes(settings.ledger.read_bytes()[:left])
    return copy


@pytest.mark.parametrize("begun", [False, True])
def test_a_kill_at_any_step_hides_no_payment(tmp_path: Path, begun: bool) -> None:
    where = []
    for settings, step in deaths(tmp_path, begun=begun):
        cut = after_power_cut(settings)
        check_nothing_hidden(settings)
        check_nothing_hidden(cut)
        where.append(step)
    each = ["before write", "during write", "before fsync", "before send", "before what follows"]
    in_order = iter(where)
    assert all(step in in_order for step in 2 * each), where
    assert ("before ftruncate" in where) == begun


def check_decision_shown(settings: Settings) -> None:
    """Check that the ledger shows all acknowledged lines and at most one more, and works on under the limit that it
    shows.
    """
    sent = settings.sent.read_text(encoding="utf-8").split() if settings.sent.exists() else []
    begun = settings.ledger.exists() and b"\n" in settings.ledger.read_bytes()
    limit = read_account(settings.ledger).limit if begun else LIMIT
    ledger = open_ledger(settings.ledger, limit=limit)
    shown = read_account(settings.ledger)
    exposed, allowed = [each.run for each in shown.exposures], [each.limit for each in shown.allowances]
    assert set(map(exposed_in, map(int, sent))) <= set(exposed) or settings.line != "exact"
    assert set(map(limit_after, map(int, sent))) <= set(allowed) or settings.line != "limit"
    assert 0 <= len(shown.lines) - len(sent) <= 1
    assert shown.guaranteed is not bool(exposed)
    before = ledger.epsilon_spent()
    ledger.spend(spending(9, "run-2"))
    assert open_ledger(settings.ledger, limit=limit).epsilon_spent() > before


@pytest.mark.parametrize("line", full_but(["exact", "limit"], "exact"))
def test_a_kill_at_any_step_hides_no_acknowledged_decision(tmp_path: Path, line: str) -> None:
    where = []
    for settings, step in deaths(tmp_path, line=line):
        cut = after_power_cut(settings)
        check_decision_shown(settings)
        check_decision_shown(cut)
        where.append(step)
    each = ["before write", "during write", "before fsync", "before send", "before what follows"]
    in_order = iter(where)
    assert all(step in in_order for step in 2 * each), where


@pytest.mark.parametrize("line", full_but(["exact", "limit"], "exact"))
def test_a_decision_that_is_not_synced_is_caught(tmp_path: Path, line: str) -> None:
    with pytest.raises(AssertionError, match="set"):
        check_decisions(tmp_path, line)


def check_decisions(folder: Path, line: str) -> None:
    for settings, _ in deaths(folder, "not synced", line=line):
        check_decision_shown(after_power_cut(settings))


def check_all(folder: Path, double: str, *, power: bool) -> None:
    for settings, _ in deaths(folder, double):
        check_nothing_hidden(after_power_cut(settings) if power else settings)


@pytest.mark.parametrize(("double", "power"), [("sent first", False), ("not synced", True)])
def test_a_site_that_sends_too_early_is_caught(tmp_path: Path, double: str, power: bool) -> None:
    """Before it spends, and before what it wrote is on the disk."""
    with pytest.raises(AssertionError, match="all"):
        check_all(tmp_path, double, power=power)


def run_two(folder: Path, **others: object) -> tuple[list[Settings], list[str]]:
    both = [replace(Settings(str(folder), run=run), **others) for run in ("run-1", "run-2")]  # type: ignore[arg-type]
    open_ledger(both[0].ledger)
    processes = [each.start() for each in both]
    for process in processes:
        process.exit_code()
    return both, [process.log() for process in processes]


def sent_by(both: list[Settings]) -> list[ReleaseName]:
    return [
        ReleaseName(each.run, int(number), "prototypes")
        for each in both
        if each.sent.exists()
        for number in each.sent.read_text(encoding="utf-8").split()
    ]


def test_two_processes_at_once_lose_nothing_and_spend_no_more_than_there_is(tmp_path: Path) -> None:
    both, errors = run_two(tmp_path, releases=1000)
    assert errors == ["", ""]
    sent, ledger = sent_by(both), open_ledger(both[0].ledger)
    one_alone = tmp_path / "alone"
    one_alone.mkdir()
    possible = open_ledger(one_alone / "heart.ledger").remaining(spending(1).event)
    assert len(sent) == len(set(sent)) == len(ledger.history) == possible
    assert all(ledger.has_paid_for(each) for each in sent)


@pytest.mark.parametrize("double", ["", "not locked"])
def test_only_one_of_two_gets_the_last_release(tmp_path: Path, double: str) -> None:
    """Both are where nothing is written yet, unless the lock keeps one of them out."""
    meet = tmp_path / "meet"
    meet.mkdir()
    both, errors = run_two(tmp_path, releases=1, noise=1.4, meet=str(meet), double=double)
    if double:
        with pytest.raises(LedgerError, match="a line was repeated"):
            open_ledger(both[0].ledger)
        return
    assert errors == ["", ""]
    assert len(sent_by(both)) == len(open_ledger(both[0].ledger).history) == 1
