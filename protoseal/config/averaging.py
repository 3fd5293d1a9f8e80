"""What of a model is averaged, and how its sums are masked."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from protoseal.config.reading import Section

Bound = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Elements = Annotated[int, Field(ge=0, le=2**26)]


class AveragingSection(Section):
    """The part of the model that the method averages, and its bounds.

    ``parameters`` and ``buffers`` count its numbers: parameters (FedPC: outside the classifier), and floating-point
    buffers such as batch normalisation's. Write 1 for the parameters, and `protoseal client check` tells both. A site
    whose values are beyond ``parameter_bound`` or ``buffer_bound`` stops with an error before it sends any; the bounds
    make room for sums in fixed point. So does ``most_samples``, where models are weighed by sample counts: a site with
    more training samples counts as one with that many, and logs a warning as it starts.
    """

    parameters: Elements = 0
    buffers: Elements = 0
    parameter_bound: Bound = 64.0
    buffer_bound: Bound = 1e6
    most_samples: Annotated[int, Field(ge=1, le=10**9)] = 100_000

    @model_validator(mode="after")
    def _buffers_come_with_parameters(self) -> Self:
        if self.buffers and not self.parameters:
            raise ValueError("buffers without parameters: give both numbers")
        return self


class MaskingSection(Section):
    """Masked sums are taken in the ring of integers modulo 2^``ring_bits``.

    32 bits halve what is sent, and leave fewer fractional bits, which must be 16 or more.
    """

    ring_bits: Literal[32, 64] = 64
