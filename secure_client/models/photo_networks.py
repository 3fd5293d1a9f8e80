"""Networks of torchvision for photographs, as extractors of d features.

Small images get another stem, normalisation can be chosen, and no operation works in place, as the hooks for per-sample
gradients require. Importing torchvision takes seconds; only this module's networks import it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.googlenet import GoogLeNet, Inception, InceptionAux
from torchvision.models.mobilenetv2 import InvertedResidual, MobileNetV2
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet
from torchvision.ops.misc import Conv2dNormActivation

from agreement import Norm
from secure_client.models.backbones import Shape

MOST_GROUPS, FEWEST_CHANNELS = 32, 4
"""Bounds of group normalisation: groups in a layer, and channels in a group."""


class _Basic(BasicBlock):  # type: ignore[misc]  # torchvision ships no types
    """torchvision's block of two convolutions, its sum out of place."""

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.relu(self.bn1(self.conv1(inputs)))
        return _add_shortcut(self, self.bn2(self.conv2(hidden)), inputs)


class _Bottleneck(Bottleneck):  # type: ignore[misc]  # torchvision ships no types
    """torchvision's block of three convolutions, its sum out of place."""

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.relu(self.bn1(self.conv1(inputs)))
        hidden = self.relu(self.bn2(self.conv2(hidden)))
        return _add_shortcut(self, self.bn3(self.conv3(hidden)), inputs)


def _add_shortcut(block: Any, residual: Tensor, inputs: Tensor) -> Tensor:
    """Add without changing the operands: torchvision adds in place to a hook's output, which torch refuses."""
    shortcut = inputs if block.downsample is None else block.downsample(inputs)
    return cast("Tensor", block.relu(residual + shortcut))


def resnet(block: type[nn.Module], layers: tuple[int, int, int, int], shape: Shape) -> nn.Module:
    """Return a ResNet; ``layers`` counts the blocks of its four stages.

    For images of up to 64 pixels a side the network begins with a 3×3 convolution of stride 1 and no pooling. The
    features are the pooled output of the last block when d is the block's width (512, or 2048 from ResNet50 on); for
    another d a linear layer and a ReLU follow.
    """
    network = ResNet(block, list(layers), norm_layer=_norm_layer(shape.norm))
    # The published stem shrinks by 4 and the stages by 8: of a 32×32 image a single place would be left.
    if shape.is_small:
        network.conv1 = nn.Conv2d(shape.channels, 64, kernel_size=3, padding=1, bias=False)
        network.maxpool = nn.Identity()
    elif shape.channels != 3:
        network.conv1 = nn.Conv2d(shape.channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
    network.fc = _to_dim(network.fc.in_features, shape.dim)
    return _out_of_place(network)


class _ConvNormReLU(nn.Module):
    """A convolution, its normalisation and a ReLU that is not in place, named as in torchvision's GoogLeNet."""

    def __init__(self, inputs: int, outputs: int, *, norm: Norm, **settings: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, bias=False, **settings)  # type: ignore[arg-type]  # no bool or str
        self.bn = _norm_layer(norm, eps=1e-3)(outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.relu(self.bn(self.conv(inputs)))


def googlenet(shape: Shape) -> nn.Module:
    """Return torchvision's GoogLeNet (1024 wide) without auxiliary classifiers and dropout; linear to d and ReLU.

    For images of up to 64 pixels a side the network begins with a 3×3 convolution of stride 1 and no pooling.
    Convolutions are initialised as in torchvision's ResNets, since torchvision has announced a change of GoogLeNet's
    own initialisation (standard deviation 0.01). Images have at least 4 pixels a side;
    :class:`secure_client.errors.ModelError` for smaller images.
    """
    shape.check_side("googlenet", 4)
    block = partial(_ConvNormReLU, norm=shape.norm)
    blocks = [block, partial(Inception, conv_block=block), InceptionAux]
    network = GoogLeNet(aux_logits=False, init_weights=False, blocks=blocks)
    if shape.is_small:
        network.conv1, network.maxpool1 = block(shape.channels, 64, kernel_size=3, padding=1), nn.Identity()
    elif shape.channels != 3:
        network.conv1 = block(shape.channels, 64, kernel_size=7, stride=2, padding=3)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    network.dropout = nn.Identity()
    network.fc = _to_dim(network.fc.in_features, shape.dim)
    return _out_of_place(network)


def mobilenet_v2(shape: Shape) -> nn.Module:
    """Return torchvision's MobileNet v2 (1280 wide) without its dropout; linear to d and ReLU.

    For images of up to 64 pixels a side the first convolution and the first stage that would halve the image do not.
    """
    first = 1 if shape.is_small else 2
    stages = [
        # expansion, channels, blocks, stride of the first
        *([1, 16, 1, 1], [6, 24, 2, first], [6, 32, 3, 2], [6, 64, 4, 2]),
        *([6, 96, 3, 1], [6, 160, 3, 2], [6, 320, 1, 1]),
    ]
    network = MobileNetV2(inverted_residual_setting=stages, norm_layer=_norm_layer(shape.norm))
    stem = nn.Conv2d(shape.channels, 32, kernel_size=3, stride=first, padding=1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out")
    network.features[0][0] = stem
    network.classifier = _to_dim(network.last_channel, shape.dim)
    return _out_of_place(network)


def make_group_norm(channels: int) -> nn.GroupNorm:
    """Return group normalisation in the largest number of groups, at most 32, that divides the channels.

    A group has at least 4 channels: a group of one, at a place where the image is a single pixel, would always be 0.
    """
    fitting = [n for n in range(1, MOST_GROUPS + 1) if channels % n == 0 and channels // n >= FEWEST_CHANNELS]
    return nn.GroupNorm(max(fitting, default=1), channels)


def _norm_layer(norm: Norm, eps: float = 1e-5) -> Callable[[int], nn.Module]:
    return partial(nn.BatchNorm2d, eps=eps) if norm is Norm.BATCH else make_group_norm


def _to_dim(width: int, dim: int) -> nn.Module:
    """Map features after a ReLU to d features; ``width`` = d needs no layer."""
    return nn.Identity() if width == dim else nn.Sequential(nn.Linear(width, dim), nn.ReLU())


def _out_of_place(network: Any) -> nn.Module:
    # Hooks for per-sample gradients need each activation as the layer got it.
    for module in network.modules():
        if hasattr(module, "inplace"):
            module.inplace = False
    return cast("nn.Module", network)


BUILDERS: Mapping[str, Callable[[Shape], nn.Module]] = {
    "resnet10": partial(resnet, _Basic, (1, 1, 1, 1)),
    "resnet18": partial(resnet, _Basic, (2, 2, 2, 2)),
    "resnet34": partial(resnet, _Basic, (3, 4, 6, 3)),
    "resnet50": partial(resnet, _Bottleneck, (3, 4, 6, 3)),
    "resnet101": partial(resnet, _Bottleneck, (3, 4, 23, 3)),
    "resnet152": partial(resnet, _Bottleneck, (3, 8, 36, 3)),
    "googlenet": googlenet,
    "mobilenet-v2": mobilenet_v2,
}
"""The networks of this module by name."""
CONTAINERS = frozenset(
    {ResNet, BasicBlock, Bottleneck, _Basic, _Bottleneck}
    | {MobileNetV2, InvertedResidual, Conv2dNormActivation}
    | {GoogLeNet, Inception, _ConvNormReLU}
)
"""Networks whose ``forward`` only passes tensors between layers and applies functions of single samples."""
CONCATENATING = frozenset({GoogLeNet, Inception})
"""Those that concatenate images' channels."""
LAST_ON_IMAGES: Mapping[type[nn.Module], str] = {ResNet: "avgpool", MobileNetV2: "features"}
"""Those that flatten images themselves, with the name of their last layer whose output has a place for each pixel."""


@dataclass(frozen=True)
class PublishedLayout:
    """Tensor names, as in torchvision, at which published weights may differ from this package's network.

    ``stem`` is the first convolution's weight, ``head`` the prefix of the last layer: in torchvision a classifier of
    other classes, here the layer to d features. Names that begin with one of ``extra`` are missing in this package's
    network.
    """

    stem: str
    head: str
    extra: tuple[str, ...] = ()


def find_published_layout(network: nn.Module) -> PublishedLayout | None:
    """Return the layout of a network of torchvision; None for other networks."""
    match network:
        case ResNet():
            return PublishedLayout("conv1.weight", "fc.")
        case GoogLeNet():
            return PublishedLayout("conv1.conv.weight", "fc.", ("aux1.", "aux2."))
        case MobileNetV2():
            return PublishedLayout("features.0.0.weight", "classifier.")
    return None
