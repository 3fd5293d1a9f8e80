"""Whether a model can train by DP-SGD: tried out, since a model of one's own may compute anything.

What is asked of it: a record's outputs depend on that record and the weights alone, whatever stands beside it in a
batch and whatever was computed before; and Opacus finds the gradients that single records have.
"""

from __future__ import annotations

import torch
from opacus.validators import ModuleValidator
from torch import Tensor, nn

from secure_client.errors import ModelError
from secure_client.models import PrototypeModel
from secure_client.privacy.alone import (
    batch_like,
    check_alone,
    near,
    outputs,
    present_outputs,
    trial_copy,
)
from secure_client.privacy.per_sample import hooked, take_gradients

_RELATIVE, _OF_LARGEST = 1e-2, 1e-4
"""By how much float32 may be off: of a gradient itself, and of the largest parameter's. What is wrong is so by more."""


def check_suitable(model: PrototypeModel, inputs: Tensor) -> None:
    """Raise :class:`ModelError` with the reason unless ``model`` can train by DP-SGD; it is left as it is.

    Of ``inputs`` (B, …), B ≥ 1, shape and type count where they are floats, and numbers are drawn; others are taken.
    Tried on the CPU, without dropout, which draws for each record by itself.
    """
    _check_known(model)
    batch = batch_like(inputs)
    moved, before = trial_copy(model), outputs(trial_copy(model).eval(), batch)
    outputs(moved, batch)
    if not all(map(near, before, outputs(moved.eval(), batch))):
        raise ModelError(
            "DP-SGD: what the model computes moves with what it has seen, beside its weights: leave out statistics and"
            " averages that it keeps"
        )
    together = _hooked_gradients(trial_copy(model), batch)
    _check_gradients(together, _single_gradients(trial_copy(model), batch))
    check_alone(model, inputs)


def _check_known(model: nn.Module) -> None:
    """What Opacus itself refuses, by its own words: batch normalisation, recurrent layers and attention of torch."""
    found = ModuleValidator.validate(trial_copy(model).train(), strict=False)
    if found:
        raise ModelError(f"DP-SGD by Opacus does not take the model: {' '.join(str(found[0]).split())}")


def _check_gradients(together: list[Tensor], single: list[Tensor]) -> None:
    largest = max(float(each.norm()) for each in single) if single else 0.0
    for ours, own in zip(together, single, strict=True):
        allowed = _RELATIVE * float(own.norm()) + _OF_LARGEST * largest
        # Not "<=" the other way round: what is not a number is refused.
        if not float((ours - own).norm()) <= allowed:
            raise ModelError(
                "DP-SGD: Opacus does not find the gradients that single records have in the model: it uses a weight"
                " past the layer that owns it, or computes records together. Call each layer as a module, and"
                " nn.Dropout in place of its function"
            )


def _hooked_gradients(model: PrototypeModel, batch: Tensor) -> list[Tensor]:
    """Of each parameter (B, …), as training takes them."""
    parameters = [each for each in model.parameters() if each.requires_grad]
    try:
        with hooked(model):
            torch.autograd.backward(_sum(present_outputs(model, batch)))
            given = take_gradients(model, parameters)
    except ModelError:
        raise
    except NotImplementedError as error:
        raise ModelError(
            f"DP-SGD: a layer of the model keeps statistics, which follow the records: {' '.join(str(error).split())}"
        ) from error
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        hint = "" if "inplace" not in reason else "; compute nothing in place: nn.ReLU(inplace=False), a + b"
        raise ModelError(
            f"DP-SGD: Opacus cannot take gradients of single records{hint} ({reason})"
        ) from error
    return [
        torch.zeros(len(batch), *own.shape) if each is None else each
        for own, each in zip(parameters, given, strict=True)
    ]


def _single_gradients(model: PrototypeModel, batch: Tensor) -> list[Tensor]:
    """Of each parameter (B, …), one record after the other, by torch alone."""
    parameters = [each for each in model.parameters() if each.requires_grad]
    rows = [
        torch.autograd.grad(
            _sum(present_outputs(model, batch[number : number + 1])), parameters, allow_unused=True
        )
        for number in range(len(batch))
    ]
    return [
        torch.stack([torch.zeros_like(own) if each is None else each for each in given])
        for own, *given in zip(parameters, *rows, strict=True)
    ]


def _sum(outputs: list[Tensor]) -> Tensor:
    """A sum over records in which every output counts, each number by another weight."""
    total = torch.zeros(())
    for each in outputs:
        total = total + (each * torch.linspace(0.5, 1.5, each[0].numel()).view(each.shape[1:])).sum()
    return total
