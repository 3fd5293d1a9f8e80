"""The network between sites and the coordinator, on which calls are lost, late or doubled."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from privacy.errors import PrivacyError
from secure_client.errors import SiteError, Unreachable
from secure_client.retry import FINAL
from secure_server.service.servicer import status_of
from tests.states.faults import AWAY, CALLS, COORDINATOR, Kind
from tests.states.interleaved_threads import Killed
from tests.states.invariants import Promise
from tests.states.parties import SiteProcess
from tests.states.scene import Scene

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
        status = status_of(error)
        if status is None and not self._scene.injured:
            self._scene.monitor.broken(Promise.NO_REFUSAL, f"the coordinator fails inside a call: {error!r}")
        if status is not None and status in FINAL:
            raise FINAL[status](f"the coordinator refused: {error}") from error
