"""Optimisers of local training: torch's steps bit for bit. tests/test_layers.py holds that they load no compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer

from secure_client.training.job import Adam, Sgd

Make = Callable[[Iterable[Tensor]], Optimizer]


def stepped(make: Make) -> Tensor:
    """Return parameters after five steps on a quadratic."""
    weights = torch.nn.Parameter(torch.linspace(-1.0, 1.0, 12).reshape(3, 4))
    optimiser = make([weights])
    for _ in range(5):
        optimiser.zero_grad()
        torch.autograd.backward((weights**2 + weights).sum())
        optimiser.step()
    assert weights.requires_grad
    assert weights.is_leaf
    optimiser.zero_grad()
    assert weights.grad is None
    return weights.detach()


@pytest.mark.parametrize(
    ("ours", "torchs"),
    [
        (
            partial(Sgd, lr=0.1, momentum=0.9, weight_decay=0.01),
            partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
        ),
        (partial(Adam, lr=0.1, weight_decay=0.01), partial(torch.optim.Adam, lr=0.1, weight_decay=0.01)),
    ],
    ids=["sgd", "adam"],
)
def test_steps_are_torchs(ours: Make, torchs: Make) -> None:
    assert torch.equal(stepped(ours), stepped(torchs))
