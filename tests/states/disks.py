"""Disks on which every durable write can go wrong: each party's folder, and what a kill leaves of it.

A folder has versions. Whoever is killed goes on in a copy of what lay on the disk at that moment: what the dying code
still does (roll back, close) happens to the old version, which nobody reads again.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self
from unittest.mock import patch

import agreement.storage.anchor_record
import secure_client.protocol.journal
import secure_server.store
from protoseal_files import append_only_file

LEDGER = "ledger.jsonl"
_LEFT_BEHIND = ("-shm", ".lock")
_append = append_only_file.append


@dataclass(frozen=True)
class Extent:
    """A file's time of change, and the bytes of the log that a write to it makes longer."""

    changed: int
    logged: int

    @classmethod
    def of(cls, path: Path) -> Self:
        """A ledger is its own log; a database has its write-ahead log, or none."""
        log = _log_of(path)
        return cls(path.stat().st_mtime_ns, log.stat().st_size if log.exists() else 0)


class Watcher(Protocol):
    """Observer that is told of each durable write."""

    def writing(self, path: Path) -> None:
        """Receive a write before anything is on the disk; raise to keep the write off."""
        ...

    def tears(self, path: Path) -> bool:
        """Return True if the party is killed in the middle of this write."""
        ...

    def torn(self, path: Path, before: Extent) -> None:
        """Tear a finished write to a file that had this extent ``before``, and raise."""
        ...

    def written(self, path: Path) -> None:
        """Receive a write that is on the disk; raise to have nothing follow from the write."""
        ...


class Disk:
    """One party's folder below ``root``, and the folder of its ``ledgers`` where several runs share one.

    That one has no versions, since other processes live on in it: whoever dies does nothing more there.
    """

    def __init__(self, root: Path, ledgers: Path | None = None) -> None:
        self._root, self._version, self._ledgers = root, 0, ledgers
        self.folder.mkdir(parents=True)
        if ledgers is not None:
            ledgers.mkdir(parents=True, exist_ok=True)

    @property
    def ledger(self) -> Path:
        """The privacy ledger that the party's process opens."""
        return (self._ledgers or self.folder) / LEDGER

    @property
    def folder(self) -> Path:
        """The version in force."""
        return self._root / str(self._version)

    @property
    def _next(self) -> Path:
        return self._root / str(self._version + 1)

    @property
    def _spot(self) -> Path:
        return self._root / "before-last-write"

    def snapshot(self) -> None:
        """Fix what a process that is killed now leaves, unless that was done."""
        if not self._next.exists():
            _copy(self.folder, self._next)

    def remember(self) -> None:
        """Keep what lies there, for :meth:`put_back`."""
        shutil.rmtree(self._spot, ignore_errors=True)
        _copy(self.folder, self._spot)

    def put_back(self) -> bool:
        """Make what a kill leaves the folder of before the last write; whether there was one."""
        if not self._spot.exists():
            return False
        shutil.copytree(self._spot, self._next)
        return True

    def cut_ledger(self) -> bool:
        """Make a kill leave the ledger without its last line; whether it had more than that."""
        self.snapshot()
        path = (self._ledgers or self._next) / LEDGER
        kept = path.read_bytes().splitlines(keepends=True)[:-1] if path.exists() else []
        if kept:
            path.write_bytes(b"".join(kept))
        return bool(kept)

    def halve(self, name: str) -> None:
        """Make a kill leave half of a file, if it is there."""
        self.snapshot()
        path = self._next / name
        if path.exists():
            os.truncate(path, path.stat().st_size // 2)

    def tear(self, path: Path, before: Extent) -> None:
        """Make a kill leave half of what a write added to a log.

        All of it stays where no log grew: a database without one restores what it was by itself, and one that was
        written since has had its log on the disk.
        """
        self.snapshot()
        log, after = (
            _log_of(path if path.parent == self._ledgers else self._next / path.name),
            Extent.of(path),
        )
        is_database = log.name != path.name
        if (
            log.exists()
            and after.logged > before.logged
            and not (is_database and after.changed != before.changed)
        ):
            os.truncate(log, (before.logged + after.logged) // 2)

    def die(self) -> None:
        """The party's process is over, killed: the next one finds what the snapshot has."""
        self.snapshot()
        self._version += 1


def _copy(old: Path, new: Path) -> None:
    new.mkdir(parents=True)
    for each in old.iterdir():
        if not each.name.endswith(_LEFT_BEHIND):
            shutil.copy2(each, new / each.name)


def _log_of(path: Path) -> Path:
    return path if path.suffix == ".jsonl" else path.with_name(path.name + "-wal")


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Tell ``watcher`` of all durable writes inside: transactions of journals, stores and anchors, and ledger lines."""

    @contextmanager
    def transaction(database: sqlite3.Connection) -> Iterator[None]:
        path = Path(database.execute("PRAGMA database_list").fetchone()[2])
        database.execute("BEGIN IMMEDIATE")
        try:
            yield
            watcher.writing(path)
            before, tears = Extent.of(path), watcher.tears(path)
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise
        if tears:
            watcher.torn(path, before)
        watcher.written(path)

    def append(file: int, content: bytes) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{file}"))
        watcher.writing(path)
        before, tears = Extent.of(path), watcher.tears(path)
        _append(file, content)
        if tears:
            watcher.torn(path, before)
        watcher.written(path)

    with ExitStack() as patches:
        for module in (
            secure_client.protocol.journal,
            secure_server.store,
            agreement.storage.anchor_record,
        ):
            patches.enter_context(patch.object(module, "transaction", transaction))
        patches.enter_context(patch.object(append_only_file, "append", append))
        yield
