"""Fixtures of the tensor engine's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.protoseal.simulation.tensors.engines import in_float64


@pytest.fixture
def float64() -> Iterator[None]:
    """Train models in float64, which were drawn in float32, and convert losses and targets to it."""
    with in_float64():
        yield
