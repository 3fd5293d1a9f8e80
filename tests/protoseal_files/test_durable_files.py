"""Durable files: a power cut leaves all of what was written, a failed writer leaves the old file alone."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from protoseal_files.durable_files import append_line, make_folder, write
from tests.support.power_cut import PowerCut

WRITERS: dict[str, Callable[[Path], None]] = {
    "new": lambda path: write(path, b"whole", overwrite=False),
    "replaced": lambda path: write(path, b"whole"),
    "appended": lambda path: append_line(path, b"whole"),
}


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PowerCut:
    return PowerCut(tmp_path, monkeypatch)


@pytest.mark.parametrize("writer", WRITERS)
def test_a_power_cut_afterwards_leaves_all_of_it(disk: PowerCut, tmp_path: Path, writer: str) -> None:
    path = tmp_path / "kept" / "deeper" / "file"
    make_folder(path.parent)
    WRITERS[writer](path)
    assert path.read_bytes().rstrip() == b"whole"
    assert disk.left(path) == path.read_bytes()
    assert not disk.moved_early


def test_the_power_cut_finds_what_is_not_synced(
    disk: PowerCut, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)
    write(tmp_path / "file", b"whole")
    assert disk.left(tmp_path / "file") is None
    assert disk.moved_early == ["file"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_refuses_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(OSError, match="no space"):
        write(path, b"new")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def test_permissions_are_as_asked_and_what_is_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write(path, b"mine")
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        write(path, b"other", overwrite=False)
    write(path, b"for all", mode=0o644)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"for all", 0o644)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_torn_line_is_cut_off_before_the_next_is_added(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    append_line(path, b"first")
    with path.open("ab") as file:
        file.write(b"second, to")
    append_line(path, b"third")
    assert path.read_bytes() == b"first\nthird\n"
