"""Agreements with noise for the runs of this folder, and a model that they are served with."""

from __future__ import annotations

from typing import Any

from torch import nn

from agreement import (
    Agreement,
    AveragingSection,
    Extractor,
    Method,
    PrivacySection,
    Protection,
)
from secure_client.checkpoints.learner_factory import build_agreed_model
from secure_client.training.averaged_parameters import AveragedPart
from tests.conformance.grouped_runs import grouped_agreement
from tests.support.small import short_training

_PIXELS = 16
PRIVACY = PrivacySection(
    clip=3.0, noise_multiplier=0.2, min_count=2.0, release_every=2, extractor=Extractor.TRAINED
)
"""Noise for six records a class: a count moves by less than one, and features by some hundredths."""


def build(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """Return a model of one's own without statistics of batches, whose features end in a ReLU."""
    layers = (nn.AvgPool2d(2), nn.Flatten(), nn.Linear(_PIXELS, dim), nn.GroupNorm(2, dim), nn.ReLU())
    return nn.Sequential(*layers), nn.Linear(dim, num_classes)


def private_agreement(
    protection: Protection,
    method: Method,
    *,
    classes: int,
    dim: int,
    rounds: int,
    privacy: PrivacySection,
    **settings: Any,
) -> Agreement:
    """Return the agreement of :func:`grouped_agreement`, with noise."""
    training = short_training("tests.conformance.private_runs:build", batch_size=6, lr=0.05)
    base = grouped_agreement(
        protection, method=method, classes=classes, dim=dim, rounds=rounds, training=training, **settings
    )
    sizes = AveragedPart(build_agreed_model(base, training.model), method.traits.averaged).sizes
    averaging = AveragingSection(parameters=sizes[0], buffers=sizes[1])
    return Agreement.model_validate({**dict(base), "averaging": averaging, "privacy": privacy})
