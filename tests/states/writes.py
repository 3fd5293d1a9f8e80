"""Durable writes of a run's parties, at each of which the plan can kill the party, tear the write or let it fail."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.states.disks import Extent
from tests.states.faults import AWAY, Kind
from tests.states.interleaved_threads import Killed
from tests.states.scene import Scene


class DiskFull(OSError):
    """A write, or an answer, that failed by a plan."""


class Writes:
    """The writes of one run, counted for each party; see :class:`tests.states.disks.Watcher`."""

    def __init__(self, scene: Scene, root: Path, *, keeps_older: bool) -> None:
        """Watch folders below ``root``. ``keeps_older``: keep what lay there before each write."""
        self._scene, self._root, self._keeps_older = scene, root, keeps_older
        self._count: Counter[str] = Counter()

    def writing(self, path: Path) -> None:
        owner = self.owner(path)
        self._count[owner] += 1
        if self._keeps_older:
            self._scene.disk(owner).remember()
        if self._is_due(Kind.BEFORE, owner):
            self._die(owner)
        if self._is_due(Kind.FULL, owner):
            self._fail(owner)

    def tears(self, path: Path) -> bool:
        return self._is_due(Kind.TORN, self.owner(path))

    def torn(self, path: Path, before: Extent) -> None:
        owner = self.owner(path)
        self._scene.disk(owner).tear(path, before)
        self._die(owner)

    def written(self, path: Path) -> None:
        owner = self.owner(path)
        if self._is_due(Kind.AFTER, owner):
            self._die(owner)

    def owner(self, path: Path) -> str:
        """Return whose file it is: by its folder, or the acting party's where several runs share it."""
        if path.is_relative_to(self._root):
            return path.relative_to(self._root).parts[0]
        return self._scene.acting

    def _is_due(self, kind: Kind, owner: str) -> bool:
        return self._scene.pending.due((kind,), owner, self._count[owner]) is not None

    def _fail(self, owner: str) -> None:
        self._scene.injured = True
        site = self._scene.site(owner)
        if site is not None:
            site.injured = site.disk_failed = True
            site.away = AWAY
        raise DiskFull("no space is left, by the plan")

    def _die(self, owner: str) -> None:
        self._scene.disk(owner).snapshot()
        raise Killed
