"""Sections of the agreement on local training: preprocessing, models, optimisers, and the delays of answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from agreement.toml_loading import Count, NotNegative, Positive, Section, nearest

IMAGE_MODELS = (
    *("small-cnn", "fedpc-cnn", "tanh-cnn", "scatternet"),
    *("resnet10", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152"),
    *("googlenet", "mobilenet-v2"),
)
TABLE_MODELS = ("mlp",)
BUILT_IN_MODELS = (*IMAGE_MODELS, *TABLE_MODELS)


def model_spec(value: str) -> str:
    """Return the value if it names a built-in model or has the form ``module:function``; else raise ``ValueError``."""
    if value in BUILT_IN_MODELS or re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", value):
        return value
    raise ValueError(
        f"unknown model {value!r}, not of the form module:function{nearest(value, BUILT_IN_MODELS)}"
    )


ModelSpec = Annotated[
    str, BeforeValidator(lambda value: model_spec(value) if isinstance(value, str) else value)
]


class PreprocessingSection(Section):
    """Preprocessing of an image into the model's input: square, scaled to [0, 1], normalised."""

    image_size: Annotated[int, Field(ge=1, le=4096)]
    """Height and width of the model's input, in pixels."""
    channels: Annotated[int, Field(ge=1, le=64)]
    """Colour channels of the model's input."""
    mean: tuple[Annotated[float, Field(allow_inf_nan=False)], ...]
    """Mean that is subtracted, one for each channel, on a scale of 0 to 1."""
    std: tuple[Positive, ...]
    """Deviation that is divided by, one for each channel."""

    @model_validator(mode="after")
    def _one_for_each_channel(self) -> Self:
        if not len(self.mean) == len(self.std) == self.channels:
            raise ValueError(f"mean and std need one number for each of the {self.channels} channels")
        return self


class Optimiser(StrEnum):
    """Optimiser of local training. Its state ends with the round."""

    SGD = "sgd"
    ADAM = "adam"
    """Without ``momentum``, which is refused: Adam has its own."""


class Norm(StrEnum):
    """Normalisation in the built-in networks that have any."""

    BATCH = "batch"
    """Over the batch in training, afterwards by running statistics."""
    GROUP = "group"
    """Each sample by itself, so that per-sample gradients exist and a batch may be one sample."""


class TrainingSection(Section):
    """Local training, the same at every site. ``init_seed`` makes the common initial model.

    The defaults are FedPC's schedule (table 3 of its paper). Adam's steps do not depend on the loss's scale, which
    differs between methods.

    ``momentum`` is SGD's. With Adam it is refused, and is no part of the agreement's text and hash.
    With ``pretrained_sha256`` every site that uses the agreed ``model`` begins with the extractor in a file of that
    SHA-256 (hex), whose place its own file tells.
    """

    model: ModelSpec = "small-cnn"
    """Built-in network, or `module:function` of your own."""
    norm: Norm = Norm.BATCH
    """Normalisation in built-in networks; `[privacy]` refuses `batch`."""
    pretrained_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """SHA-256 of pretrained weights, which each site's `pretrained` locates."""
    init_seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the common initial model; change it when a run is repeated."""
    optimiser: Optimiser = Optimiser.ADAM
    """Optimiser of local training; its state ends with the round."""
    lr: Positive = 0.001
    """Learning rate; with SGD 0.01 unless given."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Momentum of SGD; refused with Adam."""
    weight_decay: NotNegative = 1e-5
    """Weight decay."""
    batch_size: Count = 10
    """Records in a batch; under DP-SGD the expected number."""
    local_epochs: Annotated[int, Field(ge=1, le=1_000_000)] = 5
    """Epochs of local training in a round."""
    frozen_extractor: bool = False
    """Train the classifier alone, so that prototypes never change; `[privacy]` has its own `extractor`."""

    @model_validator(mode="before")
    @classmethod
    def _sgd_has_its_own_rate(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("optimiser") == Optimiser.SGD:
            return {"lr": 0.01, **given}
        return given

    @model_validator(mode="after")
    def _momentum_is_of_sgd(self) -> Self:
        if self.optimiser is Optimiser.ADAM and "momentum" in self.model_fields_set:
            raise ValueError(
                "momentum is a setting of SGD, and Adam has its own: remove momentum, or set "
                "optimiser = 'sgd'"
            )
        return self

    @model_serializer(mode="wrap")
    def _only_what_counts(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Drop a momentum that the optimiser does not use, so that the written table can be read back."""
        table: dict[str, Any] = written(self)
        if self.optimiser is Optimiser.ADAM:
            table.pop("momentum", None)
        return table


Seconds = Annotated[float, Field(gt=0, le=30 * 86_400)]


class TimingSection(Section):
    """Delays of a site's answers, which hide how long the site took to train, decrypt and encrypt.

    Under every protection except `plain`, an answer that depends on data or on a result leaves at a fixed delay after
    its request. The site measures its first answer in each phase, before it takes any result. From then on it uses
    2 to 2.9 times that, but at most the phase's deadline here. The coordinator's own `[deadlines]` must be longer;
    twice as long leaves a restarted site the time for a second try. Limit: an answer that takes longer than its delay
    shows how long it took. Simulations have no delays.
    """

    answers_show_duration: bool = False
    """Send answers as soon as they are ready, which shows how long training and decryption took."""
    training_deadline: Seconds = 3600.0
    """Longest delay of the answer that follows local training, in seconds; `train` of the coordinator is longer."""
    answer_deadline: Seconds = 300.0
    """Longest delay of the other answers, in seconds; `values` and `result` of the coordinator are longer."""
