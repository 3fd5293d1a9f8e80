"""Precision of training: float32 throughout, or products of lower precision on processors that are faster at these."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

import torch


class Precision(StrEnum):
    """Precision of convolutions and matrix products in training; parameters, sums and losses stay float32.

    ``tf32`` rounds their operands to 10 bits after the point on an NVIDIA GPU, a relative error of 2⁻¹¹, and changes
    nothing elsewhere. ``bf16`` computes the sites' networks in bfloat16, with 7 bits, a relative error of 2⁻⁸.
    """

    FLOAT32 = "float32"
    TF32 = "tf32"
    BF16 = "bf16"

    @property
    def dtype(self) -> torch.dtype | None:
        """Type in which a network computes; None for that of its parameters."""
        return torch.bfloat16 if self is Precision.BF16 else None


@contextmanager
def allow_tf32(precision: Precision) -> Iterator[None]:
    """Let products on a GPU, also those of evaluation, use TF32 inside the ``with`` block unless float32 is wanted."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    # By default torch itself allows it for convolutions.
    matmul.allow_tf32 = cudnn.allow_tf32 = precision is not Precision.FLOAT32
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
