"""Gradients of single records' losses, by Opacus: for models in which no record's output depends on another's."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from opacus.grad_sample import GradSampleModule
from torch import Tensor, nn

from agreement.registry.recipe import BatchLoss
from algorithms.losses import Outputs, Terms
from algorithms.prototypes import Guide
from secure_client.errors import ModelError

_ACTIVATIONS, _UNFINISHED, _LENGTH = "activations", "_current_grad_sample", "max_batch_len"
"""Names of Opacus's attributes of a module between a forward and a backward pass, of a parameter, and of a module."""


@contextmanager
def store_gradients(model: nn.Module) -> Iterator[None]:
    """Make each backward pass in ``train()`` mode store the gradients that :func:`take_gradients` returns.

    The loss must be a sum over records. All hooks are removed afterwards. Raises ``NotImplementedError`` for layers
    with running statistics.
    """
    with warnings.catch_warnings():
        # Inputs need no gradient; the first layer's hook would warn of this at each pass.
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        wrapped = GradSampleModule(model, loss_reduction="sum", strict=True)
        try:
            yield
        finally:
            wrapped.to_standard_module()
            _drop_activations(model)


def take_gradients(model: nn.Module, parameters: Sequence[nn.Parameter]) -> list[Tensor | None]:
    """Return each record's gradients in the last backward pass, (B, …) for each parameter; None without a part in it.

    The gradients are cleared for the next pass. Raises :class:`ModelError` if the loss left out a layer's output:
    Opacus would then pair gradients with the wrong inputs.
    """
    # Opacus keeps a stack of activations and pops one for each gradient. One that is left over shifts all later pairs.
    for module in model.modules():
        if getattr(module, _ACTIVATIONS, None):
            raise ModelError(
                f"DP-SGD: the loss leaves out an output of a {type(module).__name__} layer of the model; use "
                "every output in the loss"
            )
    taken: list[Tensor | None] = []
    for parameter in parameters:
        marked = cast("Any", parameter)
        taken.append(marked.grad_sample)
        marked.grad_sample, marked._forward_counter, parameter.grad = None, 0, None
    return taken


def clear_gradients(model: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
    """Remove the stored record data of a pass that failed."""
    _drop_activations(model)
    for parameter in parameters:
        marked = cast("Any", parameter)
        marked.grad_sample, marked._forward_counter, parameter.grad = None, 0, None
        if hasattr(parameter, _UNFINISHED):
            delattr(parameter, _UNFINISHED)


def _drop_activations(model: nn.Module) -> None:
    for module in model.modules():
        for name in (_ACTIVATIONS, _LENGTH):
            if hasattr(module, name):
                delattr(module, name)


def compute_sample_terms(
    objective: BatchLoss, outputs: Outputs, labels: Tensor, guide: Guide | None
) -> Terms:
    """Return each record's own terms, (B,) each: the objective's for a batch of that record alone.

    Values that an objective computes over a batch, such as a mean of its features or a margin, are then the record's
    own, and the sum over records is a sum of terms that each depend on one of them.
    """
    # vmap gives the objective a batch of one record at a time: a mean over the batch would mix records, and a record's
    # clip would no longer bound its influence.
    present = [output for output in outputs if output is not None]

    def of_record(parts: list[Tensor], label: Tensor) -> tuple[Tensor, ...]:
        rest = iter(parts)
        single = Outputs(*(None if output is None else next(rest).unsqueeze(0) for output in outputs))  # type: ignore[arg-type]
        return tuple(objective(single, label.unsqueeze(0), guide))

    return Terms(*torch.vmap(of_record)(present, labels))
