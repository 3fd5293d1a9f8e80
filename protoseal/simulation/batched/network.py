"""Batched network: computes what several sites' networks of one architecture compute, each on its own inputs.

A batch of S sites is (S·B, …), site after site, where one site's would be (B, …). Operations on single samples (ReLU,
pooling, sums, flattening) are unchanged; a linear layer multiplies S matrices at once; convolutions and batch
normalisation treat the sites' channels side by side. No value of one site enters another site's sums.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from algorithms.losses import Outputs
from protoseal.simulation.batched.layers import (
    CannotStack,
    StackedBatchNorm,
    StackedConvolution,
    StackedGroupNorm,
    StackedLayer,
    StackedLinear,
    Values,
)
from secure_client.models.dual_branch import DualBranch
from secure_client.models.projection import Projected, PublicProjection
from secure_client.models.prototype_model import PrototypeModel, SplitModel, compute_outputs
from secure_client.models.scattering import Scattering

STACKED: Mapping[type[nn.Module], Callable[[Any], StackedLayer]] = {
    nn.Linear: StackedLinear,
    nn.Conv2d: StackedConvolution,
    nn.BatchNorm2d: StackedBatchNorm,
    nn.GroupNorm: StackedGroupNorm,
}
"""Layers that are replaced by one layer for S sites."""
UNCHANGED = frozenset(
    {nn.Identity, nn.Flatten, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d}
    | {nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh}
)
"""Layers without parameters that act on single samples."""
CONTAINERS = frozenset({nn.Sequential, nn.ModuleDict, SplitModel, DualBranch, Projected})
"""Networks whose ``forward`` only passes tensors between layers and applies functions of single samples."""
PUBLIC = frozenset({PublicProjection, Scattering})
"""Layers that act on single samples with constants from their settings, equal at all sites."""
_PLAIN = (bool, int, float, str, type(None))


def _containers() -> frozenset[type[nn.Module]]:
    """Return :data:`CONTAINERS`, with torchvision's once any code has imported torchvision."""
    if "torchvision" not in sys.modules:  # without the import no such network exists
        return CONTAINERS
    from secure_client.models import photo_networks  # noqa: PLC0415 (torchvision takes seconds to import)

    return CONTAINERS | photo_networks.CONTAINERS


def signature(module: nn.Module) -> object:
    """Return a hashable value that is equal for networks that can be stacked; raise :class:`CannotStack`."""
    kind = type(module)
    if not any(kind in known for known in (STACKED, UNCHANGED, _containers(), PUBLIC)):
        raise CannotStack(f"a layer of kind {kind.__name__}")
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
        raise CannotStack("a network with hooks")
    if kind not in STACKED and kind not in PUBLIC and (module._parameters or module._buffers):
        raise CannotStack(f"parameters in {kind.__name__} itself")
    if isinstance(module, nn.Flatten) and module.start_dim != 1:
        raise CannotStack("flattening of samples")
    if getattr(module, "return_indices", False):
        raise CannotStack("pooling that also returns indices")
    own = (*module._parameters.items(), *module._buffers.items())
    tensors = tuple(
        (name, None if each is None else (tuple(each.shape), each.dtype, each.requires_grad))
        for name, each in own
    )
    children = tuple(
        (name, None if child is None else signature(child)) for name, child in module._modules.items()
    )
    return kind, _settings(module), tensors, children


def _settings(module: nn.Module) -> tuple[tuple[str, object], ...]:
    """Return a layer's public settings: numbers and texts."""
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    del public["training"]
    for name, value in public.items():
        parts = value if isinstance(value, tuple) else (value,)
        if not all(isinstance(part, _PLAIN) for part in parts):
            raise CannotStack(f"{name} of {type(module).__name__} is a {type(value).__name__}")
    return tuple(sorted(public.items()))


class Stack:
    """The parameters and buffers of S models of one :func:`signature`, and one network that computes with them.

    The values are copied, so that the models stay unchanged until :meth:`unload`.
    """

    def __init__(self, models: Sequence[PrototypeModel]) -> None:
        first = models[0]
        if len({signature(model) for model in models}) > 1:
            raise CannotStack("networks of several kinds")
        if len(list(first.parameters())) != len(list(first.named_parameters(remove_duplicate=False))):
            raise CannotStack("a parameter with two names")
        self._models = models
        self.trainable = frozenset(name for name, each in first.named_parameters() if each.requires_grad)
        states = [model.state_dict() for model in models]
        self.values = {
            name: torch.stack([state[name] for state in states]).contiguous() for name in states[0]
        }
        self._network = cast("PrototypeModel", _twin(first))
        layers = self._network.named_modules()
        self._layers = [(f"{name}.", each) for name, each in layers if isinstance(each, StackedLayer)]

    def rows(self, first: int, last: int, trained: frozenset[str]) -> dict[str, Tensor]:
        """Return views of the values of sites ``first`` … ``last`` − 1; ``trained`` names are leaves of gradients."""
        views = {name: each[first:last].detach() for name, each in self.values.items()}
        for name in trained:
            views[name].requires_grad_()
        return views

    def use(self, rows: Values) -> None:
        """Use these rows in later computations."""
        sites = len(next(iter(rows.values())))
        for prefix, layer in self._layers:
            layer.set(rows, prefix, sites)
        self._sites = sites

    def outputs(self, inputs: Tensor) -> Outputs:
        """Return the sites' outputs, each (S, B, …), in training mode, for inputs (S, B, …)."""
        given = compute_outputs(self._network, _samples(inputs))
        parts = (None if each is None else each.reshape(self._sites, -1, each.shape[1]) for each in given)
        return Outputs(*parts)  # type: ignore[arg-type] # None keeps its place

    def unload(self) -> None:
        """Write the values back into the models, which stay in training mode."""
        with torch.no_grad():
            for site, model in enumerate(self._models):
                model.train()
                for name, value in model.state_dict().items():
                    value.copy_(self.values[name][site])


def _samples(inputs: Tensor) -> Tensor:
    """Reshape (S, B, …) to (S·B, …); images get channels-last layout, on which pooling is several times faster."""
    samples = inputs.flatten(0, 1)
    if samples.ndim != 4:
        return samples
    images = torch.empty_like(samples, memory_format=torch.channels_last)
    return images.copy_(samples)  # contiguous() does not change images of one channel


def _twin(module: nn.Module) -> nn.Module:
    """Return the network of the same structure whose layers are stacked."""
    if type(module) in STACKED:
        return STACKED[type(module)](module)
    twin = copy.copy(module)
    twin.training = True
    twin._modules = {name: None if each is None else _twin(each) for name, each in module._modules.items()}
    if isinstance(twin, nn.Sequential):
        _reorder(twin)
    return twin


def _reorder(layers: nn.Sequential) -> None:
    """Let a convolution do the max pooling and the ReLU that follow it, and a linear layer's ReLU overwrite its result.

    A ReLU may be moved from before the pooling to after it: maxima and gradients are the same.
    """
    for at, (before, layer) in enumerate(zip(layers, list(layers)[1:], strict=False)):
        if isinstance(before, StackedLinear) and type(layer) is nn.ReLU:
            layer.inplace = True
        if isinstance(before, StackedConvolution) and type(layer) is nn.ReLU:
            before.relu, layers[at + 1] = True, nn.Identity()
            after = layers[at + 2] if at + 2 < len(layers) else None
            if type(after) is nn.MaxPool2d:
                before.pool, layers[at + 2] = after, nn.Identity()
