"""Worker processes for the coordinator's heavy and risky computations; they end with the coordinator.

Processes are spawned, because a fork is unsafe under gRPC's threads. They ignore signals, so that Ctrl-C or a service
manager, which signal the whole group, do not interrupt a computation that the coordinator still waits for. They end
with the coordinator even when it is killed.
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

from crypto.process_memory import keep_memory_private
from crypto.protection import Pool

_log = logging.getLogger("protoseal.coordinator")
_P = ParamSpec("_P")
_R = TypeVar("_R")

_ISOLATED_BYTES = 2**28
_ISOLATED_SECONDS = 10
"""Memory and processor seconds of an isolated call; valid evaluation keys take half of the one, 1 % of the other."""


class Workers(Pool):
    """Pool that starts each process when it is first needed, and replaces processes that were killed.

    Calls that were running in a killed process fail with :class:`BrokenProcessPool`; later calls go to new processes.
    One thread at a time may use a pool.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool = _pool(count)

    @property
    def workers(self) -> int:
        """Number of processes."""
        return self._count

    def submit(self, fn: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_R]:
        """Submit a call, as the base class does."""
        try:
            return self._pool.submit(fn, *args, **kwargs)
        except BrokenProcessPool as error:
            _log.warning("restarting the worker processes: %s", error)
            self._pool.shutdown()
            self._pool = _pool(self._count)
            return self._pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes, as the base class does."""
        self._pool.shutdown(wait, cancel_futures=cancel_futures)


def run_isolated(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Run a top-level function in a process of its own, limited to 256 MiB and 10 seconds.

    Raises the function's error, and :class:`BrokenProcessPool` when the process ended: native code can crash without
    memory, and SEAL then hangs until the alarm. Starting the process takes about a second more.
    """
    with _pool(1) as pool:
        return pool.submit(
            _bounded, _ISOLATED_BYTES, _ISOLATED_SECONDS, partial(function, *args, **kwargs)
        ).result()


def _pool(count: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(count, mp_context=context, initializer=_follow_parent)


def _bounded(memory: int, seconds: int, call: Callable[[], _R]) -> _R:
    # The limit is relative to the memory mapped now, because libraries map more on machines with more cores.
    most = _mapped_bytes() + memory
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    signal.alarm(seconds)  # no handler is set, so the alarm ends the process even in native code
    return call()


def _mapped_bytes() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    return int(pages) * resource.getpagesize()


def _follow_parent() -> None:
    keep_memory_private()  # the environment may have the passphrase
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
