"""FedPC's settings, and how its sums are masked."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from protoseal.config.reading import Section

Bound = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Elements = Annotated[int, Field(ge=0, le=2**26)]


class FedpcSection(Section):
    """FedPC's own settings: equations 2 to 8 of the paper (docs/notation.md).

    ``groups`` is J, chosen by silhouette when it is not given; ``pca_dim`` is min(n − 1, 10) when it is not given.
    A group has ``min_holders`` sites or more, so fewer than 2·``min_holders`` sites are always one group, whatever
    ``groups`` says: then there is nothing to mix between groups (equations 5 to 8).

    ``alignment`` is γ of L = (1 − γ)·CE + γ·Σ_k ‖P_i^k − P_j^k‖, and 0.5 as printed. That is too much where the first
    round leaves the model far from trained: a sum of distances over up to K classes outweighs the cross-entropy, and
    features collapse onto targets that tell classes apart badly. Try 0.01 to 0.05 there; docs/notation.md has figures.

    ``extractor_parameters`` and ``extractor_buffers`` count the numbers in the part of the model that is averaged:
    parameters outside the classifier, and floating-point buffers such as batch normalisation's. Write 1 for the
    parameters, and `protoseal client check` tells both. A site whose values are beyond ``parameter_bound`` or
    ``buffer_bound`` stops with an error before it sends any; the bounds make room for sums in fixed point.
    """

    groups: Annotated[int, Field(ge=1, le=256)] | None = None
    pca_dim: Annotated[int, Field(ge=1, le=256)] | None = None
    alignment: Annotated[float, Field(ge=0, lt=1)] = 0.5
    literal_absent: bool = False
    extractor_parameters: Elements = 0
    extractor_buffers: Elements = 0
    parameter_bound: Bound = 64.0
    buffer_bound: Bound = 1e6

    @model_validator(mode="after")
    def _buffers_come_with_parameters(self) -> Self:
        if self.extractor_buffers and not self.extractor_parameters:
            raise ValueError("extractor_buffers without extractor_parameters: give both numbers")
        return self


class MaskingSection(Section):
    """Masked sums are taken in the ring of integers modulo 2^``ring_bits``.

    32 bits halve what is sent, and leave fewer fractional bits, which must be 16 or more.
    """

    ring_bits: Literal[32, 64] = 64
