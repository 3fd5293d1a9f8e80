"""Interface of a site's model, the built-in models, and models from a site's own code by ``module:function``.

A model splits into ``features(x) -> (B, d)``, whose class means are the prototypes, and ``classifier(z) ->
(B, K)``.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from agreement import Norm
from algorithms.model_outputs import Outputs
from secure_client.errors import ModelError
from secure_client.models.backbones import BACKBONES, MLP, SMALL_CNN, mlp
from secure_client.models.image_shape import Shape
from secure_client.user_code import call_function, load_function


class PrototypeModel(nn.Module):
    """Contract of a model: an embedding of d features, and a classifier on the embedding."""

    classifier: nn.Module

    @abstractmethod
    def features(self, inputs: Tensor) -> Tensor:
        """Return the embedding, float (B, d)."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits, float (B, K)."""
        return cast("Tensor", self.classifier(self.features(inputs)))

    def outputs(self, inputs: Tensor) -> Outputs:
        """Return all outputs that an objective reads; a model of several branches runs its backbone once."""
        features = self.features(inputs)
        return Outputs(features, self.classifier(features))


class SplitModel(PrototypeModel):
    """Model of a backbone with outputs (B, d) and a classifier on them, both unchanged."""

    def __init__(self, backbone: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.classifier = classifier

    def features(self, inputs: Tensor) -> Tensor:
        """Return the backbone's output, float (B, d)."""
        return cast("Tensor", self.backbone(inputs))


class Filled(PrototypeModel):
    """Model that computes in batches of one size, so that the number of records affects no record's features.

    A matrix product over few records rounds differently from one over many. Copies of a batch's first record fill the
    batch up to ``size``.
    """

    def __init__(self, model: PrototypeModel, size: int) -> None:
        super().__init__()
        self.inner, self._size = model, size

    def features(self, inputs: Tensor) -> Tensor:
        """Return the model's own features, of up to ``size`` inputs."""
        return self.outputs(inputs).features

    def outputs(self, inputs: Tensor) -> Outputs:
        """Return the model's outputs, of up to ``size`` inputs."""
        count = len(inputs)
        copies = inputs[:1].expand(self._size - count, *inputs.shape[1:])
        given = outputs_of(self.inner, torch.cat([inputs, copies]))
        return Outputs(*(None if each is None else each[:count] for each in given))  # type: ignore[arg-type]


def outputs_of(model: PrototypeModel, inputs: Tensor) -> Outputs:
    """Return a model's outputs for inputs (B, …); the model need not derive from :class:`PrototypeModel`."""
    kind = type(model)
    outputs = kind.outputs if issubclass(kind, PrototypeModel) else PrototypeModel.outputs
    return outputs(model, inputs)


def small_cnn(classes: int, dim: int, channels: int, image_size: int) -> SplitModel:
    """:func:`secure_client.models.backbones.small_cnn` and a linear classifier."""
    return _with_classifier(SMALL_CNN, Shape(dim, channels, image_size), classes)


def build_model(
    spec: str,
    *,
    classes: int,
    dim: int,
    channels: int,
    image_size: int,
    seed: int,
    norm: Norm = Norm.BATCH,
    inputs: int = 0,
) -> PrototypeModel:
    """Return the model that ``spec`` names, on the CPU, with weights that follow from ``seed`` alone.

    ``spec`` is one of :data:`secure_client.models.backbones.BACKBONES`, or ``mlp`` for rows of ``inputs`` numbers,
    which get a linear classifier; or ``module:function``, called with ``num_classes=`` and ``dim=``, which returns a
    module with ``features`` and ``classifier``, or a pair (backbone, classifier) of modules. ``norm`` is the
    normalisation of a built-in network that has any. The same seed gives every site the same initial model, as
    prototypes must be comparable, provided that a site's own function draws from torch's generator only and that all
    sites run the same versions of torch and torchvision.

    Raises :class:`ModelError` for an unknown name, another return value or too small an image,
    :class:`secure_client.errors.PluginError` when the function cannot be loaded or called.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if spec in BACKBONES:
            return _with_classifier(spec, Shape(dim, channels, image_size, norm), classes)
        if spec == MLP and inputs:
            return SplitModel(mlp(inputs, dim), nn.Linear(dim, classes))
        if ":" in spec:
            function = load_function(spec, "model")
            return _adopt(call_function(function, spec, num_classes=classes, dim=dim), spec)
    if spec == MLP:
        raise ModelError(f"{MLP} takes rows of a table: agree on [table], or name another model")
    raise ModelError(f"no model is called {spec!r}; use {', '.join(BACKBONES)}, {MLP} or module:function")


def _with_classifier(name: str, shape: Shape, classes: int) -> SplitModel:
    return SplitModel(BACKBONES[name](shape), nn.Linear(shape.dim, classes))


def weights_hash(state: Mapping[str, Tensor]) -> str:
    """SHA-256 in hex of a model's parameters and buffers on the CPU: names, types, shapes and bytes, by name."""
    digest = hashlib.sha256()
    for name in sorted(state):
        value = state[name].contiguous()
        digest.update(f"{name}\0{value.dtype}\0{tuple(value.shape)}\0".encode())
        digest.update(value.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def check_model(model: PrototypeModel, inputs: Tensor, *, classes: int, dim: int) -> None:
    """Run a batch of inputs (B, …) through the model; :class:`ModelError` unless (B, d) and (B, K) come out.

    The model's mode is restored.
    """
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            features, logits = outputs_of(model, inputs)[:2]
    except Exception as error:
        raise ModelError(
            f"the model fails on inputs of shape {tuple(inputs.shape)} ({type(error).__name__}: {error}); give "
            "the model the data's channels and image size"
        ) from error
    finally:
        model.train(training)
    _check_output("features(x)", features, (len(inputs), dim), "d, the agreed dim")
    _check_output("classifier(z)", logits, (len(inputs), classes), "K, the number of agreed classes")


def has_fixed_features(model: PrototypeModel, inputs: Tensor) -> bool:
    """Return True if no parameter that trains has a part in the features of inputs (B, …). The mode is restored.

    Limit: features of which only some components train count as features that train.
    """
    training = model.training
    model.eval()
    try:
        with torch.enable_grad():
            return not outputs_of(model, inputs).features.requires_grad
    finally:
        model.train(training)


def _check_output(name: str, value: object, shape: tuple[int, int], meaning: str) -> None:
    if not isinstance(value, Tensor) or value.shape != shape or not value.is_floating_point():
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ModelError(
            f"the model's {name} gives {got}, not floats of shape {shape}: {shape[1]} is {meaning}"
        )


def _adopt(built: object, spec: str) -> PrototypeModel:
    """Return a site's module or pair of modules as a :class:`PrototypeModel`."""
    match built:
        case nn.Module() if _has_both_halves(built):
            return cast("PrototypeModel", built)  # the module keeps the contract without deriving from it
        case (nn.Module() as backbone, nn.Module() as classifier):
            return SplitModel(backbone, classifier)
    raise ModelError(
        f"{spec} returned {type(built).__name__}; return a module with features(x) and classifier(z),"
        " or the pair (backbone, classifier)"
    )


def _has_both_halves(module: nn.Module) -> bool:
    return all(callable(getattr(module, name, None)) for name in ("features", "classifier"))
