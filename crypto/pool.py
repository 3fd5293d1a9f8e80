"""Where heavy work goes: an executor that says how many pieces it can do at once."""

from __future__ import annotations

from abc import abstractmethod
from concurrent.futures import Executor


class Pool(Executor):
    """Work is cut into as many pieces as ``workers``, not as the machine has cores."""

    @property
    @abstractmethod
    def workers(self) -> int:
        """How many pieces of work run side by side, 1 or more."""
