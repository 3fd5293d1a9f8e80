"""One run as its parts see it: parties, clock and faults, and the disks and network that faults strike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from privacy.errors import PrivacyError
from secure_client.errors import SiteError, Unreachable
from secure_client.transport import FINAL
from secure_server.rounds.state import State
from secure_server.service.servicer import find_status
from tests.states.disks import Disk, Extent
from tests.states.faults import AWAY, CALLS, COORDINATOR, Kind, Pending
from tests.states.federations import Cast
from tests.states.interleaving import Killed
from tests.states.invariants import Monitor, Promise
from tests.states.parties import CoordinatorProcess, SiteProcess


@dataclass
class Scene:
    """The parties of a run, and where it is.

    ``acting`` names the party whose code runs. ``injured``: a write of the coordinator's failed by the plan in the step
    that it is in, so that an error of its own is due.
    """

    cast: Cast
    monitor: Monitor
    pending: Pending
    coordinator: CoordinatorProcess
    sites: tuple[SiteProcess, ...]
    turn: int = 0
    now: float = 0.0
    acting: str = ""
    injured: bool = False

    @property
    def state(self) -> State:
        """The running coordinator's; ``RuntimeError`` while it is down."""
        return self.coordinator.handler.state

    @property
    def alive(self) -> list[SiteProcess]:
        """All sites that are not gone for good."""
        return [site for site in self.sites if not site.gone]

    def site(self, name: str) -> SiteProcess | None:
        """Return the site of that name; None for the coordinator's."""
        return next((site for site in self.sites if site.name == name), None)

    def disk(self, owner: str) -> Disk:
        """Return a party's disk; ``KeyError`` for another name."""
        if owner == COORDINATOR:
            return self.coordinator.disk
        return {site.name: site.disk for site in self.sites}[owner]


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


R = TypeVar("R")


class Network:
    """Calls of a run's sites, and those that are still on the way."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._late: list[tuple[int, Callable[[], object]]] = []

    def __len__(self) -> int:
        return len(self._late)

    def delivered(self, site: SiteProcess, call: Callable[[], R]) -> R | None:
        """Return the reply to a site's call; None for a call that has to be tried again."""
        number = site.calls
        site.calls += 1
        fault = self._scene.pending.due(CALLS, site.name, number)
        kind = None if fault is None else fault.kind
        if kind is Kind.UNREACHABLE:
            raise Unreachable("the site gives up by its plan")
        if fault is not None and kind in (Kind.TWICE, Kind.LATE):
            self._late.append((self._scene.turn + fault.length, call))
        if kind in (Kind.NOT_SENT, Kind.LATE):
            return None
        reply = self._called(call)
        return None if kind is Kind.NO_REPLY else reply

    def deliver_late(self) -> None:
        """Let all calls arrive that are due in this turn; nobody waits for their replies any more."""
        due = [each for each in self._late if each[0] <= self._scene.turn]
        self._late = [each for each in self._late if each[0] > self._scene.turn]
        for _, call in due:
            with suppress(PrivacyError, SiteError):
                self._called(call)

    def _called(self, call: Callable[[], R]) -> R | None:
        """Return the reply; None where the coordinator is down, dies of the call, or is in trouble of its own."""
        scene = self._scene
        if not scene.coordinator.is_up:
            return None
        acting, scene.acting = scene.acting, COORDINATOR
        try:
            return call()
        except Killed:
            scene.coordinator.kill(scene.turn + AWAY)
            return None
        except Exception as error:
            self._refuse(error)
            return None
        finally:
            scene.acting, scene.injured = acting, False

    def _refuse(self, error: Exception) -> None:
        status = find_status(error)
        if status is None and not self._scene.injured:
            self._scene.monitor.broken(Promise.NO_REFUSAL, f"the coordinator fails inside a call: {error!r}")
        if status is not None and status in FINAL:
            raise FINAL[status](f"the coordinator refused: {error}") from error
