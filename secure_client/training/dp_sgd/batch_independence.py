"""Test of whether a model computes each record by itself: a user's own model may compute anything."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secure_client.errors import ModelError
from secure_client.models.prototype_model import PrototypeModel, compute_outputs, copy_model

_TRIED = 3
"""Number of records in a trial batch."""


@dataclass(frozen=True)
class Trial:
    """A model and a batch (B, …) to try it on, on the CPU; see :func:`make_trial`."""

    model: PrototypeModel
    batch: Tensor
    exact: bool
    """True if the trial runs in float64, False for a model that computes in float32 only."""

    def copy(self) -> PrototypeModel:
        """Return another copy of the model, in ``train()`` mode but for its dropout."""
        copied = copy.deepcopy(self.model).train()
        for module in copied.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.eval()
        return copied


def make_trial(model: PrototypeModel, inputs: Tensor) -> Trial:
    """Return a trial of ``model``, which is left as it is, in float64 where the model computes in float64.

    Float ``inputs`` (B, …), B ≥ 1, give shape and type only, and numbers are drawn; other inputs are used as they are.

    Two computations of the same gradient differ by rounding, and rounding decides a ReLU or a max-pooling at a tie,
    where the gradient jumps: in float32 by 3 % of a layer of GoogLeNet. In float64 draws that come so near to a tie
    are rarer by the ratio of the two precisions, 5e8.
    """
    tried, batch = copy_model(model).cpu(), _batch_like(inputs)
    exact = Trial(
        copy.deepcopy(tried).double(), batch.double() if batch.is_floating_point() else batch, exact=True
    )
    try:
        computed = compute_trial_outputs(exact.copy().eval(), exact.batch)
    except Exception:  # a constant of the model stays in float32
        return Trial(tried, batch, exact=False)
    if all(output.dtype == torch.float64 for output in computed):
        return exact
    return Trial(tried, batch, exact=False)


def check_batch_independence(model: PrototypeModel, inputs: Tensor) -> None:
    """Raise :class:`ModelError` unless a record's outputs in ``eval()`` mode depend on that record alone.

    The outputs must not depend on the other records of a batch or on earlier computations. ``inputs``: see
    :func:`make_trial`. Limit: the trial has three records, so a coupling of other records is not found.
    """
    trial = make_trial(model, inputs)
    batch, tried = trial.batch, trial.copy().eval()
    before = compute_trial_outputs(tried, batch)
    if not all(bool(output.isfinite().all()) for output in before):
        raise ModelError(
            "the model makes numbers that are not finite of records of drawn numbers (mean 0, deviation 1), by which"
            " [privacy] and frozen_extractor try that it computes each record by itself; let it accept all numbers"
        )
    # A record alone, in the batch, and in the batch for the second time: equal outputs exclude batch statistics and
    # memory, but for a coupling of more than three records.
    apart = [compute_trial_outputs(tried, batch[number : number + 1]) for number in range(len(batch))]
    joined = [torch.cat(parts) for parts in zip(*apart, strict=True)]
    if not all(map(is_near, before, joined)) or not all(
        map(is_near, before, compute_trial_outputs(tried, batch))
    ):
        raise ModelError(
            "the model's output for a record depends on other records of the batch or on earlier computations, which"
            " [privacy] and frozen_extractor forbid; compute each record by itself, as nn.GroupNorm and nn.LayerNorm do"
        )


def compute_trial_outputs(model: PrototypeModel, batch: Tensor) -> list[Tensor]:
    """Return the model's outputs for a batch, in its present mode, without gradients."""
    with torch.no_grad():
        return [output.detach() for output in list_outputs(model, batch)]


def list_outputs(model: PrototypeModel, batch: Tensor) -> list[Tensor]:
    """Return the same outputs, with gradients."""
    return [output for output in compute_outputs(model, batch) if output is not None]


def _batch_like(inputs: Tensor) -> Tensor:
    """Return a trial batch: drawn numbers, or the given records repeated."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if inputs.is_floating_point():
            return torch.randn(_TRIED, *inputs.shape[1:], dtype=inputs.dtype)
    return inputs.cpu()[torch.arange(_TRIED) % len(inputs)]


def is_near(one: Tensor, other: Tensor) -> bool:
    """Return True if two computations of the same outputs agree up to rounding in float32."""
    return torch.allclose(one, other, rtol=1e-3, atol=1e-4 * float(one.abs().max()) + 1e-12)
