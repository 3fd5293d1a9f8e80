"""Pieces of work as if for several processes, one after the other in this one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

from crypto.protection import Pool

_P = ParamSpec("_P")
_R = TypeVar("_R")


class InlinePool(Pool):
    """Says that it has so many workers; ``names`` are those of the functions that it was given, in their order."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self.names: list[str] = []

    @property
    def workers(self) -> int:
        return self._workers

    def submit(self, fn: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_R]:
        self.names.append(getattr(fn, "func", fn).__name__)
        done = Future[_R]()
        done.set_result(fn(*args, **kwargs))
        return done
