"""Models at a site: what one must offer, the two that are built in, and a site's own by ``module:function``.

A model splits into ``features(x) -> (B, d)``, whose class means are the prototypes, and ``classifier(z) ->
(B, K)``.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import cast

import torch
import torchvision.models
from torch import Tensor, nn

from secure_client.errors import ModelError
from secure_client.plugins import call_function, load_function

SMALL_CNN = "small-cnn"
RESNET18 = "resnet18"
FEDPC_CNN = "fedpc-cnn"
BUILT_IN = (SMALL_CNN, RESNET18, FEDPC_CNN)
FEDPC_HIDDEN = 384
"""Width of the layer before the embedding in :func:`fedpc_cnn`."""


class PrototypeModel(nn.Module):
    """The contract: an embedding of d features, and a classifier on it."""

    classifier: nn.Module

    @abstractmethod
    def features(self, inputs: Tensor) -> Tensor:
        """The embedding, float (B, d)."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits, float (B, K)."""
        return cast("Tensor", self.classifier(self.features(inputs)))


class SplitModel(PrototypeModel):
    """A backbone that gives (B, d) and a classifier that takes it, as they are."""

    def __init__(self, backbone: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.classifier = classifier

    def features(self, inputs: Tensor) -> Tensor:
        """The backbone's output, float (B, d)."""
        return cast("Tensor", self.backbone(inputs))


def small_cnn(classes: int, dim: int, channels: int, image_size: int) -> SplitModel:
    """Two 3×3 convolutions (32 and 64 channels), each ReLU'd and 2×2 max-pooled; linear to d; ReLU.

    For square images of at least 4 pixels a side, such as digits of 8×8 or 28×28.
    """
    if image_size < 4:
        raise ModelError(f"{SMALL_CNN} needs images of at least 4×4 pixels, not {image_size}×{image_size}")
    backbone = nn.Sequential(
        nn.Conv2d(channels, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (image_size // 4) ** 2, dim),
        nn.ReLU(),
    )
    return SplitModel(backbone, nn.Linear(dim, classes))


def fedpc_cnn(classes: int, dim: int, channels: int, image_size: int) -> SplitModel:
    """FedPC's network: two 5×5 convolutions of 64 channels, each ReLU'd and 2×2 max-pooled; linear to 384 and to d.

    Each linear layer of the extractor is ReLU'd. The paper's d is 192: agree on ``dim = 192`` for its network of
    1600 → 384 → 192 on images of 32×32, 1024 → 384 → 192 on 28×28. No padding, so an image has at least 16 pixels
    a side; :class:`ModelError` for a smaller one.
    """
    side = ((image_size - 4) // 2 - 4) // 2  # after two convolutions and two poolings
    if side < 1:
        raise ModelError(
            f"{FEDPC_CNN} needs images of at least 16×16 pixels, not {image_size}×{image_size};"
            f" use {SMALL_CNN}, or a larger image_size"
        )
    backbone = nn.Sequential(
        nn.Conv2d(channels, 64, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * side**2, FEDPC_HIDDEN),
        nn.ReLU(),
        nn.Linear(FEDPC_HIDDEN, dim),
        nn.ReLU(),
    )
    return SplitModel(backbone, nn.Linear(dim, classes))


def resnet18(classes: int, dim: int, channels: int) -> SplitModel:
    """ResNet18 with the stem for 32×32 images: a 3×3 convolution of stride 1 and no max pooling.

    The embedding is the pooled output of the last block, ReLU'd by construction, when d = 512; for another d
    a linear layer and a ReLU follow. Batch normalisation is kept: see :class:`secure_client.learner.Learner`.
    """
    network = torchvision.models.resnet18()
    network.conv1 = nn.Conv2d(channels, 64, kernel_size=3, padding=1, bias=False)
    network.maxpool = nn.Identity()
    width = network.fc.in_features
    network.fc = nn.Identity() if dim == width else nn.Sequential(nn.Linear(width, dim), nn.ReLU())
    for module in network.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False  # in place it overwrites what per-sample gradients need
    return SplitModel(network, nn.Linear(dim, classes))


def build_model(
    spec: str, *, classes: int, dim: int, channels: int, image_size: int, seed: int
) -> PrototypeModel:
    """The model that ``spec`` names, on the CPU, with weights that follow from ``seed`` alone.

    ``spec`` is ``small-cnn``, ``resnet18``, ``fedpc-cnn``, or ``module:function``, called with ``num_classes=``
    and ``dim=``; it returns a module with ``features`` and ``classifier``, or a pair (backbone, classifier) of
    modules. The same seed gives every site the same initial model, as prototypes must be comparable,
    provided that a site's own function draws from torch's generator only and that all sites run the same
    version of torch.

    Raises :class:`ModelError` for an unknown name or another return value, :class:`PluginError` when the
    function cannot be loaded or called.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if spec == SMALL_CNN:
            return small_cnn(classes, dim, channels, image_size)
        if spec == FEDPC_CNN:
            return fedpc_cnn(classes, dim, channels, image_size)
        if spec == RESNET18:
            return resnet18(classes, dim, channels)
        if ":" in spec:
            function = load_function(spec, "model")
            return _adopt(call_function(function, spec, num_classes=classes, dim=dim), spec)
    raise ModelError(f"no model is called {spec!r}; use {', '.join(BUILT_IN)} or module:function")


def check_model(model: PrototypeModel, inputs: Tensor, *, classes: int, dim: int) -> None:
    """Run a batch of inputs (B, …) through the model; :class:`ModelError` unless (B, d) and (B, K) come out.

    The model is left in the mode it was in.
    """
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            features = model.features(inputs)
            logits = model.classifier(features)
    except Exception as error:
        raise ModelError(
            f"the model fails on inputs of shape {tuple(inputs.shape)} ({type(error).__name__}: {error});"
            " make its channels and image size those of the data"
        ) from error
    finally:
        model.train(training)
    _check_output("features(x)", features, (len(inputs), dim), "d, the agreed dim")
    _check_output("classifier(z)", logits, (len(inputs), classes), "K, the number of agreed classes")


def _check_output(name: str, value: object, shape: tuple[int, int], meaning: str) -> None:
    if not isinstance(value, Tensor) or value.shape != shape or not value.is_floating_point():
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ModelError(
            f"the model's {name} gives {got}, not floats of shape {shape}: {shape[1]} is {meaning}"
        )


def _adopt(built: object, spec: str) -> PrototypeModel:
    """A site's module or pair of modules as a :class:`PrototypeModel`."""
    match built:
        case nn.Module() if _has_both_halves(built):
            return cast("PrototypeModel", built)  # it keeps the contract without deriving from it
        case (nn.Module() as backbone, nn.Module() as classifier):
            return SplitModel(backbone, classifier)
    raise ModelError(
        f"{spec} returned {type(built).__name__}; return a module with features(x) and classifier(z),"
        " or the pair (backbone, classifier)"
    )


def _has_both_halves(module: nn.Module) -> bool:
    return all(callable(getattr(module, name, None)) for name in ("features", "classifier"))
