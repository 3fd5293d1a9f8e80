"""A disk that is full or fails: nothing is spent, and what may be lost is not taken for written."""

from __future__ import annotations

import errno
import os
import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import privacy.ledger.ledger as ledger_module
from privacy.errors import LedgerError
from protoseal_files import append_only_file
from tests.support.budgets import open_ledger, spending


class FailingDisk:
    """``os`` in which the named calls fail as often as is said, and are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, **times: int) -> None:
        self._number, self.left, self.calls = number, times, list[str]()
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
def test_where_the_line_does_not_fit_nothing_is_spent(path: Path, room: int) -> None:
    ledger, before = open_ledger(path), path.read_bytes()
    with no_file_above(len(before) + room), pytest.raises(LedgerError, match="nothing may be sent"):
        ledger.spend(spending(2))
    assert path.read_bytes() == before
    ledger.spend(spending(2))
    assert len(open_ledger(path).history) == 2


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_failure_is_told_and_the_line_is_taken_back(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    ledger, before = open_ledger(path), path.read_bytes()
    head = ledger.anchor
    disk = FailingDisk(monkeypatch, number)
    ledger.has_paid_for(spending(2).release)
    assert disk.calls == ["fsync"]  # of what others may have written
    disk.left = {"write": 1} if call == "write" else {}
    with pytest.raises(LedgerError, match="nothing may be sent"), _second_sync_fails(disk, call == "fsync"):
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


def test_after_a_failed_wait_the_line_is_written_anew(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second wait alone would succeed and mean nothing: the system has dropped what it could not write."""
    ledger = open_ledger(path)
    disk = FailingDisk(monkeypatch, errno.EIO)
    with pytest.raises(LedgerError), _second_sync_fails(disk, True):
        ledger.spend(spending(2))
    disk.calls.clear()
    ledger.spend(spending(2))
    assert disk.calls == ["fsync", "write", "fsync"]


@pytest.mark.parametrize("call", ["ftruncate", "fsync"])
def test_a_line_that_cannot_be_removed_stops_the_ledger(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A line that cannot be removed counts as spent, unless it was removed and only the sync of the removal failed."""
    ledger = open_ledger(path)
    disk = FailingDisk(monkeypatch, errno.EIO, ftruncate=call == "ftruncate")
    with pytest.raises(LedgerError), _second_sync_fails(disk, True, 1 + (call == "fsync")):
        ledger.spend(spending(2))
    disk.calls.clear()
    for attempt in (lambda: ledger.spend(spending(3)), lambda: ledger.has_paid_for(spending(2).release)):
        with pytest.raises(LedgerError, match="neither made durable"):
            attempt()
    assert disk.calls == []
    assert open_ledger(path).has_paid_for(spending(2).release) == (call == "ftruncate")


def test_lines_of_other_processes_are_synced_before_they_count(
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
def test_a_failed_creation_leaves_no_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    FailingDisk(monkeypatch, errno.ENOSPC, **{call: 1})
    with pytest.raises(LedgerError):
        open_ledger(tmp_path / "heart.ledger")
    assert open_ledger(tmp_path / "heart.ledger").history == ()


def test_an_unusable_ledger_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="folder is not there"):
        open_ledger(tmp_path / "unmounted" / "heart.ledger")
    assert not (tmp_path / "unmounted").exists()
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path, tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(LedgerError):
            open_ledger(place)


@pytest.mark.parametrize("content", [b"secret", b"line\n", b'{"dataset":"heart-2024","seq"', b"\0" * 600])
def test_a_file_that_is_no_ledger_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(content)
    path.chmod(0o644)
    with pytest.raises(LedgerError):
        open_ledger(path)
    assert path.read_bytes() == content
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_linked_ledger_syncs_the_folder_of_the_linked_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    (tmp_path / "here" / "heart.ledger").symlink_to(tmp_path / "there" / "heart.ledger")
    synced: list[Path] = []
    monkeypatch.setattr(ledger_module, "sync_folder", synced.append)
    open_ledger(tmp_path / "here" / "heart.ledger")
    assert synced == [tmp_path.resolve() / "there"]


def test_waiting_for_the_lock_is_logged(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log is the only sign of a process that is stopped while it has the lock."""
    monkeypatch.setattr(append_only_file, "PATIENCE", 0.0)
    ledger = open_ledger(path)
    with ThreadPoolExecutor(1) as pool, append_only_file.locked(path) as _:
        spent = pool.submit(ledger.spend, spending(2))
        while "which another process holds" not in caplog.text:
            assert not spent.done()
            time.sleep(0.01)
    assert len(open_ledger(path).history) == 2
