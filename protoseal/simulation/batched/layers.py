"""Layers of a batched network: each computes what several sites' layers compute, each site with its own parameters.

Parameters are stacked, (S, *shape). Vectors are (S·B, f), site after site. Images are parted, (S·B, C, H, W), or
joined, (B, S·C, H, W): the sites' channels side by side. No value of one site enters another site's sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from protoseal.simulation.batched.flat_models import CannotStack
from secure_client.training.batches import copy_to

Values = Mapping[str, Tensor]
"""Parameters and buffers by name, stacked: (S, *shape)."""


def index_sites(sites: Sequence[int], device: torch.device) -> slice | Tensor:
    """Return the index of these sites' rows: of a ``range`` a slice, else int64 (S′,) on the device."""
    if isinstance(sites, range):
        return slice(sites.start, sites.stop)
    return copy_to(device, torch.tensor(sites))


class Draws(NamedTuple):
    """Generators of the sites' dropout, and the numbers of samples that are no padding, for each site.

    Masks of images are drawn pixel by pixel if ``channels_last``, else channel by channel.
    """

    generators: Sequence[torch.Generator]
    lengths: Sequence[int]
    channels_last: bool = False


class StackedLayer(nn.Module):
    """Layer with stacked parameters of the current sites, which its caller sets.

    With ``joined`` its images are joined, else parted.
    """

    sites: int
    joined = False

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.names = (*layer._parameters, *layer._buffers)

    def set(self, values: Values, prefix: str, sites: int) -> None:
        """Use the values whose names begin with ``prefix``; a parameter that the layer lacks is None."""
        self.sites = sites
        for name in self.names:
            setattr(self, name, values.get(prefix + name))

    def by_site(self, samples: Tensor) -> Tensor:
        """Return the samples (S·B, …) as (S, B, …)."""
        return samples.reshape(self.sites, -1, *samples.shape[1:])

    def join(self, images: Tensor) -> Tensor:
        """Return the images as joined ones, (B, S·C, H, W)."""
        return images if self.joined else self.by_site(images).transpose(0, 1).flatten(1, 2)

    def split_unless_joined(self, images: Tensor) -> Tensor:
        """Return joined images as they leave the layer: joined, or parted, (S·B, C, H, W)."""
        return images if self.joined else split_sites(images, self.sites)


def split_sites(images: Tensor, sites: int) -> Tensor:
    """Return joined images (B, S·C, H, W) as (S·B, C, H, W)."""
    return images.reshape(len(images), sites, -1, *images.shape[2:]).transpose(0, 1).flatten(0, 1)


class StackedLinear(StackedLayer):
    """S linear layers, with an optional ReLU: (S·B, f) → (S·B, g)."""

    weight: Tensor
    bias: Tensor | None
    relu = False

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply each site's own weights to its inputs."""
        if inputs.ndim != 2:
            raise CannotStack(f"a linear layer with inputs of {inputs.ndim} dimensions")
        weight, bias = self.weight.to(inputs.dtype), _like(inputs, self.bias)
        products = cast("Tensor", _Products.apply(self.by_site(inputs), weight, bias))
        return (products.relu_() if self.relu else products).flatten(0, 1)


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
    """S convolutions, with optional pooling and ReLU: one with S times the groups if ``grouped``, else one by one."""

    weight: Tensor
    bias: Tensor | None
    grouped = False
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
        weight, bias = self.weight.to(inputs.dtype), _like(inputs, self.bias)
        if not self.grouped:
            return cast("Tensor", _SiteBySite.apply(inputs, weight, bias, self))
        stride, padding, dilation, groups = self.settings
        images = torch.conv2d(
            self.join(inputs),
            weight.flatten(0, 1),
            _flat(bias),
            stride,
            padding,
            dilation,
            self.sites * groups,
        )
        pooled = images if self.pool is None else cast("Tensor", self.pool(images))
        return self.split_unless_joined(pooled.relu_() if self.relu else pooled)


class _SiteBySite(torch.autograd.Function):
    """Convolution, pooling and ReLU of (S·B, C, H, W), site by site, so that intermediate values stay in the cache."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, layer: StackedConvolution
    ) -> Tensor:
        results, places = [], []
        # In the layout of the images, to which torch would convert the weights here and again in the backward pass.
        is_last = inputs.is_contiguous(memory_format=torch.channels_last) and not inputs.is_contiguous()
        layout = torch.channels_last if is_last else torch.contiguous_format
        kernels = [kernel.contiguous(memory_format=layout) for kernel in weight]
        for site, (batch, kernel) in enumerate(zip(inputs.chunk(layer.sites), kernels, strict=True)):
            site_bias = None if bias is None else bias[site]
            result = torch.conv2d(batch, kernel, site_bias, *layer.settings)
            ctx.between = result if layer.pool else None  # only its shape and layout are used
            if layer.pool is not None:
                result, place = torch.ops.aten.max_pool2d_with_indices(result, *_pooling(layer.pool))
                places.append(place)
            results.append(result.relu_() if layer.relu else result)
        outputs = _join(results)
        ctx.save_for_backward(inputs, outputs if layer.relu else None, *kernels, *places)
        ctx.layer = layer
        ctx.sites = layer.sites
        ctx.biases = None if bias is None else [bias.shape[1]]
        return outputs

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        inputs, outputs, *rest = ctx.saved_tensors
        kernels, places = rest[: ctx.sites], rest[ctx.sites :]
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
                    kernels[site],
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
            _join(of_inputs) if wanted[0] else None,
            _join([gradient.unsqueeze(0) for gradient in of_weights]) if wanted[1] else None,
            torch.stack(of_biases) if wanted[2] else None,
            None,
        )


def _join(tensors: Sequence[Tensor]) -> Tensor:
    """Return the tensors one after the other, without a copy if there is one."""
    return torch.cat(list(tensors)) if len(tensors) > 1 else tensors[0]


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
        """Normalise each site's batch by itself; in ``eval()`` mode by the running averages."""
        if self.training:
            self.num_batches_tracked += 1
        normalised: Tensor = functional.batch_norm(
            self.join(inputs),
            self.running_mean.view(-1),  # views, which are updated in place
            self.running_var.view(-1),
            _flat(self.weight),
            _flat(self.bias),
            training=self.training,
            momentum=self.momentum,
            eps=self.eps,
        )
        return self.split_unless_joined(normalised)


class StackedGroupNorm(StackedLayer):
    """Group normalisation of single samples, followed by each site's own scale and shift."""

    weight: Tensor | None
    bias: Tensor | None

    def __init__(self, layer: nn.GroupNorm) -> None:
        super().__init__(layer)
        self.groups = layer.num_groups
        self.eps = layer.eps

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise each sample by itself, then scale and shift it by its site's numbers."""
        weight, bias = _like(inputs, self.weight), _like(inputs, self.bias)
        if self.joined and inputs.ndim == 4:
            return functional.group_norm(
                inputs, self.sites * self.groups, _flat(weight), _flat(bias), self.eps
            )
        normalised = self.by_site(functional.group_norm(inputs, self.groups, eps=self.eps))
        if weight is not None and bias is not None:
            shape = (self.sites, 1, -1, *(1,) * (inputs.ndim - 2))
            normalised = normalised * weight.view(shape) + bias.view(shape)
        return normalised.flatten(0, 1)


class StackedDropout(StackedLayer):
    """Dropout whose masks come from the sites' own generators, whichever sites share the batch.

    On a CPU they are the masks that :class:`torch.nn.Dropout` draws for the site alone, in the order of its memory.
    """

    draws: Draws

    def __init__(self, layer: nn.Dropout) -> None:
        super().__init__(layer)
        self.p = layer.p

    def forward(self, inputs: Tensor) -> Tensor:
        """Drop values with probability p and scale the others by 1/(1 − p); in ``eval()`` mode return the inputs."""
        if not self.training or self.p in {0.0, 1.0}:
            return functional.dropout(inputs, self.p, self.training)
        joined = self.joined and inputs.ndim == 4
        parted = split_sites(inputs, self.sites) if joined else inputs
        # The site's own layout, whatever the layout of the inputs here.
        noise = torch.ones(self.by_site(parted).shape, dtype=inputs.dtype, device=inputs.device)
        if self.draws.channels_last and inputs.ndim == 4:
            noise = noise.movedim(2, -1).contiguous().movedim(-1, 2)
        lengths = zip(self.draws.generators, self.draws.lengths, strict=True)
        for site, (generator, length) in enumerate(lengths):
            noise[site, :length].bernoulli_(1.0 - self.p, generator=generator)
        noise.div_(1.0 - self.p)
        return inputs * (noise.transpose(0, 1).flatten(1, 2) if joined else noise.flatten(0, 1))


class StackedFlatten(StackedLayer):
    """Flattening of joined images (B, S·C, H, W) to vectors (S·B, C·H·W); vectors stay as they are."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the vectors, site after site."""
        return inputs if inputs.ndim == 2 else split_sites(inputs, self.sites).flatten(1)


class Parting(StackedLayer):
    """Layer that parts joined images (B, S·C, H, W) to (S·B, C, H, W)."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the images, site after site."""
        return split_sites(inputs, self.sites)


def _like(inputs: Tensor, values: Tensor | None) -> Tensor | None:
    """Return the values in the type of the inputs, which may be of lower precision than the parameters."""
    return None if values is None else values.to(inputs.dtype)


def _flat(values: Tensor | None) -> Tensor | None:
    return None if values is None else values.flatten(0, 1)
