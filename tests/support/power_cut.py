"""A disk that forgets at a power cut all that was not synced: it follows ``os.fsync`` and the calls that name files."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class PowerCut:
    """Knows what the disk would hold under ``root``, a folder that lasts.

    ``moved_early`` names each file that was moved over another, or linked, before its content was synced: a power cut
    just then can leave an empty file in place of the old one.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root
        self._contents: dict[int, bytes] = {}
        self._names: dict[tuple[int, str], int] = {}
        self.moved_early: list[str] = []
        for name in ("replace", "link", "rename"):
            monkeypatch.setattr(os, name, self._naming(getattr(os, name)))
        monkeypatch.setattr(os, "fsync", self._synced)

    def left(self, path: Path) -> bytes | None:
        """Return the bytes that a power cut now leaves under this name; None if the name or a folder above is lost."""
        while_up = (
            each for each in (path, *path.parents) if each != self._root and self._root in each.parents
        )
        if any(
            self._names.get((each.parent.stat().st_ino, each.name)) != each.stat().st_ino for each in while_up
        ):
            return None
        return self._contents.get(path.stat().st_ino, b"")

    def _synced(self, file: int) -> None:
        found = os.fstat(file)
        if stat.S_ISDIR(found.st_mode):
            self._names |= {(found.st_ino, name): ino for name, ino in _entries(file)}
        else:
            self._contents[found.st_ino] = Path(f"/proc/self/fd/{file}").read_bytes()

    def _naming(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(source: Path | str, target: Path | str) -> None:
            path = Path(source)
            if path.is_file() and self._contents.get(path.stat().st_ino) != path.read_bytes():
                self.moved_early.append(Path(target).name)
            call(source, target)

        return noted


def _entries(folder: int) -> list[tuple[str, int]]:
    with os.scandir(folder) as entries:
        return [(each.name, each.inode()) for each in entries]
