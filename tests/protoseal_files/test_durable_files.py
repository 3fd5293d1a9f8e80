"""Durable files and SQLite: a power cut leaves all of what was written, a failed writer leaves the old content."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from protoseal_files.durable_files import append_line, make_folder, sync_together, write
from protoseal_files.sqlite import (
    DatabaseOwner,
    closed_on_error,
    make_private,
    prepare_for_large_values,
    transaction,
)
from tests.support.power_cut import PowerCut

WRITERS: dict[str, Callable[[Path], None]] = {
    "new": lambda path: write(path, b"whole", overwrite=False),
    "replaced": lambda path: write(path, b"whole"),
    "appended": lambda path: append_line(path, b"whole"),
}


def refuse(*_: object) -> None:
    raise OSError(errno.ENOSPC, "no space left on device")


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PowerCut:
    return PowerCut(tmp_path, monkeypatch)


@pytest.mark.parametrize("writer", WRITERS)
def test_write_survives_a_power_cut(disk: PowerCut, tmp_path: Path, writer: str) -> None:
    path = tmp_path / "kept" / "deeper" / "file"
    make_folder(path.parent)
    WRITERS[writer](path)
    assert path.read_bytes().rstrip() == b"whole"
    assert disk.left(path) == path.read_bytes()
    assert not disk.moved_early


def test_power_cut_finds_what_is_not_synced(
    disk: PowerCut, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)
    write(tmp_path / "file", b"whole")
    assert disk.left(tmp_path / "file") is None
    assert disk.moved_early == ["file"]


def test_sync_together_syncs_every_file_and_folder_at_its_end(disk: PowerCut, tmp_path: Path) -> None:
    paths = [tmp_path / "kept" / name / "file" for name in ("first", "second")]
    with sync_together():
        for path in paths:
            make_folder(path.parent)
            write(path, b"whole")
        assert [disk.left(path) for path in paths] == [None, None]
    assert [disk.left(path) for path in paths] == [b"whole", b"whole"]


def test_sync_together_refused_by_the_disk_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="no space"), sync_together():
        write(tmp_path / "file", b"whole")


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_write_refused_by_the_disk_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(OSError, match="no space"):
        write(path, b"new")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def test_write_sets_permissions_and_refuses_an_existing_name(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write(path, b"mine")
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        write(path, b"other", overwrite=False)
    write(path, b"for all", mode=0o644)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"for all", 0o644)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_append_line_cuts_a_torn_line_first(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    append_line(path, b"first")
    with path.open("ab") as file:
        file.write(b"second, to")
    append_line(path, b"third")
    assert path.read_bytes() == b"first\nthird\n"


@pytest.fixture
def database() -> sqlite3.Connection:
    made = sqlite3.connect(":memory:", isolation_level=None)
    made.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY)")
    return made


def count(database: sqlite3.Connection) -> int:
    number: int = database.execute("SELECT count(*) FROM rows").fetchone()[0]
    return number


def insert(database: sqlite3.Connection, *statements: str) -> None:
    with transaction(database):
        for each in statements:
            if each == "killed":
                raise KeyboardInterrupt
            database.execute(f"INSERT {each}")


def test_transaction_is_all_or_nothing(database: sqlite3.Connection) -> None:
    insert(database, "INTO rows VALUES (1)")
    with pytest.raises(KeyboardInterrupt):
        insert(database, "INTO rows VALUES (2)", "killed")
    assert (count(database), database.in_transaction) == (1, False)
    database.close()


def test_transaction_rolled_back_by_sqlite_is_not_rolled_back_twice(database: sqlite3.Connection) -> None:
    """Its own error would be shown in place of the first."""
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        insert(database, "INTO rows VALUES (1)", "OR ROLLBACK INTO rows VALUES (1)")
    assert count(database) == 0
    database.close()


def test_closed_on_error_closes_the_connection(database: sqlite3.Connection) -> None:
    with pytest.raises(ZeroDivisionError), closed_on_error(database):
        raise ZeroDivisionError
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        count(database)


def test_owner_closes_the_connection_at_the_end(database: sqlite3.Connection) -> None:
    owner = DatabaseOwner()
    owner._db = database
    with owner as entered:
        assert entered is owner
        assert count(database) == 0
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        count(database)
    owner.close()


def test_make_private_is_for_its_owner_and_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino))
    path = tmp_path / "state.sqlite"
    path.write_bytes(b"kept")
    path.chmod(0o644)
    for each in (path, tmp_path / "new.sqlite"):
        make_private(each)
        assert each.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes() == b"kept"
    assert synced == [tmp_path.stat().st_ino] * 2


@pytest.mark.parametrize("page_bytes", [4096, 32768])
def test_log_is_emptied_at_four_megabytes_whatever_the_files_pages(tmp_path: Path, page_bytes: int) -> None:
    with sqlite3.connect(tmp_path / "journal.sqlite") as earlier:
        earlier.execute(f"PRAGMA page_size={page_bytes}")
        earlier.execute("CREATE TABLE rows (value)")
    earlier.close()
    database = sqlite3.connect(tmp_path / "journal.sqlite")
    prepare_for_large_values(database)
    (pages,) = database.execute("PRAGMA wal_autocheckpoint").fetchone()
    database.close()
    assert pages * page_bytes == 4 * 1024 * 1024
