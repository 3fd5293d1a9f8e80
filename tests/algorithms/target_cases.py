"""Batches and targets for the losses over one prototype of each class."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from algorithms.prototypes import Targets

CLASSES, DIM = 4, 3
MIX = torch.arange(DIM * CLASSES, dtype=torch.float64).reshape(DIM, CLASSES).cos()
"""A classifier's weights, so that logits and features move together."""

Case = tuple[Tensor, Tensor, Targets]
"""Features, labels, targets."""


@st.composite
def cases(draw: st.DrawFn, dtype: torch.dtype = torch.float64) -> Case:
    """Draw a batch of 1 to 8 samples and targets for some of the classes; rows of the other classes are not numbers."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    labels = draw(st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=8))
    present = np.array(draw(st.lists(st.booleans(), min_size=CLASSES, max_size=CLASSES)))
    rows = np.where(present[:, None], rng.normal(size=(CLASSES, DIM)), np.nan)
    features = torch.tensor(rng.normal(size=(len(labels), DIM)), dtype=dtype)
    return features, torch.tensor(labels), Targets.of(rows, present)


def gradient(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    leaf = at.clone().requires_grad_()
    torch.autograd.backward(function(leaf))
    assert leaf.grad is not None
    return leaf.grad
