"""Common fixtures of tests of DP-SGD. Only the tests that ask for torch import it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torch import Tensor


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train without noise."""
    import_module("tests.secure_client.training.dp_sgd.private_training").silence(monkeypatch)


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Record each step's sum of clipped gradients in whole steps, (P,), before its noise."""
    training_of = import_module("secure_client.training.dp_sgd.steps")._Training
    found: list[Tensor] = []
    kept = training_of._set_gradients

    def keep(training: Any, total: Tensor) -> None:
        found.append(total.clone())
        kept(training, total)

    monkeypatch.setattr(training_of, "_set_gradients", keep)
    return found
