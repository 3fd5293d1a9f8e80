"""Layers of several sites' networks at once, with gradients.

A batch of S sites is (S·B, …), site after site. Parameters are stacked, (S, *shape). No value of one site enters
another site's sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

Values = Mapping[str, Tensor]
"""Parameters and buffers by name, stacked: (S, *shape)."""


class CannotStack(Exception):
    """The network has a layer or an operation that is not known to work on stacked sites."""


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

    def apart(self, samples: Tensor) -> Tensor:
        """(S·B, …) as (S, B, …)."""
        return samples.reshape(self.sites, -1, *samples.shape[1:])

    def joined(self, samples: Tensor) -> Tensor:
        """(S·B, C, …) as (B, S·C, …): the sites' channels side by side."""
        return self.apart(samples).transpose(0, 1).flatten(1, 2)

    def parted(self, samples: Tensor) -> Tensor:
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
        return cast("Tensor", _Products.apply(self.apart(inputs), self.weight, self.bias)).flatten(0, 1)


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
        self.pool, self.relu = None, False
        if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
            raise CannotStack("a convolution with other padding than a number of zeros")
        self.settings = layer.stride, layer.padding, layer.dilation, layer.groups

    def forward(self, inputs: Tensor) -> Tensor:
        """Convolve each site's inputs with its own weights."""
        if inputs.ndim != 4:
            raise CannotStack(f"a convolution of inputs of {inputs.ndim} dimensions")
        if inputs.device.type == "cpu":
            return cast("Tensor", _SiteBySite.apply(inputs, self.weight, self.bias, self))
        joined = self.joined(inputs)
        bias = None if self.bias is None else self.bias.flatten()
        stride, padding, dilation, groups = self.settings
        weight = self.weight.flatten(0, 1)
        given = torch.conv2d(joined, weight, bias, stride, padding, dilation, self.sites * groups)
        outputs = self.parted(given)
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
            own = None if bias is None else bias[site]
            result = torch.conv2d(batch, weight[site], own, *layer.settings)
            ctx.between = result if layer.pool else None  # only its shape and layout are used
            if layer.pool is not None:
                result, place = torch.ops.aten.max_pool2d_with_indices(result, *_pooling(layer.pool))
                places.append(place)
            results.append(result.relu_() if layer.relu else result)
        outputs = torch.cat(results)
        ctx.save_for_backward(inputs, weight, outputs if layer.relu else None, *places)
        ctx.layer, ctx.sites, ctx.biases = layer, layer.sites, None if bias is None else [bias.shape[1]]
        return outputs

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight, outputs, *places = ctx.saved_tensors
        layer, wanted = ctx.layer, list(ctx.needs_input_grad[:3])
        results = [None] * ctx.sites if outputs is None else outputs.chunk(ctx.sites)
        found = []
        for site, (batch, gradient) in enumerate(
            zip(inputs.chunk(ctx.sites), given[0].chunk(ctx.sites), strict=True)
        ):
            before = _before_relu(gradient, results[site])
            if places:
                before = torch.ops.aten.max_pool2d_with_indices_backward(
                    before, ctx.between, *_pooling(layer.pool), places[site]
                )
            stride, padding, dilation, groups = layer.settings
            found.append(
                torch.ops.aten.convolution_backward(
                    *(before, batch, weight[site], ctx.biases, stride, padding, dilation),
                    *(False, [0, 0], groups, wanted),
                )
            )
        of_inputs, of_weights, of_biases = zip(*found, strict=True)
        return (
            torch.cat(of_inputs) if wanted[0] else None,
            torch.stack(of_weights) if wanted[1] else None,
            torch.stack(of_biases) if wanted[2] else None,
            None,
        )


def _before_relu(gradient: Tensor, result: Tensor | None) -> Tensor:
    """Return the gradient before the ReLU with output ``result``; None means no ReLU."""
    return gradient if result is None else torch.ops.aten.threshold_backward(gradient, result, 0)


def _pooling(pool: nn.MaxPool2d) -> tuple[Any, ...]:
    pairs = (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
    return *(list(each) if isinstance(each, tuple) else [each, each] for each in pairs), pool.ceil_mode


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
        self.momentum, self.eps = layer.momentum, layer.eps

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise each site's batch by itself."""
        self.num_batches_tracked += 1
        normalised: Tensor = functional.batch_norm(
            self.joined(inputs),
            self.running_mean.view(-1),  # views, which are updated in place
            self.running_var.view(-1),
            _flat(self.weight),
            _flat(self.bias),
            training=True,
            momentum=self.momentum,
            eps=self.eps,
        )
        return self.parted(normalised)


class StackedGroupNorm(StackedLayer):
    """Group normalisation of single samples, followed by each site's own scale and shift."""

    weight: Tensor | None
    bias: Tensor | None

    def __init__(self, layer: nn.GroupNorm) -> None:
        super().__init__(layer)
        self.groups, self.eps = layer.num_groups, layer.eps

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise inputs (B, S, C, …) of each site by itself."""
        normalised: Tensor = self.apart(functional.group_norm(inputs, self.groups, eps=self.eps))
        if self.weight is not None and self.bias is not None:
            shape = (self.sites, 1, -1, *(1,) * (inputs.ndim - 2))
            normalised = normalised * self.weight.view(shape) + self.bias.view(shape)
        return normalised.flatten(0, 1)


def _flat(values: Tensor | None) -> Tensor | None:
    return None if values is None else values.flatten()
