"""Threads that stand for processes of one test: one runs at a time, and only when the test says so.

Another process can come between any two steps of a ledger's file: before each read, write and lock.
"""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Generic, TypeVar
from unittest.mock import patch

from protoseal_files import append_only_file

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


@contextmanager
def stepwise(pause: Callable[[], None]) -> Iterator[None]:
    """Call ``pause`` where another process could come in between, and while a process waits for the lock."""
    with ExitStack() as patches:
        for name in ("read_all", "cut", "sync"):
            patches.enter_context(
                patch.object(append_only_file, name, _paused(pause, getattr(append_only_file, name)))
            )
        patches.enter_context(
            patch.object(append_only_file, "append", _around(pause, append_only_file.append))
        )
        if append_only_file._lock is not no_lock:
            patches.enter_context(patch.object(append_only_file, "_lock", _locked(pause)))
        yield


def no_lock(file: int, kind: int, path: Path) -> None:
    """Lock nothing, in place of ``durable._lock``, as the weakened double does."""


def _paused(pause: Callable[[], None], step: Callable[..., object]) -> Callable[..., object]:
    def paused(*arguments: object) -> object:
        pause()
        return step(*arguments)

    return paused


def _around(pause: Callable[[], None], append: Callable[[int, bytes], None]) -> Callable[[int, bytes], None]:
    def around(file: int, content: bytes) -> None:
        pause()
        append(file, content)
        pause()

    return around


def _locked(pause: Callable[[], None]) -> Callable[[int, int, Path], None]:
    def locked(file: int, kind: int, path: Path) -> None:
        while True:
            pause()
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            return

    return locked
