"""Tests of a site's model, which may compute anything: for DP-SGD, and for features of a frozen extractor.

Both need that a record's outputs depend on that record and the weights alone, not on other records of a batch or on
earlier computations. DP-SGD also needs that Opacus computes the same gradients as single records give.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secure_client.errors import ModelError
from secure_client.models.prototype_model import PrototypeModel, compute_outputs, copy_model, seed_torch

_TRIED = 3
"""Number of records in a trial batch."""


@dataclass(frozen=True)
class ModelTrial:
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


def make_trial(model: PrototypeModel, inputs: Tensor) -> ModelTrial:
    """Return a trial of ``model``, which is left as it is, in float64 where the model computes in float64.

    Float ``inputs`` (B, …), B ≥ 1, give shape and type only, and numbers are drawn; other inputs are used as they are.

    Two computations of the same gradient differ by rounding, and rounding decides a ReLU or a max-pooling at a tie,
    where the gradient jumps: in float32 by 3 % of a layer of GoogLeNet. In float64 draws that come so near to a tie
    are rarer by the ratio of the two precisions, 5e8.
    """
    tried = copy_model(model).cpu()
    if inputs.is_floating_point():
        with torch.random.fork_rng(devices=[]):
            seed_torch(0)
            batch = torch.randn(_TRIED, *inputs.shape[1:], dtype=inputs.dtype)
    else:
        batch = inputs.cpu()[torch.arange(_TRIED) % len(inputs)]
    exact = ModelTrial(
        copy.deepcopy(tried).double(), batch.double() if batch.is_floating_point() else batch, exact=True
    )
    try:
        computed = _compute_outputs(exact.copy().eval(), exact.batch)
    except Exception:  # a constant of the model stays in float32
        return ModelTrial(tried, batch, exact=False)
    if all(output.dtype == torch.float64 for output in computed):
        return exact
    return ModelTrial(tried, batch, exact=False)


def check_batch_independence(model: PrototypeModel, inputs: Tensor) -> None:
    """Raise :class:`ModelError` unless a record's outputs in ``eval()`` mode depend on that record alone.

    The outputs must not depend on the other records of a batch or on earlier computations. ``inputs``: see
    :func:`make_trial`. Limit: the trial has three records, so a coupling of other records is not found.
    """
    trial = make_trial(model, inputs)
    batch, tried = trial.batch, trial.copy().eval()
    before = _compute_outputs(tried, batch)
    if not all(bool(output.isfinite().all()) for output in before):
        raise ModelError(
            "the model makes numbers that are not finite of records of drawn numbers (mean 0, deviation 1), by which"
            " [privacy] and frozen_extractor try that it computes each record by itself; let it accept all numbers"
        )
    # A record alone, in the batch, and in the batch for the second time: equal outputs exclude batch statistics and
    # memory, but for a coupling of more than three records.
    apart = [_compute_outputs(tried, batch[number : number + 1]) for number in range(len(batch))]
    joined = [torch.cat(parts) for parts in zip(*apart, strict=True)]
    if not all(map(_is_near, before, joined)) or not all(
        map(_is_near, before, _compute_outputs(tried, batch))
    ):
        raise ModelError(
            "the model's output for a record depends on other records of the batch or on earlier computations, which"
            " [privacy] and frozen_extractor forbid; compute each record by itself, as nn.GroupNorm and nn.LayerNorm do"
        )


def _compute_outputs(model: PrototypeModel, batch: Tensor) -> list[Tensor]:
    """Return the model's outputs for a batch, in its present mode, without gradients."""
    with torch.no_grad():
        return [output.detach() for output in _list_outputs(model, batch)]


def _list_outputs(model: PrototypeModel, batch: Tensor) -> list[Tensor]:
    """Return the same outputs, with gradients."""
    return [output for output in compute_outputs(model, batch) if output is not None]


def _is_near(one: Tensor, other: Tensor) -> bool:
    """Return True if two computations of the same outputs agree up to rounding in float32."""
    return torch.allclose(one, other, rtol=1e-3, atol=1e-4 * float(one.abs().max()) + 1e-12)


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
    from opacus.validators import ModuleValidator  # noqa: PLC0415 (Opacus takes a second to import)

    trial = make_trial(model, inputs)
    # Batch normalisation, recurrent layers and attention, by Opacus's own message.
    errors = ModuleValidator.validate(trial.copy().train(), strict=False)
    if errors:
        raise ModelError(f"DP-SGD: Opacus refuses the model:  {' '.join(str(errors[0]).split())}")
    _check_no_memory(trial)
    if not compute_gradient_gap(trial) <= 1.0:  # written so that NaN is refused
        raise ModelError(
            "DP-SGD: Opacus computes other gradients than single records give: the model uses a weight outside "
            "the layer that owns it, or computes records together. Call each layer as a module, and use "
            f"nn.Dropout instead of its function{'' if trial.exact else _IN_FLOAT32}"
        )
    check_batch_independence(model, inputs)


def _check_no_memory(trial: ModelTrial) -> None:
    moved, before = trial.copy(), _compute_outputs(trial.copy().eval(), trial.batch)
    _compute_outputs(moved, trial.batch)
    if not all(map(_is_near, before, _compute_outputs(moved.eval(), trial.batch))):
        raise ModelError(
            "DP-SGD: the model's outputs depend on inputs that it has seen before: remove running statistics "
            "and averages from the model"
        )


def compute_gradient_gap(trial: ModelTrial) -> float:
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
    from secure_client.training.dp_sgd.per_sample_gradients import store_gradients, take_gradients  # noqa: PLC0415 (it imports Opacus)

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        with store_gradients(model):
            torch.autograd.backward(_weighted_sum(_list_outputs(model, batch)))
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
            _weighted_sum(_list_outputs(model, batch[number : number + 1])), parameters, allow_unused=True
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
