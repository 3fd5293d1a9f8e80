"""What the agreement holds a site's values to before any of them is sent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from algorithms.linear import Float
from algorithms.prototypes import project_to_norm
from crypto.errors import BoundError
from protoseal.config import FedpcSection


@dataclass(frozen=True)
class Bounded:
    """Prototypes (K, d) within their bounds, and how many of them were ``negative`` somewhere or ``shortened``."""

    rows: NDArray[np.float64]
    negative: int
    shortened: int


@dataclass(frozen=True)
class PrototypeBounds:
    """The largest Euclidean norm of a prototype, and whether components below 0 become 0 first."""

    norm_bound: float
    clip_at_zero: bool = False

    def bounded(self, rows: Float) -> Bounded:
        """Prototypes (K, d) as a site sends them. A caller reports what was changed: they are no class means then."""
        negative = int((rows < 0).any(axis=1).sum()) if self.clip_at_zero else 0
        clipped = np.maximum(rows, 0.0) if self.clip_at_zero else rows
        within, shortened = project_to_norm(clipped, self.norm_bound)
        return Bounded(within, negative, shortened)


def check_extractor_bounds(extractor: Float, agreed: FedpcSection, *, trained: bool) -> None:
    """Raise :class:`BoundError` for what masked sums have no room for, under every protection alike.

    ``extractor`` is (p + q,); whether it is ``trained`` decides what the message advises.
    """
    when, remedy = (
        ("after", "train with a smaller learning rate") if trained else ("before", "start from another model")
    )
    parameters, buffers = np.split(np.abs(extractor), [agreed.extractor_parameters])
    checked = (
        ("parameter", parameters, agreed.parameter_bound),
        ("buffer", buffers, agreed.buffer_bound),
    )
    for what, part, bound in checked:
        if not (part <= bound).all():
            raise BoundError(
                f"{when} training, the extractor has a {what} of magnitude {part.max():g}, beyond the agreed "
                f"{what}_bound = {bound:g}: agree on a larger one, or {remedy}"
            )
