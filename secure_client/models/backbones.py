"""Built-in networks: square images (B, channels, side, side), or rows of a table (B, F), become features (B, d).

The methods require of each network: features are the output of a ReLU, so that none is negative; and no operation works
in place, since per-sample gradients need every activation unchanged. Networks with normalisation choose it by
:class:`agreement.sections.training.Norm`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from torch import nn

from agreement import Norm
from secure_client.errors import ModelError
from secure_client.models.scattering import FACTOR, PATHS, Scattering

SMALL_SIDE = 64
"""Up to this side, in pixels, torchvision's networks shrink an image by 8 before they pool it, beyond it by 32."""


@dataclass(frozen=True)
class Shape:
    """Shape of a network: ``dim`` (d) features of square images, and the normalisation, if any."""

    dim: int
    channels: int
    image_size: int
    norm: Norm = Norm.BATCH

    @property
    def is_small(self) -> bool:
        """True if a network for photographs must reduce resolution late, to keep pixels of a small image."""
        return self.image_size <= SMALL_SIDE

    def check_side(self, name: str, least: int, advice: str = "") -> None:
        """Raise :class:`ModelError` for images of fewer than ``least`` pixels a side."""
        side = self.image_size
        if side < least:
            raise ModelError(
                f"{name} needs images of at least {least}×{least} pixels, not {side}×{side}{advice}"
            )


SMALL_CNN, FEDPC_CNN, TANH_CNN, SCATTERNET = "small-cnn", "fedpc-cnn", "tanh-cnn", "scatternet"
MLP = "mlp"
MLP_HIDDEN = 64
"""Width of the first layer of :func:`mlp`."""
FEDPC_HIDDEN = 384
"""Width of the layer before the embedding in :func:`fedpc_cnn`."""


def small_cnn(shape: Shape) -> nn.Module:
    """Build two 3×3 convolutions (32 and 64 channels), each with ReLU and 2×2 max-pooling; linear to d; ReLU.

    Images have at least 4 pixels a side, such as digits of 8×8 or 28×28; :class:`secure_client.errors.ModelError` for
    smaller images.
    """
    shape.check_side(SMALL_CNN, 4)
    return nn.Sequential(
        nn.Conv2d(shape.channels, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (shape.image_size // 4) ** 2, shape.dim),
        nn.ReLU(),
    )


def fedpc_cnn(shape: Shape) -> nn.Module:
    """Build FedPC's network: two 5×5 convolutions of 64 channels, each ReLU and 2×2 max-pooling; linear to 384 and d.

    A ReLU follows each linear layer of the extractor. The paper's d is 192: agree on ``dim = 192`` for its network of
    1600 → 384 → 192 on images of 32×32, 1024 → 384 → 192 on 28×28. No padding, so an image has at least 16 pixels a
    side; :class:`secure_client.errors.ModelError` for a smaller image.
    """
    shape.check_side(FEDPC_CNN, 16, f"; use {SMALL_CNN}, or a larger image_size")
    side = ((shape.image_size - 4) // 2 - 4) // 2  # after two convolutions and two poolings
    return nn.Sequential(
        nn.Conv2d(shape.channels, 64, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * side**2, FEDPC_HIDDEN),
        nn.ReLU(),
        nn.Linear(FEDPC_HIDDEN, shape.dim),
        nn.ReLU(),
    )


def tanh_cnn(shape: Shape) -> nn.Module:
    """Build a network for DP-SGD: few parameters, bounded activations (Papernot et al. 2021, MNIST network).

    Convolutions of 16 channels (8×8, padding 3) and of 32 (4×4), both of stride 2, each followed by tanh and a 2×2
    max-pooling of stride 1; linear to d (32 in the paper); ReLU, where the paper has tanh. Images have at least 16
    pixels a side; :class:`secure_client.errors.ModelError` for smaller images.
    """
    shape.check_side(TANH_CNN, 16, f"; use {SMALL_CNN}, or a larger image_size")
    side = (shape.image_size // 2 - 1 - 4) // 2  # after a convolution of stride 2, a pooling, and both again
    return nn.Sequential(
        nn.Conv2d(shape.channels, 16, kernel_size=8, stride=2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, kernel_size=4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(32 * side**2, shape.dim),
        nn.ReLU(),
    )


def scatternet(shape: Shape) -> nn.Module:
    """Build a network for DP-SGD without public data: fixed scattering coefficients; linear to d; ReLU.

    Tramèr and Boneh 2021: coefficients are normalised in groups of three of a channel's 81 paths, each image by itself,
    whatever ``norm`` is agreed. In the paper the classifier follows the coefficients directly; here it follows d
    features. Images have at least 8 pixels a side; :class:`secure_client.errors.ModelError` for smaller images.
    """
    shape.check_side(SCATTERNET, 2 * FACTOR)
    paths = PATHS * shape.channels
    return nn.Sequential(
        Scattering(shape.image_size),
        # Of each image by itself: statistics of a batch would let one record change another's gradient.
        nn.GroupNorm(paths // 3, paths, affine=False),
        nn.Flatten(),
        nn.Linear(paths * (shape.image_size // FACTOR) ** 2, shape.dim),
        nn.ReLU(),
    )


def mlp(inputs: int, dim: int) -> nn.Module:
    """Build two linear layers, of :data:`MLP_HIDDEN` units and d, each with ReLU, for vectors (B, ``inputs``)."""
    return nn.Sequential(nn.Linear(inputs, MLP_HIDDEN), nn.ReLU(), nn.Linear(MLP_HIDDEN, dim), nn.ReLU())


NETWORKS: Mapping[str, Callable[[Shape], nn.Module]] = MappingProxyType(
    {SMALL_CNN: small_cnn, FEDPC_CNN: fedpc_cnn, TANH_CNN: tanh_cnn, SCATTERNET: scatternet}
)
"""This module's networks of images by name."""
