"""Batched network: computes what several sites' networks of one architecture compute, each on its own inputs.

Operations on single samples (ReLU, pooling, sums) are unchanged; the layers of
:mod:`protoseal.simulation.batched.layers` replace those with parameters. On a CPU images pass through the network site
after site, (S·B, C, H, W). On other devices the sites' channels pass side by side, (B, S·C, H, W), until the network
flattens them, unless the network concatenates channels.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from algorithms.losses import Outputs
from protoseal.simulation.batched.flat_models import CannotStack, FlatModels, Layout
from protoseal.simulation.batched.layers import (
    Draws,
    Parting,
    StackedBatchNorm,
    StackedConvolution,
    StackedDropout,
    StackedFlatten,
    StackedGroupNorm,
    StackedLayer,
    StackedLinear,
    index_sites,
)
from secure_client.models.prototype_model import PrototypeModel, SplitModel, compute_outputs
from secure_client.models.scattering import Scattering
from secure_client.models.wrapped_models import DualBranch, Projected, PublicProjection

STACKED: Mapping[type[nn.Module], Callable[[Any], StackedLayer]] = {
    nn.Linear: StackedLinear,
    nn.Conv2d: StackedConvolution,
    nn.BatchNorm2d: StackedBatchNorm,
    nn.GroupNorm: StackedGroupNorm,
    nn.Dropout: StackedDropout,
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


def _torchvision(name: str) -> Any:
    """Return a table of :mod:`secure_client.models.photo_networks`; an empty one until any code imports torchvision."""
    if "torchvision" not in sys.modules:  # without the import no such network exists
        return {}
    from secure_client.models import photo_networks  # noqa: PLC0415 (torchvision takes seconds to import)

    return getattr(photo_networks, name)


def signature(module: nn.Module) -> object:
    """Return a hashable value that is equal for networks that can be stacked; raise :class:`CannotStack`."""
    kind = type(module)
    if not any(
        kind in kinds for kinds in (STACKED, UNCHANGED, CONTAINERS, _torchvision("CONTAINERS"), PUBLIC)
    ):
        raise CannotStack(f"a layer of kind {kind.__name__}")
    # A hook may do anything with a batch, across sites too.
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
        raise CannotStack("a network with hooks")
    if kind not in STACKED and kind not in PUBLIC and (module._parameters or module._buffers):
        raise CannotStack(f"parameters in {kind.__name__} itself")
    if isinstance(module, nn.Flatten) and module.start_dim != 1:
        raise CannotStack("flattening of samples")
    if getattr(module, "return_indices", False):
        raise CannotStack("pooling that also returns indices")
    tensors = tuple(
        (name, None if tensor is None else (tuple(tensor.shape), tensor.dtype, tensor.requires_grad))
        for name, tensor in (*module._parameters.items(), *module._buffers.items())
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


def joins_channels(device: torch.device) -> bool:
    """Return True if images of several sites should be joined on this device: on a CPU they would leave the cache."""
    return device.type != "cpu"


class Stack:
    """The parameters and buffers of S models of one :func:`signature`, and one network that computes with them.

    ``values`` has a copy of each by name, contiguous (S, *shape); models stay unchanged until :meth:`unload`.
    With ``precision`` convolutions and products are computed in that type, and outputs converted to the models' own.
    """

    def __init__(self, models: Sequence[PrototypeModel], precision: torch.dtype | None = None) -> None:
        first = models[0]
        if len({signature(model) for model in models}) > 1:
            raise CannotStack("networks of several kinds")
        if len(list(first.parameters())) != len(list(first.named_parameters(remove_duplicate=False))):
            raise CannotStack("a parameter with two names")
        if precision is not None and any(type(module) in PUBLIC for module in first.modules()):
            raise CannotStack(f"constants in {precision}")
        self._precision = precision
        self.trainable = frozenset(name for name, value in first.named_parameters() if value.requires_grad)
        # A tensor for each type, in which each parameter's numbers of all sites lie side by side.
        layout, device = Layout(first), next(first.parameters()).device
        self._working = [
            torch.empty(len(models) * width, dtype=dtype, device=device)
            for width, dtype in ((layout.width, layout.dtype), (layout.count_width, torch.int64))
        ]
        self.values = {
            name: working[len(models) * place.start : len(models) * place.stop].view(
                len(models), *place.shape
            )
            for places, working in zip((layout.floats, layout.counts), self._working, strict=True)
            for name, place in places.items()
        }
        self.load(models)
        self.grouped = joins_channels(device)
        """True if a convolution of all sites is one operation."""
        self._joined = self.grouped and _can_join(first)
        self._network = cast("PrototypeModel", _twin(first, joined=self._joined))
        modules = self._network.named_modules()
        self._layers = [(f"{name}.", layer) for name, layer in modules if isinstance(layer, StackedLayer)]
        for _, layer in self._layers:
            layer.joined = self._joined
            if isinstance(layer, StackedConvolution):
                layer.grouped = self.grouped
        self.is_random = any(isinstance(layer, StackedDropout) for _, layer in self._layers)
        """True if outputs in training mode need draws."""
        self._views: dict[object, dict[str, Tensor]] = {}
        self._buffers = [name for name, _ in first.named_buffers() if name in self.values]
        self.use(range(len(models)))

    def use(self, sites: Sequence[int], trained: frozenset[str] = frozenset()) -> dict[str, Tensor]:
        """Compute with these sites from now on; return their values, of which ``trained`` are leaves of gradients.

        The values of a ``range`` of sites are views, the same ones at each call. Others are copies: after a step in
        training mode :meth:`keep_statistics` writes their buffers back.
        """
        rows = self._views.get((sites, trained))
        if rows is None:
            self._index = index_sites(sites, self._working[0].device)
            rows = {name: value[self._index].detach() for name, value in self.values.items()}
            for name in trained:
                rows[name].requires_grad_()
            if isinstance(sites, range):
                self._views[sites, trained] = rows
        for prefix, layer in self._layers:
            layer.set(rows, prefix, len(sites))
        self._sites, self._rows = sites, rows
        return rows

    def outputs(self, inputs: Tensor, *, training: bool = True, draws: Draws | None = None) -> Outputs:
        """Return the sites' outputs, each (S, B, …), for inputs (S, B, …), in training or in ``eval()`` mode.

        Training mode needs ``draws`` if the network has dropout.
        """
        if self._network.training != training:
            self._network.train(training)
        for _, layer in self._layers:
            if isinstance(layer, StackedDropout) and draws is not None:
                layer.draws = draws
        sites, images = len(self._sites), inputs.ndim == 5
        samples = inputs.transpose(0, 1).flatten(1, 2) if self._joined and images else inputs.flatten(0, 1)
        if images and not self.grouped:  # on a CPU pooling is several times faster so
            copied = torch.empty_like(samples, memory_format=torch.channels_last)
            samples = copied.copy_(samples)  # contiguous() does not change images of one channel
        given = compute_outputs(self._network, samples.to(self._precision or samples.dtype))
        parts = (
            None if output is None else output.to(inputs.dtype).reshape(sites, -1, output.shape[1])
            for output in given
        )
        return Outputs(*parts)  # type: ignore[arg-type] # None keeps its place

    def keep_statistics(self) -> None:
        """Write the buffers of the sites in use back, if they are copies."""
        if not isinstance(self._sites, range):
            for name in self._buffers:
                self.values[name][self._index] = self._rows[name]

    def load(self, models: Sequence[PrototypeModel]) -> None:
        """Copy the values of these models, of which each parameter and buffer is (*shape), to ``values``."""
        self._bound = FlatModels.find(models)
        with torch.no_grad():
            if self._bound is None:
                states = [model.state_dict() for model in models]
                for name, value in self.values.items():
                    torch.stack([state[name] for state in states], out=value)
                return
            flat, rows = self._bound
            for (places, bound), working in zip(flat.parts, self._working, strict=True):
                if len(models) == 1:
                    torch.index_select(bound, 0, rows, out=working.unsqueeze(0))
                elif places:
                    taken = bound.index_select(0, rows)
                    torch._foreach_copy_(
                        [self.values[name] for name in places],
                        [place.view_rows(taken) for place in places.values()],
                    )

    def unload(self, models: Sequence[PrototypeModel]) -> None:
        """Write the values into the models that were loaded last, which stay in training mode."""
        for model in models:
            model.train()
        with torch.no_grad():
            if self._bound is None:
                for site, model in enumerate(models):
                    for name, value in model.state_dict().items():
                        value.copy_(self.values[name][site])
            else:
                flat, rows = self._bound
                for (places, bound), working in zip(flat.parts, self._working, strict=True):
                    tensors = [self.values[name].view(len(rows), -1) for name in places]
                    if len(rows) == 1:
                        bound.index_copy_(0, rows, working.unsqueeze(0))
                    elif tensors:
                        bound.index_copy_(0, rows, torch.cat(tensors, dim=1))
        self._bound = None


def _can_join(network: nn.Module) -> bool:
    """Return True if every image of the network keeps its channels in place, and becomes a vector by flattening."""
    modules = list(network.modules())
    return any(isinstance(module, nn.Conv2d) for module in modules) and all(
        type(module) not in _torchvision("CONCATENATING") and getattr(module, "end_dim", -1) == -1
        for module in modules
    )


def _twin(module: nn.Module, *, joined: bool) -> nn.Module:
    kind = type(module)
    if kind in STACKED:
        return STACKED[kind](module)
    if joined and kind is nn.Flatten:
        return StackedFlatten(module)
    twin = copy.copy(module)
    twin.training = True
    twin._modules = {
        name: None if child is None else _twin(child, joined=joined)
        for name, child in module._modules.items()
    }
    if isinstance(twin, nn.Sequential):
        _reorder(twin)
    last = _torchvision("LAST_ON_IMAGES").get(kind)
    if joined and last is not None:
        layer = cast("nn.Module", twin._modules[last])
        layers = list(layer) if isinstance(layer, nn.Sequential) else [layer]  # their names stay
        twin._modules[last] = nn.Sequential(*layers, Parting(nn.Identity()))
    return twin


def _reorder(layers: nn.Sequential) -> None:
    """Let a convolution do the max pooling and the ReLU that follow it, and a linear layer the ReLU.

    A ReLU may be moved from before the pooling to after it: maxima and gradients are the same.
    """
    for at, (before, layer) in enumerate(zip(layers, list(layers)[1:], strict=False)):
        if isinstance(before, StackedLinear) and type(layer) is nn.ReLU:
            before.relu, layers[at + 1] = True, nn.Identity()
        if isinstance(before, StackedConvolution) and type(layer) is nn.ReLU:
            before.relu, layers[at + 1] = True, nn.Identity()
            after = layers[at + 2] if at + 2 < len(layers) else None
            if type(after) is nn.MaxPool2d:
                before.pool, layers[at + 2] = after, nn.Identity()
