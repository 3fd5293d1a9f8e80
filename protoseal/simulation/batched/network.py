"""Batched network: computes what several sites' networks of one architecture compute, each on its own inputs.

A batch of S sites is (S·B, …), site after site, where one site's would be (B, …). Parameters are stacked, (S, *shape).
Operations on single samples (ReLU, pooling, sums, flattening) are unchanged; a linear layer multiplies S matrices at
once; convolutions and batch normalisation treat the sites' channels side by side. No value of one site enters another
site's sums.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from algorithms.losses import Outputs
from protoseal.simulation.batched.flat_models import CannotStack, FlatModels
from secure_client.models.prototype_model import PrototypeModel, SplitModel, compute_outputs
from secure_client.models.scattering import Scattering
from secure_client.models.wrapped_models import DualBranch, Projected, PublicProjection

Values = Mapping[str, Tensor]
"""Parameters and buffers by name, stacked: (S, *shape)."""


class StackedLayer(nn.Module):
    """Layer with stacked parameters of the current sites, which its caller sets."""

    sites: int

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.names = (*layer._parameters, *layer._buffers)

    def set(self, values: Values, prefix: str, sites: int) -> None:
        """Use the values whose names begin with ``prefix``; a parameter that the layer lacks is None."""
        self.sites = sites
        for name in self.names:
            setattr(self, name, values.get(prefix + name))

    def by_site(self, samples: Tensor) -> Tensor:
        """(S·B, …) as (S, B, …)."""
        return samples.reshape(self.sites, -1, *samples.shape[1:])

    def to_channels(self, samples: Tensor) -> Tensor:
        """(S·B, C, …) as (B, S·C, …): the sites' channels side by side."""
        return self.by_site(samples).transpose(0, 1).flatten(1, 2)

    def from_channels(self, samples: Tensor) -> Tensor:
        """(B, S·C, …) as (S·B, C, …)."""
        of_sites = samples.reshape(len(samples), self.sites, -1, *samples.shape[2:])
        return of_sites.transpose(0, 1).flatten(0, 1)


class StackedLinear(StackedLayer):
    """S linear layers: (S·B, f) → (S·B, g)."""

    weight: Tensor
    bias: Tensor | None

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply each site's own weights to its inputs."""
        if inputs.ndim != 2:
            raise CannotStack(f"a linear layer with inputs of {inputs.ndim} dimensions")
        return cast("Tensor", _Products.apply(self.by_site(inputs), self.weight, self.bias)).flatten(0, 1)


class _Products(torch.autograd.Function):
    """Product x·Wᵀ + b of (S, B, f) and (S, g, f), with gradients in their operands' layout, unlike autograd's."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        if bias is None:
            return torch.bmm(inputs, weight.mT)
        return torch.baddbmm(bias.unsqueeze(1), inputs, weight.mT)

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        gradients = given[0].contiguous()
        wanted = ctx.needs_input_grad
        return (
            torch.bmm(gradients, weight) if wanted[0] else None,
            torch.bmm(gradients.mT, inputs) if wanted[1] else None,
            gradients.sum(dim=1) if wanted[2] else None,
        )


class StackedConvolution(StackedLayer):
    """S convolutions, with optional pooling and ReLU: one by one on a CPU, else as one with S times the groups."""

    weight: Tensor
    bias: Tensor | None

    pool: nn.MaxPool2d | None

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__(layer)
        self.pool = None
        self.relu = False
        # Other paddings are computed before the convolution, which neither path here repeats.
        if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
            raise CannotStack("a convolution with other padding than a number of zeros")
        self.settings = layer.stride, layer.padding, layer.dilation, layer.groups

    def forward(self, inputs: Tensor) -> Tensor:
        """Convolve each site's inputs with its own weights."""
        if inputs.ndim != 4:
            raise CannotStack(f"a convolution of inputs of {inputs.ndim} dimensions")
        if inputs.device.type == "cpu":
            return cast("Tensor", _SiteBySite.apply(inputs, self.weight, self.bias, self))
        joined = self.to_channels(inputs)
        bias = None if self.bias is None else self.bias.flatten()
        stride, padding, dilation, groups = self.settings
        weight = self.weight.flatten(0, 1)
        given = torch.conv2d(joined, weight, bias, stride, padding, dilation, self.sites * groups)
        outputs = self.from_channels(given)
        pooled = outputs if self.pool is None else cast("Tensor", self.pool(outputs))
        return pooled.relu_() if self.relu else pooled


class _SiteBySite(torch.autograd.Function):
    """Convolution, pooling and ReLU of (S·B, C, H, W), site by site, so that intermediate values stay in the cache."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, layer: StackedConvolution
    ) -> Tensor:
        results, places = [], []
        for site, batch in enumerate(inputs.chunk(layer.sites)):
            site_bias = None if bias is None else bias[site]
            result = torch.conv2d(batch, weight[site], site_bias, *layer.settings)
            ctx.between = result if layer.pool else None  # only its shape and layout are used
            if layer.pool is not None:
                result, place = torch.ops.aten.max_pool2d_with_indices(result, *_pooling(layer.pool))
                places.append(place)
            results.append(result.relu_() if layer.relu else result)
        outputs = torch.cat(results)
        ctx.save_for_backward(inputs, weight, outputs if layer.relu else None, *places)
        ctx.layer = layer
        ctx.sites = layer.sites
        ctx.biases = None if bias is None else [bias.shape[1]]
        return outputs

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight, outputs, *places = ctx.saved_tensors
        layer, wanted = ctx.layer, list(ctx.needs_input_grad[:3])
        results = [None] * ctx.sites if outputs is None else outputs.chunk(ctx.sites)
        gradients = []
        for site, (batch, gradient) in enumerate(
            zip(inputs.chunk(ctx.sites), given[0].chunk(ctx.sites), strict=True)
        ):
            result = results[site]
            # Backwards through the ReLU, the pooling and the convolution, as autograd would go for one site.
            before = gradient if result is None else torch.ops.aten.threshold_backward(gradient, result, 0)
            if places:
                before = torch.ops.aten.max_pool2d_with_indices_backward(
                    before, ctx.between, *_pooling(layer.pool), places[site]
                )
            stride, padding, dilation, groups = layer.settings
            transposed, output_padding = False, [0, 0]
            gradients.append(
                torch.ops.aten.convolution_backward(
                    before,
                    batch,
                    weight[site],
                    ctx.biases,
                    stride,
                    padding,
                    dilation,
                    transposed,
                    output_padding,
                    groups,
                    wanted,
                )
            )
        of_inputs, of_weights, of_biases = zip(*gradients, strict=True)
        return (
            torch.cat(of_inputs) if wanted[0] else None,
            torch.stack(of_weights) if wanted[1] else None,
            torch.stack(of_biases) if wanted[2] else None,
            None,
        )


def _pooling(pool: nn.MaxPool2d) -> tuple[Any, ...]:
    pairs = (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
    return *(list(pair) if isinstance(pair, tuple) else [pair, pair] for pair in pairs), pool.ceil_mode


class StackedBatchNorm(StackedLayer):
    """Batch normalisation of S times as many channels, each by its own mean and variance."""

    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, layer: nn.BatchNorm2d) -> None:
        super().__init__(layer)
        if layer.momentum is None or not layer.track_running_stats:
            raise CannotStack("batch normalisation without running averages of a fixed momentum")
        self.momentum = layer.momentum
        self.eps = layer.eps

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise each site's batch by itself."""
        self.num_batches_tracked += 1
        normalised: Tensor = functional.batch_norm(
            self.to_channels(inputs),
            self.running_mean.view(-1),  # views, which are updated in place
            self.running_var.view(-1),
            _flat(self.weight),
            _flat(self.bias),
            training=True,
            momentum=self.momentum,
            eps=self.eps,
        )
        return self.from_channels(normalised)


class StackedGroupNorm(StackedLayer):
    """Group normalisation of single samples, followed by each site's own scale and shift."""

    weight: Tensor | None
    bias: Tensor | None

    def __init__(self, layer: nn.GroupNorm) -> None:
        super().__init__(layer)
        self.groups = layer.num_groups
        self.eps = layer.eps

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise inputs (B, S, C, …) of each site by itself."""
        normalised: Tensor = self.by_site(functional.group_norm(inputs, self.groups, eps=self.eps))
        if self.weight is not None and self.bias is not None:
            shape = (self.sites, 1, -1, *(1,) * (inputs.ndim - 2))
            normalised = normalised * self.weight.view(shape) + self.bias.view(shape)
        return normalised.flatten(0, 1)


def _flat(values: Tensor | None) -> Tensor | None:
    return None if values is None else values.flatten()


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
    if not any(kind in kinds for kinds in (STACKED, UNCHANGED, _containers(), PUBLIC)):
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
        self.trainable = frozenset(name for name, value in first.named_parameters() if value.requires_grad)
        self._bound = FlatModels.find(models)
        self.values = self._load()
        self._network = cast("PrototypeModel", _twin(first))
        layers = self._network.named_modules()
        self._layers = [(f"{name}.", layer) for name, layer in layers if isinstance(layer, StackedLayer)]

    def rows(self, first: int, last: int, trained: frozenset[str]) -> dict[str, Tensor]:
        """Return views of the values of sites ``first`` … ``last`` − 1; ``trained`` names are leaves of gradients."""
        views = {name: value[first:last].detach() for name, value in self.values.items()}
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
        parts = (
            None if output is None else output.reshape(self._sites, -1, output.shape[1]) for output in given
        )
        return Outputs(*parts)  # type: ignore[arg-type] # None keeps its place

    def unload(self) -> None:
        """Write the values back into the models, which stay in training mode."""
        for model in self._models:
            model.train()
        if self._bound is not None:
            flat, rows = self._bound
            for places, bound in flat.parts:
                tensors = [self.values[name].view(len(rows), -1) for name in places]
                if tensors:
                    bound.index_copy_(0, rows, torch.cat(tensors, dim=1))
            return
        with torch.no_grad():
            for site, model in enumerate(self._models):
                for name, value in model.state_dict().items():
                    value.copy_(self.values[name][site])

    def _load(self) -> dict[str, Tensor]:
        """Return a copy of the models' values by name, (S, *shape) each, contiguous."""
        if self._bound is None:
            states = [model.state_dict() for model in self._models]
            return {name: torch.stack([state[name] for state in states]).contiguous() for name in states[0]}
        flat, rows = self._bound
        values: dict[str, Tensor] = {}
        for places, bound in flat.parts:
            taken = bound.index_select(0, rows)
            values |= {name: place.view_rows(taken).contiguous() for name, place in places.items()}
        return values


def _samples(inputs: Tensor) -> Tensor:
    """Reshape (S, B, …) to (S·B, …); images get channels-last layout, on which pooling is several times faster."""
    samples = inputs.flatten(0, 1)
    if samples.ndim != 4:
        return samples
    images = torch.empty_like(samples, memory_format=torch.channels_last)
    return images.copy_(samples)  # contiguous() does not change images of one channel


def _twin(module: nn.Module) -> nn.Module:
    if type(module) in STACKED:
        return STACKED[type(module)](module)
    twin = copy.copy(module)
    twin.training = True
    twin._modules = {name: None if child is None else _twin(child) for name, child in module._modules.items()}
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
