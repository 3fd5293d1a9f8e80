"""What runs between processes have in common, and one thread for runs in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.support.nursery import Nursery
from tests.support.processes import environment

# Simulated runs here must equal those of the sites' processes, bit for bit: one thread in both.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """What processes are forked off where a test starts many."""
    made = Nursery(environment())
    yield made
    made.close()
