"""Fixtures of runs between processes, and one thread for the runs in this process that they are compared with."""

from __future__ import annotations

import pytest

from tests.support.forked_processes import Nursery
from tests.support.processes import own_nursery


@pytest.fixture(autouse=True, scope="module")
def as_processes(one_thread: None) -> None:
    """Have runs in this process use one thread, as the sites' processes do: they must come to the same bits."""


@pytest.fixture
def nursery() -> Nursery:
    """Return what processes are forked off."""
    return own_nursery()
