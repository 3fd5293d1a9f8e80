"""Common behaviour of the project's SQLite files."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from protoseal_files.sqlite import DatabaseOwner, closed_on_error, make_private, transaction


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


def test_a_transaction_is_all_or_nothing(database: sqlite3.Connection) -> None:
    insert(database, "INTO rows VALUES (1)")
    with pytest.raises(KeyboardInterrupt):
        insert(database, "INTO rows VALUES (2)", "killed")
    assert (count(database), database.in_transaction) == (1, False)
    database.close()


def test_a_rollback_by_sqlite_itself_is_not_done_twice(database: sqlite3.Connection) -> None:
    """Its own error would be shown in place of the first."""
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        insert(database, "INTO rows VALUES (1)", "OR ROLLBACK INTO rows VALUES (1)")
    assert count(database) == 0
    database.close()


def test_a_connection_that_gets_no_owner_is_closed(database: sqlite3.Connection) -> None:
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


def test_a_file_is_for_its_owner_and_its_name_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
