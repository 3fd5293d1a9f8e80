"""Links and permissions in a state folder: what somebody who can write there would have a process write elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from crypto.keys import StorageKey
from protoseal_files import durable_files
from secure_client.protocol.journal import Journal
from secure_server.storage.store import Store


def open_journal(folder: Path) -> None:
    storage = StorageKey(bytes(32))
    Journal(folder / "journal.sqlite", run="run", agreement_hash=bytes(32), site="a", storage=storage).close()


def open_store(folder: Path) -> None:
    Store.open(folder / "coordinator.sqlite", "run", bytes(32)).close()


def log_round(folder: Path) -> None:
    durable_files.append_line(folder / "rounds.jsonl", b"{}")


LINKED: Mapping[str, Callable[[Path], None]] = {
    "journal.sqlite": open_journal,
    "journal.sqlite-wal": open_journal,
    "journal.sqlite-shm": open_journal,
    "coordinator.sqlite": open_store,
    "coordinator.sqlite-wal": open_store,
    "coordinator.sqlite.lock": open_store,
    "rounds.jsonl": log_round,
}
"""Names of files in a state folder, and what opens them."""


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.touch(0o644)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.mkdir(0o700)
    return path


@pytest.mark.parametrize("name", LINKED)
def test_a_file_that_was_replaced_by_a_link_is_refused_and_the_linked_file_is_as_before(
    folder: Path, victim: Path, name: str
) -> None:
    (folder / name).symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link") as refused:
        LINKED[name](folder)
    assert refused.value.filename == str(folder / name)
    assert (victim.read_bytes(), victim.stat().st_mode & 0o777) == (b"", 0o644)


@pytest.mark.parametrize("name", ["journal.sqlite", "coordinator.sqlite", "rounds.jsonl"])
def test_without_the_check_the_linked_file_is_written(
    folder: Path, victim: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_files, "refuse_link", lambda path: None)
    monkeypatch.setattr(os, "O_NOFOLLOW", 0)
    (folder / name).symlink_to(victim)
    LINKED[name](folder)
    assert victim.read_bytes()


@pytest.mark.parametrize("opened", [open_journal, open_store])
@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_a_folder_that_others_may_write_to_is_refused(
    folder: Path, opened: Callable[[Path], None], mode: int
) -> None:
    folder.chmod(mode)
    with pytest.raises(PermissionError, match="chmod go-w") as refused:
        opened(folder)
    assert refused.value.filename == str(folder)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("opened", [open_journal, open_store])
def test_the_folder_itself_may_be_a_link(
    tmp_path: Path, folder: Path, opened: Callable[[Path], None]
) -> None:
    """Its path is in the operator's own file, like that of the ledger."""
    (tmp_path / "link").symlink_to(folder)
    opened(tmp_path / "link")
    assert list(folder.iterdir())


def test_a_pipe_in_place_of_a_file_is_refused(folder: Path) -> None:
    os.mkfifo(folder / "rounds.jsonl")
    with pytest.raises(OSError, match="not a regular file"):
        log_round(folder)
