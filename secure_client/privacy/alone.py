"""Whether a model computes each record by itself: tried out, since a model of one's own may compute anything."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from secure_client.errors import ModelError
from secure_client.models import PrototypeModel, outputs_of

_TRIED = 3
"""Records of a batch."""


def check_alone(model: PrototypeModel, inputs: Tensor) -> None:
    """Raise :class:`ModelError` unless what ``model`` gives for a record in ``eval()`` mode is that record's alone.

    Whatever stands beside it in a batch, and whatever was computed before. The model is left as it is. Of ``inputs``
    (B, …), B ≥ 1, shape and type count where they are floats, and numbers are drawn; others are taken. Tried on the CPU
    with three records: what couples others is not found.
    """
    batch, tried = batch_like(inputs), trial_copy(model).eval()
    before = outputs(tried, batch)
    apart = [outputs(tried, batch[number : number + 1]) for number in range(len(batch))]
    joined = [torch.cat(each) for each in zip(*apart, strict=True)]
    if not all(map(near, before, joined)) or not all(map(near, before, outputs(tried, batch))):
        raise ModelError(
            "[privacy]: what the model computes of a record depends on what stands beside it in a batch, or came before"
            " it; each has to be computed by itself, as nn.GroupNorm or nn.LayerNorm do"
        )


def outputs(model: PrototypeModel, batch: Tensor) -> list[Tensor]:
    """All that the model gives for a batch, in the mode it is in."""
    with torch.no_grad():
        return [each.detach() for each in present_outputs(model, batch)]


def present_outputs(model: PrototypeModel, batch: Tensor) -> list[Tensor]:
    """The same, with gradients."""
    return [each for each in outputs_of(model, batch) if each is not None]


def trial_copy(model: PrototypeModel | nn.Module) -> PrototypeModel:
    """On the CPU, in ``train()`` mode but for its dropout."""
    copied = copy.deepcopy(model).cpu().train()
    for each in copied.modules():
        if isinstance(each, nn.modules.dropout._DropoutNd):
            each.eval()
    return copied  # type: ignore[return-value]  # a model of one's own keeps the contract


def batch_like(inputs: Tensor) -> Tensor:
    """As many records as are tried: drawn, or those that are given, over and over."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if inputs.is_floating_point():
            return torch.randn(_TRIED, *inputs.shape[1:], dtype=inputs.dtype)
    return inputs.cpu()[torch.arange(_TRIED) % len(inputs)]


def near(one: Tensor, other: Tensor) -> bool:
    """But for float32."""
    return torch.allclose(one, other, rtol=1e-3, atol=1e-4 * float(one.abs().max()) + 1e-12)
