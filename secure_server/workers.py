"""Processes for the coordinator's heavy work, which end when it does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor


def worker_processes(count: int) -> ProcessPoolExecutor:
    """A pool of ``count`` processes, each started when it is first needed.

    They are spawned, not forked: fork is unsafe under gRPC's threads. They leave signals to this process, so that
    Ctrl-C or a service manager, which signal all of them, do not break off a computation that it still waits for;
    and they end with it even when it is killed.
    """
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(count, mp_context=context, initializer=_follow_parent)


def _follow_parent() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
