"""Threads that stand for processes of one test: one runs at a time, and only when the test says so."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

R = TypeVar("R")


class Killed(BaseException):
    """A process dies here: no handler of the code that runs in it may notice."""


class Strand(Generic[R]):
    """A function that runs from one :meth:`pause` to the next, whenever :meth:`resume` is called.

    The thread and its owner hand one turn to and fro, so that nothing ever runs beside anything else.
    """

    def __init__(self, work: Callable[[], R]) -> None:
        self._work = work
        self._mine, self._owners = threading.Semaphore(0), threading.Semaphore(0)
        self._killed = False
        self.over = False
        self.result: R | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        _current.strand = self
        self._mine.acquire()
        try:
            if not self._killed:
                self.result = self._work()
        except BaseException as error:  # whatever ends the process is its owner's to judge
            self.error = error
        self.over = True
        self._owners.release()

    def resume(self) -> None:
        """Let the function run until it pauses or ends."""
        self._mine.release()
        self._owners.acquire()
        if self.over:
            self._thread.join()

    def pause(self) -> None:
        """Hand the turn back; to be called by the function. Raise :class:`Killed` if the process is to die here."""
        self._owners.release()
        self._mine.acquire()
        if self._killed:
            raise Killed

    def kill(self) -> None:
        """End the function where it paused; harmless once it is over."""
        self._killed = True
        while not self.over:
            self.resume()


_current = threading.local()


def pause() -> None:
    """Hand the turn back, where this is called in a process of a test; see :meth:`Strand.pause`."""
    strand: Strand[object] | None = getattr(_current, "strand", None)
    if strand is not None:
        strand.pause()
