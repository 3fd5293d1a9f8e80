"""What runs between processes have in common, and one thread for runs in this process."""

from __future__ import annotations

import pytest
import torch

from tests.support.nursery import Nursery
from tests.support.processes import own_nursery

# Simulated runs here must equal those of the sites' processes, bit for bit: one thread in both.
torch.set_num_threads(1)


@pytest.fixture
def nursery() -> Nursery:
    """Return what processes are forked off."""
    return own_nursery()
