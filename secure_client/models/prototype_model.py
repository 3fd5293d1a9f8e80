"""Interface of a site's model, the built-in models, and models from a site's own code by ``module:function``.

A model splits into ``features(x) -> (B, d)``, whose class means are the prototypes, and ``classifier(z) ->
(B, K)``.
"""

from __future__ import annotations

import copy
import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from agreement import Norm
from agreement.sections.training import IMAGE_MODELS
from algorithms.losses import Outputs
from secure_client.errors import ModelError
from secure_client.models.backbones import MLP, NETWORKS, Shape, mlp
from secure_client.user_code import call_function, describe_failure, describe_value, load_function


def _photo_network(name: str, shape: Shape) -> nn.Module:
    """Build a network of :mod:`secure_client.models.photo_networks`, the only ones that import torchvision."""
    from secure_client.models.photo_networks import BUILDERS  # noqa: PLC0415 (torchvision takes seconds to import)

    return BUILDERS[name](shape)


BACKBONES: Mapping[str, Callable[[Shape], nn.Module]] = MappingProxyType(
    {name: NETWORKS.get(name, partial(_photo_network, name)) for name in IMAGE_MODELS}
)
"""Every built-in network of images by name."""


class PrototypeModel(nn.Module):
    """Contract of a model: an embedding of d features, and a classifier on the embedding."""

    classifier: nn.Module

    @abstractmethod
    def features(self, inputs: Tensor) -> Tensor:
        """Return the embedding, float (B, d)."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits, float (B, K)."""
        return cast("Tensor", self.classifier(compute_features(self, inputs)))

    def outputs(self, inputs: Tensor) -> Outputs:
        """Return all outputs that an objective reads; a model of several branches runs its backbone once."""
        features = compute_features(self, inputs)
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


def compute_outputs(model: PrototypeModel, inputs: Tensor) -> Outputs:
    """Return a model's outputs for inputs (B, …); the model need not derive from :class:`PrototypeModel`."""
    kind = type(model)
    outputs = kind.outputs if issubclass(kind, PrototypeModel) else PrototypeModel.outputs
    return outputs(model, inputs)


def compute_features(model: PrototypeModel, inputs: Tensor) -> Tensor:
    """Return ``features(inputs)``; raise :class:`ModelError` for anything but (B, d) of float32.

    Simulations may also compute in float64 or bfloat16.

    Networks with further outputs in training (Inception's) return a tuple there.
    """
    features: object = model.features(inputs)
    if (
        isinstance(features, Tensor)
        and features.ndim == 2
        and features.dtype in {torch.float32, torch.float64, torch.bfloat16}
    ):
        return features
    raise ModelError(
        f"the model's features(x) gives {describe_value(features)} in {'train' if model.training else 'eval'}() mode,"
        " not a tensor of shape (B, d) and dtype float32: return the embedding alone, a row of d numbers for each"
        " record"
    )


def copy_model(model: PrototypeModel) -> PrototypeModel:
    """Return a copy of the model; raise :class:`ModelError` for one that cannot be copied."""
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise describe_failure(ModelError, "a copy of the model, which copy.deepcopy makes", error) from error


def seed_torch(seed: int) -> None:
    """Seed torch's generators as ``torch.manual_seed`` does, which without a GPU formats the stack of every call."""
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


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

    ``spec`` is one of :data:`BACKBONES`, or ``mlp`` for rows of ``inputs`` numbers,
    which get a linear classifier; or ``module:function``, called with ``num_classes=`` and ``dim=``, which returns a
    module with ``features`` and ``classifier``, or a pair (backbone, classifier) of modules. ``norm`` is the
    normalisation of a built-in network that has any. The same seed gives every site the same initial model, as
    prototypes must be comparable, provided that a site's own function draws from torch's generator only and that all
    sites run the same versions of torch and torchvision.

    Raises :class:`ModelError` for an unknown name, another return value, too small an image, and parameters of a site's
    own model that are not finite float32 numbers on the CPU or of which none trains;
    :class:`secure_client.errors.PluginError` when the function cannot be loaded or called.
    """
    # Prototypes are averaged and compared across sites, so that all sites begin in one feature space.
    with torch.random.fork_rng(devices=[]):
        seed_torch(seed)
        if spec in BACKBONES:
            backbone = BACKBONES[spec](Shape(dim, channels, image_size, norm))
            return SplitModel(backbone, nn.Linear(dim, classes))
        if spec == MLP and inputs:
            return SplitModel(mlp(inputs, dim), nn.Linear(dim, classes))
        if ":" in spec:
            function = load_function(spec, "model")
            adopted = _adopt(call_function(function, spec, num_classes=classes, dim=dim), spec)
            _check_initial(adopted, spec)
            return adopted
    if spec == MLP:
        raise ModelError(f"{MLP} takes rows of a table: agree on [table], or name another model")
    raise ModelError(f"no model is called {spec!r}; use {', '.join(BACKBONES)}, {MLP} or module:function")


def hash_weights(state: Mapping[str, Tensor]) -> str:
    """SHA-256 in hex of a model's parameters and buffers on the CPU: names, types, shapes and bytes, by name."""
    # By name, since the order of a state follows from that in which modules were registered.
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
    # A pass over a copy: a model that writes into its inputs would change the site's data, batch after batch.
    passed = inputs.clone()
    with _in_mode(model, training=False), torch.no_grad():
        _check_outputs(model, passed, classes=classes, dim=dim)
    if not torch.allclose(passed, inputs, rtol=0.0, atol=0.0, equal_nan=True):
        raise ModelError("the model changes its inputs in place: let it compute on a copy, x = x.clone()")


def check_training(model: PrototypeModel, inputs: Tensor, *, classes: int, dim: int) -> None:
    """Compute outputs and gradients in ``train()`` mode, from two copies of the first of the inputs (B, …).

    Raises :class:`ModelError` unless training could use them. Mode, buffers and torch's generators are restored.
    """
    # Two copies, since batch normalisation refuses one sample; its statistics of the trial are undone afterwards.
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    devices = [inputs.device] if inputs.device.type == "cuda" else []
    pair = torch.cat([inputs[:1], inputs[:1]])
    try:
        with _in_mode(model, training=True), torch.enable_grad(), torch.random.fork_rng(devices):
            outputs = _check_outputs(model, pair, classes=classes, dim=dim)
            if not outputs.logits.requires_grad:
                raise ModelError(
                    "no parameter that trains has a part in the model's classifier(z): remove no_grad() and detach()"
                )
            total = outputs.logits.sum() + outputs.features.sum()
            try:
                torch.autograd.grad(total, parameters, allow_unused=True)
            except Exception as error:
                raise describe_failure(ModelError, "the gradients of the model's outputs", error) from error
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name in buffers:
                    buffer.copy_(buffers[name])


@contextmanager
def _in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    before = model.training
    model.train(training)
    try:
        yield
    finally:
        model.train(before)


def _check_outputs(model: PrototypeModel, inputs: Tensor, *, classes: int, dim: int) -> Outputs:
    """Return the model's outputs for inputs (B, …); :class:`ModelError` unless they are floats (B, d) and (B, K)."""
    try:
        outputs = compute_outputs(model, inputs)
        features, logits = outputs[:2]
    except ModelError:
        raise
    except BaseException as error:
        mode = "train" if model.training else "eval"
        what = f"the model, in {mode}() mode for inputs of shape {tuple(inputs.shape)}"
        raise describe_failure(ModelError, what, error) from error
    dtype = torch.float64 if inputs.dtype == torch.float64 else torch.float32  # a site's data are float32
    _check_output("features(x)", features, (len(inputs), dim), dtype, "d, the agreed dim")
    _check_output("classifier(z)", logits, (len(inputs), classes), dtype, "K, the number of agreed classes")
    return outputs


def has_fixed_features(model: PrototypeModel, inputs: Tensor) -> bool:
    """Return True if no parameter that trains has a part in the features of inputs (B, …). The mode is restored.

    Limit: features of which only some components train count as features that train.
    """
    with _in_mode(model, training=False), torch.enable_grad():
        return not compute_outputs(model, inputs).features.requires_grad


def _check_output(name: str, value: object, shape: tuple[int, int], dtype: torch.dtype, meaning: str) -> None:
    if not isinstance(value, Tensor) or value.shape != shape or value.dtype != dtype:
        raise ModelError(
            f"the model's {name} gives {describe_value(value)}, not a tensor of shape {shape} and dtype {dtype}: "
            f"{shape[1]} is {meaning}"
        )


def _check_initial(model: PrototypeModel, spec: str) -> None:
    """Raise :class:`ModelError`, which names the tensor, for a model that cannot be the initial one of every site."""
    for kind, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, value in tensors:
            place = f"{spec}: the model's {kind} {name}"
            if is_lazy(value):
                raise ModelError(
                    f"{place} has no size yet (a lazy module): give its size, so that every site draws the same numbers"
                )
            if value.device.type != "cpu":
                raise ModelError(
                    f"{place} is on {value.device}: make the model on the CPU; the setting device moves it"
                )
            if kind == "parameter" and value.dtype != torch.float32:
                raise ModelError(f"{place} is {value.dtype}: return model.float(), since inputs are float32")
            if not bool(value.isfinite().all()):
                raise ModelError(f"{place} has numbers that are NaN or infinite")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ModelError(f"{spec}: no parameter of the model trains: set requires_grad on those that should")


def _adopt(built: object, spec: str) -> PrototypeModel:
    match built:
        case nn.Module() if all(callable(getattr(built, half, None)) for half in ("features", "classifier")):
            return cast("PrototypeModel", built)  # the module keeps the contract without deriving from it
        case (nn.Module() as backbone, nn.Module() as classifier):
            return SplitModel(backbone, classifier)
    raise ModelError(
        f"{spec}: returned {describe_value(built)}; return a module with features(x) and classifier(z),"
        " or the pair (backbone, classifier)"
    )
