"""Executor for heavy work that reports how many tasks it runs in parallel."""

from __future__ import annotations

from abc import abstractmethod
from concurrent.futures import Executor


class Pool(Executor):
    """Executor with a known number of workers; callers split work into ``workers`` pieces, not one per core."""

    @property
    @abstractmethod
    def workers(self) -> int:
        """Number of tasks that run in parallel, at least 1."""
