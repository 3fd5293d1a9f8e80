"""Shutdown of the coordinator after a run: once every site was notified, or the time for that has passed.

A coordinator that is started again after the end waits longer for sites that have not fetched the last result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from secure_server.rounds.state import Stage, State
from secure_server.rounds.task_assignment import late_sites

_log = logging.getLogger("protoseal.coordinator")
_GRACE_SECONDS = 30.0


class ShutdownWait:
    """End of one run, by its coordinator's ``clock``. Late sites are waited for during ``late_seconds``."""

    def __init__(self, clock: Callable[[], float], late_seconds: float) -> None:
        self._clock, self._late_seconds = clock, late_seconds
        self._began: float | None = None
        self._notified: set[str] = set()
        self._awaited: frozenset[str] = frozenset()

    def begin(self, ended: State) -> None:
        """Start the wait at the end of the run. Idempotent."""
        if self._began is None:
            self._began = self._clock()
            level = logging.INFO if ended.stage is Stage.FINISHED else logging.ERROR
            _log.log(level, "the run is over: %s", ended.reason or "finished")

    def resume(self, ended: State) -> None:
        """Start the wait of a coordinator that was started again after the end of the run."""
        self._began, self._awaited = self._clock(), late_sites(ended)
        if ended.stage is Stage.FINISHED:
            _log.info("run %s is complete after %d rounds", ended.run, ended.round)
        else:
            _log.error("run %s is over: %s", ended.run, ended.reason)
        if self._awaited:
            late = ", ".join(sorted(self._awaited))
            _log.info("waiting %.0f s for %s to fetch the last result", self._wait_seconds, late)
        else:
            _log.info("answering calls of sites for %.0f s", self._wait_seconds)

    def note_notified(self, site: str) -> None:
        """Note that the site was notified of the end."""
        self._notified.add(site)

    def is_over(self, state: State) -> bool:
        """Return True if nobody needs the coordinator any more."""
        if self._began is None:
            return False
        if self._notified >= (state.joined - state.absent) | self._awaited:
            return True
        return self._clock() - self._began > self._wait_seconds

    @property
    def _wait_seconds(self) -> float:
        """Return the wait in seconds. A late site that was notified needs no more time than the others."""
        late = self._awaited - self._notified
        return max(_GRACE_SECONDS, self._late_seconds) if late else _GRACE_SECONDS
