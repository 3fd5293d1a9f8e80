"""Any method over the small federation's data: a layer, batch normalisation and a ReLU before the classifier."""

from __future__ import annotations

from typing import Any

from agreement import METHODS, Agreement, AveragingSection, Method, ModelPart, Protection
from secure_client.models.prototype_model import SplitModel
from secure_client.training.averaged_parameters import AveragedPart
from tests.support.small import CLASSES, DIM, short_training, small_agreement
from tests.support.tiny_models import build_normed

PARTS = {method: method.traits.averaged for method in METHODS.values()}


def sizes_of(part: ModelPart) -> tuple[int, int]:
    """Parameters and buffers of that part of the model."""
    return AveragedPart(SplitModel(*build_normed(len(CLASSES), DIM)), part).sizes


def method_agreement(method: Method, protection: Protection = Protection.PLAIN, **changes: Any) -> Agreement:
    """Return an agreement on ``method``, with at least three sites and three holders."""
    parameters, buffers = sizes_of(PARTS[method])
    fields = {
        **dict(small_agreement(Protection.PLAIN)),
        "method": method,
        "protection": protection,
        "averaging": AveragingSection(parameters=parameters, buffers=buffers),
        "training": short_training("tests.support.tiny_models:build_normed"),
    }
    return Agreement.model_validate({**fields, **changes})
