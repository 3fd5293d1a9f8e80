"""Averaged part of a model, as one vector. The rest of the model stays at the site and is never in the vector."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from agreement import ModelPart
from algorithms.gram_matrix import Float
from secure_client.errors import ModelError
from secure_client.models.prototype_model import PrototypeModel

NORMS = (
    nn.modules.batchnorm._NormBase,  # of batches and of instances
    nn.GroupNorm,
    nn.LayerNorm,
    nn.LocalResponseNorm,
)
"""Normalisation layers."""


class AveragedPart:
    """View of a model: the parameters, then the floating-point buffers, that belong to ``part``.

    Parameters and buffers are in the module's order of registration. Buffers outside the module's state (not
    persistent) and whole numbers (batch normalisation's count of batches) are left out and stay local. A parameter that
    the part shares with the rest of the model counts as the rest's.
    """

    def __init__(self, model: PrototypeModel, part: ModelPart = ModelPart.EXTRACTOR) -> None:
        """Raise :class:`ModelError` if the part cannot be separated, or parameters are not real numbers."""
        self._model = model
        # By identity: a tensor that a local module shares must not leave the site under its other name.
        local = {
            id(tensor)
            for module in _local_modules(model, part)
            for tensor in [*module.parameters(), *module.buffers()]
        }
        self._parameters = [
            name for name, parameter in model.named_parameters() if id(parameter) not in local
        ]
        stored = model.state_dict().keys()
        self._buffers = [
            name
            for name, buffer in model.named_buffers()
            if id(buffer) not in local and name in stored and buffer.is_floating_point()
        ]
        for name in self._parameters:
            if not model.get_parameter(name).is_floating_point():
                raise ModelError(
                    f"parameter {name!r} does not hold real numbers and cannot be averaged; use a floating-point "
                    "parameter"
                )

    @property
    def sizes(self) -> tuple[int, int]:
        """Sizes (p, q): the numbers in the parameters and in the buffers."""
        return _count_numbers(map(self._model.get_parameter, self._parameters)), _count_numbers(
            map(self._model.get_buffer, self._buffers)
        )

    @property
    def names(self) -> frozenset[str]:
        """Names of the parameters and buffers."""
        return frozenset([*self._parameters, *self._buffers])

    def vector(self) -> NDArray[np.float64]:
        """Return a copy, float64 (p + q,). Exact for parameters of at most 64 bits."""
        parts = [tensor.detach().flatten() for tensor in self._tensors()]
        # Joined in the model's own precision: one transfer from its device, and one conversion.
        return torch.cat(parts).cpu().double().numpy() if parts else np.empty(0)

    def load(self, vector: Float) -> None:
        """Set the part to a finite vector (p + q,), rounded to the model's own precision.

        A number beyond the range of the model's precision becomes the largest number within, and a negative running
        variance becomes 0: a protection's error makes a mean of variances only slightly negative, but under encryption
        a coordinator can subtract more, and no error may reveal this.

        Raises :class:`ModelError`, without a change, for another length or a non-finite number.
        """
        tensors = self._tensors()
        if vector.shape != (_count_numbers(tensors),):
            raise ModelError(
                f"the averaged part has shape {vector.shape}, the model's part ({_count_numbers(tensors)},)"
            )
        if not np.isfinite(vector).all():
            raise ModelError("the averaged part has numbers that are not finite")
        if not tensors:
            return
        sizes = [tensor.numel() for tensor in tensors]
        rounded = []
        for part, tensor in zip(
            torch.tensor(vector, dtype=torch.float64).split_with_sizes(sizes), tensors, strict=True
        ):
            largest = torch.finfo(tensor.dtype).max
            rounded.append(part.clamp_(-largest, largest).to(tensor.dtype).reshape(tensor.shape))
        # A negative variance would make NaN of the features. The error that follows could show the coordinator, who
        # chooses the vector, on which side of 0 a hidden mean lies.
        names = [*self._parameters, *self._buffers]
        for name, part in zip(names, rounded, strict=True):
            if name.endswith("running_var"):
                part.clamp_(min=0.0)
        with torch.no_grad():  # only now, so that a refused vector leaves the model as it was
            for tensor, part in zip(tensors, rounded, strict=True):
                tensor.copy_(part)

    def _tensors(self) -> list[Tensor]:
        # Tensors are looked up each time, since a module may replace a buffer's tensor.
        parameters: list[Tensor] = [self._model.get_parameter(name) for name in self._parameters]
        return parameters + [self._model.get_buffer(name) for name in self._buffers]


def _local_modules(model: PrototypeModel, part: ModelPart) -> list[nn.Module]:
    match part:
        case ModelPart.NOTHING:
            return [model]
        case ModelPart.MODEL:
            return []
        case ModelPart.NOT_NORMS:
            return [module for module in model.modules() if isinstance(module, NORMS)]
        case ModelPart.EXTRACTOR:
            if not isinstance(model.classifier, nn.Module):
                raise ModelError(
                    "the classifier stays at the site when an extractor is averaged, so it must be a module of its"
                    " own: make model.classifier an nn.Module"
                )
            return [model.classifier]
        case _:
            assert_never(part)


def _count_numbers(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)
