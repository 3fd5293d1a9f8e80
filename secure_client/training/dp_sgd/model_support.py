"""Test of whether a model can train by DP-SGD: a user's own model may compute anything.

Requirements: a record's outputs depend on that record and the weights alone, not on other records of a batch or on
earlier computations; and Opacus computes the same gradients as single records give.
"""

from __future__ import annotations

import torch
from opacus.validators import ModuleValidator
from torch import Tensor, nn

from secure_client.errors import ModelError
from secure_client.models.prototype_model import PrototypeModel
from secure_client.training.dp_sgd.batch_independence import (
    Trial,
    check_batch_independence,
    compute_trial_outputs,
    is_near,
    list_outputs,
    make_trial,
)
from secure_client.training.dp_sgd.per_sample_gradients import hooked, take_gradients

_RELATIVE, _OF_LARGEST = 1e-2, 1e-4
"""Differences allowed for rounding: relative to a gradient's own norm, and to the largest parameter's. They suit the
models that compute in float32 alone. A coupled model is off by more."""
_IN_FLOAT32 = (
    " (The model computes in float32 only, where a ReLU or max-pooling at a tie can cause the same difference: "
    "let the model compute in float64, by model.double(), to exclude ties.)"
)


def check_suitable(model: PrototypeModel, inputs: Tensor) -> None:
    """Raise :class:`ModelError` with the reason unless ``model`` can train by DP-SGD; it is left as it is.

    ``inputs`` (B, …): see :func:`make_trial`. Dropout, which draws for each record by itself, is off.
    """
    # The sensitivity of a step is the clip of one unit only if no other record's gradient depends on that unit
    # (Abadi et al. 2016 assume a sum over records). Batch statistics, memory and shared weights would break the sum.
    trial = make_trial(model, inputs)
    _check_layers(trial.copy())
    _check_no_memory(trial)
    _check_gradients(trial)
    check_batch_independence(model, inputs)


def _check_no_memory(trial: Trial) -> None:
    moved, before = trial.copy(), compute_trial_outputs(trial.copy().eval(), trial.batch)
    compute_trial_outputs(moved, trial.batch)
    if not all(map(is_near, before, compute_trial_outputs(moved.eval(), trial.batch))):
        raise ModelError(
            "DP-SGD: the model's outputs depend on inputs that it has seen before: remove running statistics "
            "and averages from the model"
        )


def _check_layers(model: nn.Module) -> None:
    """Refuse the layers that Opacus refuses, with its message: batch normalisation, recurrent layers, attention."""
    errors = ModuleValidator.validate(model.train(), strict=False)
    if errors:
        raise ModelError(f"DP-SGD: Opacus refuses the model:  {' '.join(str(errors[0]).split())}")


def _check_gradients(trial: Trial) -> None:
    # The comparison is written so that NaN is refused.
    if not compute_gradient_gap(trial) <= 1.0:
        raise ModelError(
            "DP-SGD: Opacus computes other gradients than single records give: the model uses a weight outside "
            "the layer that owns it, or computes records together. Call each layer as a module, and use "
            f"nn.Dropout instead of its function{'' if trial.exact else _IN_FLOAT32}"
        )


def compute_gradient_gap(trial: Trial) -> float:
    """Return the largest difference, over parameters, of Opacus's and single records' gradients, in allowed errors.

    Up to 1 the gradients agree; NaN means a non-finite gradient. Raises :class:`ModelError` if Opacus finds no
    gradients.
    """
    together = _hooked_gradients(trial.copy(), trial.batch)
    single = _single_gradients(trial.copy(), trial.batch)
    if not single:
        return 0.0
    # A gap is measured against the gradient's own size and the largest one's: a layer whose gradient is nearly zero
    # differs by rounding alone.
    norms = torch.stack([gradient.norm() for gradient in single])
    apart = torch.stack(
        [(by_opacus - by_torch).norm() for by_opacus, by_torch in zip(together, single, strict=True)]
    )
    allowed = _RELATIVE * norms + _OF_LARGEST * norms.max()
    return float(torch.where(apart == 0, 0.0, apart / allowed).max())


def _hooked_gradients(model: PrototypeModel, batch: Tensor) -> list[Tensor]:
    """Return each parameter's gradients (B, …), computed as in training."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        with hooked(model):
            torch.autograd.backward(_weighted_sum(list_outputs(model, batch)))
            gradients = take_gradients(model, parameters)
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
        torch.zeros(len(batch), *parameter.shape) if gradient is None else gradient
        for parameter, gradient in zip(parameters, gradients, strict=True)
    ]


def _single_gradients(model: PrototypeModel, batch: Tensor) -> list[Tensor]:
    """Return each parameter's gradients (B, …), one record after the other, by torch alone."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rows = [
        torch.autograd.grad(
            _weighted_sum(list_outputs(model, batch[number : number + 1])), parameters, allow_unused=True
        )
        for number in range(len(batch))
    ]
    return [
        torch.stack([torch.zeros_like(parameter) if gradient is None else gradient for gradient in gradients])
        for parameter, *gradients in zip(parameters, *rows, strict=True)
    ]


def _weighted_sum(outputs: list[Tensor]) -> Tensor:
    """Return a sum over records in which every output counts, each number by another weight."""
    total = torch.zeros(())
    for output in outputs:
        total = total + (output * torch.linspace(0.5, 1.5, output[0].numel()).view(output.shape[1:])).sum()
    return total
