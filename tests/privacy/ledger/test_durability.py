"""Durability of a ledger: on a failing disk, and at a site that is killed or loses its power between any two steps."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import privacy.ledger.ledger as ledger_module
from privacy.errors import LedgerError
from privacy.ledger.budget_account import read_account
from privacy.ledger.lines import ReleaseName
from protoseal_files import append_only_file
from tests.support.killed_spending import Settings, exposed_in, limit_after
from tests.support.ledgers import LIMIT, count_possible, has_paid_for, open_ledger, spending
from tests.support.marks import full_but


class FailingDisk:
    """``os`` in which the named calls fail as often as is said, and are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, **times: int) -> None:
        self._number = number
        self.left = times
        self.calls = list[str]()
        wrapped = {name: self._wrapped(getattr(os, name)) for name in ("write", "fsync", "ftruncate")}
        monkeypatch.setattr(append_only_file, "os", SimpleNamespace(**{**vars(os), **wrapped}))

    def _wrapped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any) -> Any:
            name = call.__name__
            self.calls.append(name)
            if self.left.get(name, 0):
                self.left[name] -= 1
                raise OSError(self._number, os.strerror(self._number))
            return call(*args)

        return wrapped


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """Limit file sizes, so that the system ends a write as on a full disk. (Python ignores SIGXFSZ.)"""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    open_ledger(tmp_path / "heart.ledger").spend(spending(1))
    return tmp_path / "heart.ledger"


@pytest.mark.parametrize("room", [0, 1, 100])
def test_spend_write_or_sync_fails_spends_nothing(path: Path, room: int) -> None:
    ledger, before = open_ledger(path), path.read_bytes()
    with no_file_above(len(before) + room), pytest.raises(LedgerError):
        ledger.spend(spending(2))
    assert path.read_bytes() == before
    ledger.spend(spending(2))
    assert len(open_ledger(path).history) == 2


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_spend_failed_write_raises_and_takes_the_line_back(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    ledger, before = open_ledger(path), path.read_bytes()
    head = ledger.anchor
    disk = FailingDisk(monkeypatch, number)
    has_paid_for(ledger, spending(2).release)
    assert disk.calls == ["fsync"]  # of what others may have written
    disk.left = {"write": 1} if call == "write" else {}
    with pytest.raises(LedgerError), _second_sync_fails(disk, call == "fsync"):
        ledger.spend(spending(2))
    assert ledger.anchor == head
    assert path.read_bytes() == before


@contextmanager
def _second_sync_fails(disk: FailingDisk, wanted: bool, times: int = 1) -> Iterator[None]:
    """Fail all syncs but the first, which is that of earlier writers."""
    if wanted:
        append = append_only_file.append

        def failing(file: int, content: bytes) -> None:
            disk.left["fsync"] = times
            append(file, content)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(append_only_file, "append", failing)
            yield
    else:
        yield


def test_spend_failed_sync_writes_the_line_anew(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second wait alone would succeed and mean nothing: the system has dropped what it could not write."""
    ledger = open_ledger(path)
    disk = FailingDisk(monkeypatch, errno.EIO)
    with pytest.raises(LedgerError), _second_sync_fails(disk, True):
        ledger.spend(spending(2))
    disk.calls.clear()
    ledger.spend(spending(2))
    assert disk.calls == ["fsync", "write", "fsync"]


@pytest.mark.parametrize("call", ["ftruncate", "fsync"])
def test_spend_line_that_cannot_be_cut_stops_the_ledger(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A line that cannot be removed counts as spent, unless it was removed and only the sync of the removal failed."""
    ledger = open_ledger(path)
    disk = FailingDisk(monkeypatch, errno.EIO, ftruncate=call == "ftruncate")
    with pytest.raises(LedgerError), _second_sync_fails(disk, True, 1 + (call == "fsync")):
        ledger.spend(spending(2))
    disk.calls.clear()
    for attempt in (lambda: ledger.spend(spending(3)), lambda: has_paid_for(ledger, spending(2).release)):
        with pytest.raises(LedgerError):
            attempt()
    assert disk.calls == []
    assert has_paid_for(open_ledger(path), spending(2).release) == (call == "ftruncate")


def test_open_syncs_lines_of_other_processes_before_they_count(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = open_ledger(path)
    open_ledger(path).spend(spending(2))
    disk = FailingDisk(monkeypatch, errno.EIO, fsync=1)
    for _ in range(2):
        with pytest.raises(LedgerError):
            ledger.spend(spending(3))
    assert "write" not in disk.calls


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_open_failed_creation_leaves_no_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    FailingDisk(monkeypatch, errno.ENOSPC, **{call: 1})
    with pytest.raises(LedgerError):
        open_ledger(tmp_path / "heart.ledger")
    assert open_ledger(tmp_path / "heart.ledger").history == ()


def test_open_unusable_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LedgerError):
        open_ledger(tmp_path / "unmounted" / "heart.ledger")
    assert not (tmp_path / "unmounted").exists()
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path, tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(LedgerError):
            open_ledger(place)


@pytest.mark.parametrize("content", [b"secret", b"line\n", b'{"dataset":"heart-2024","seq"', b"\0" * 600])
def test_open_other_file_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(content)
    path.chmod(0o644)
    with pytest.raises(LedgerError):
        open_ledger(path)
    assert path.read_bytes() == content
    assert path.stat().st_mode & 0o777 == 0o644


def test_open_linked_ledger_syncs_the_folder_of_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    (tmp_path / "here" / "heart.ledger").symlink_to(tmp_path / "there" / "heart.ledger")
    synced: list[Path] = []
    monkeypatch.setattr(ledger_module, "sync_folder", synced.append)
    open_ledger(tmp_path / "here" / "heart.ledger")
    assert synced == [tmp_path.resolve() / "there"]


def test_lock_long_wait_is_logged(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log is the only sign of a process that is stopped while it has the lock."""
    monkeypatch.setattr(append_only_file, "PATIENCE", 0.0)
    ledger = open_ledger(path)
    with ThreadPoolExecutor(1) as pool, append_only_file.lock_file(path) as _:
        spent = pool.submit(ledger.spend, spending(2))
        while "which another process holds" not in caplog.text:
            assert not spent.done()
            time.sleep(0.01)
    assert len(open_ledger(path).history) == 2


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
    assert all(has_paid_for(ledger, ReleaseName(settings.run, int(number), "prototypes")) for number in sent)
    assert (
        0
        <= len(ledger.history) - len(sent)
        <= 1 + has_paid_for(ledger, ReleaseName("run-0", 1, "prototypes"))
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
def test_spend_killed_at_any_step_hides_no_payment(tmp_path: Path, begun: bool) -> None:
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
def test_decision_killed_at_any_step_hides_no_acknowledged_line(tmp_path: Path, line: str) -> None:
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
def test_decision_not_synced_is_caught(tmp_path: Path, line: str) -> None:
    with pytest.raises(AssertionError, match="set"):
        check_decisions(tmp_path, line)


def check_decisions(folder: Path, line: str) -> None:
    for settings, _ in deaths(folder, "not synced", line=line):
        check_decision_shown(after_power_cut(settings))


def check_all(folder: Path, double: str, *, power: bool) -> None:
    for settings, _ in deaths(folder, double):
        check_nothing_hidden(after_power_cut(settings) if power else settings)


@pytest.mark.parametrize(("double", "power"), [("sent first", False), ("not synced", True)])
def test_spend_after_sending_or_unsynced_is_caught(tmp_path: Path, double: str, power: bool) -> None:
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


def test_two_processes_spend_no_more_than_the_budget(tmp_path: Path) -> None:
    both, errors = run_two(tmp_path, releases=1000)
    assert errors == ["", ""]
    sent, ledger = sent_by(both), open_ledger(both[0].ledger)
    one_alone = tmp_path / "alone"
    one_alone.mkdir()
    possible = count_possible(open_ledger(one_alone / "heart.ledger"), spending(1).event)
    assert len(sent) == len(set(sent)) == len(ledger.history) == possible
    assert all(has_paid_for(ledger, each) for each in sent)


@pytest.mark.parametrize("double", ["", "not locked"])
def test_two_processes_at_the_last_release_one_gets_it(tmp_path: Path, double: str) -> None:
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
