"""Fixtures of the tensor engine's tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from algorithms import prototypes
from protoseal.simulation import experiment
from secure_client.checkpoints import learner_factory
from secure_client.models.prototype_model import PrototypeModel


@pytest.fixture
def float64(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Train models in float64, which were drawn in float32, and convert losses and targets to it."""
    build = learner_factory.build_agreed_model

    def doubled(*arguments: Any) -> PrototypeModel:
        torch.set_default_dtype(torch.float32)
        try:
            return build(*arguments).double()
        finally:
            torch.set_default_dtype(torch.float64)

    for module in (learner_factory, experiment):
        monkeypatch.setattr(module, "build_agreed_model", doubled)
    monkeypatch.setattr(prototypes, "DTYPE", torch.float64)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
