"""Processes for the coordinator's heavy and risky work, which end when it does.

They are spawned, not forked: fork is unsafe under gRPC's threads. They leave signals to this process, so that Ctrl-C
or a service manager, which signal all of them, do not break off a computation that it still waits for; and they end
with it even when it is killed.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import resource
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from crypto.work_pool import Pool

_log = logging.getLogger("protoseal.coordinator")
_P = ParamSpec("_P")
_R = TypeVar("_R")

_APART_BYTES = 2**28
_APART_SECONDS = 10
"""Good evaluation keys take below half of the one, and a hundredth of the other."""


class Workers(Pool):
    """A pool of processes, each started when it is first needed, that outlives its processes.

    What was under way when one of them was killed fails with :class:`BrokenProcessPool`; what is submitted after
    that goes to new ones. To be used by one thread at a time.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool = _pool(count)

    @property
    def workers(self) -> int:
        """How many processes."""
        return self._count

    def submit(self, fn: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_R]:
        """As the base class says."""
        try:
            return self._pool.submit(fn, *args, **kwargs)
        except BrokenProcessPool as error:
            _log.warning("worker processes are started anew: %s", error)
            self._pool.shutdown()
            self._pool = _pool(self._count)
            return self._pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As the base class says."""
        self._pool.shutdown(wait, cancel_futures=cancel_futures)


def run_apart(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Run a top-level function in a process of its own, with 256 MiB and 10 seconds to spend.

    Raises what the function raises, and :class:`BrokenProcessPool` when the process ended: native code can crash
    where it gets no memory, and SEAL then waits for ever, that is until the alarm. Starting the process takes about
    a second, on top of its 10.
    """
    with _pool(1) as pool:
        return pool.submit(
            _bounded, _APART_BYTES, _APART_SECONDS, partial(function, *args, **kwargs)
        ).result()


def _pool(count: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(count, mp_context=context, initializer=_follow_parent)


def _bounded(memory: int, seconds: int, call: Callable[[], _R]) -> _R:
    # Above what is mapped by now: libraries map more on machines with more cores.
    most = _mapped_bytes() + memory
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    signal.alarm(seconds)  # not handled, so it ends the process even in native code
    return call()


def _mapped_bytes() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    return int(pages) * resource.getpagesize()


def _follow_parent() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
