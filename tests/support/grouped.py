"""FedPC over the small federation's data: one linear layer with a ReLU, four sites in a group."""

from __future__ import annotations

from agreement import Agreement, AveragingSection, MaskingSection, Method, Protection
from tests.support.small import DIM, HOLDINGS, short_training, small_agreement

EVERYONE = tuple(HOLDINGS)
TEN = tuple(f"clinic-{letter}" for letter in "abcdefghij")
"""A larger group; those beyond the four have whatever data a test gives them."""
PARAMETERS = 64 * DIM + DIM
"""Number of parameters of the layer that is averaged."""


def grouped_agreement(protection: Protection = Protection.MASKED, **changes: object) -> Agreement:
    """FedPC; at least three sites and three holders, so that a group of four can lose one."""
    fields = {
        **dict(small_agreement(Protection.PLAIN)),
        "method": Method.FEDPC,
        "protection": protection,
        "averaging": AveragingSection(parameters=PARAMETERS),
        "masking": MaskingSection(ring_bits=64),
        "training": short_training("tests.support.tiny_models:build_relu"),
    }
    return Agreement.model_validate({**fields, **changes})
