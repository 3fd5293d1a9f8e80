"""What the agreement holds a site's values to before any of them is sent."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from algorithms.fedplcc import LocalClusters
from algorithms.linear import Float
from algorithms.prototypes import project_to_norm
from crypto.errors import BoundError
from protoseal.config import AveragingSection

_log = logging.getLogger("protoseal.site")


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

    def warn_of(self, bounded: Bounded, where: str) -> None:
        """Log what was changed of prototypes that are class means; the log stays at the site."""
        if bounded.negative:
            _log.warning(
                "%s: %d prototypes had negative components, which were set to 0: the method's cosines must not be"
                " negative; end the model's features with a ReLU",
                *(where, bounded.negative),
            )
        if bounded.shortened:
            _log.warning(
                "%s: %d prototypes were longer than norm_bound = %g and were shortened to it; the agreement should"
                " allow for them",
                *(where, bounded.shortened, self.norm_bound),
            )


def check_averaged_bounds(averaged: Float, agreed: AveragingSection, *, trained: bool) -> None:
    """Raise :class:`BoundError` for what masked sums have no room for, under every protection alike.

    ``averaged`` is (p + q,), the part of the model that is averaged; whether it is ``trained`` decides what the
    message advises.
    """
    when, remedy = (
        ("after", "train with a smaller learning rate") if trained else ("before", "start from another model")
    )
    parameters, buffers = np.split(np.abs(averaged), [agreed.parameters])
    checked = (
        ("parameter", parameters, agreed.parameter_bound),
        ("buffer", buffers, agreed.buffer_bound),
    )
    for what, part, bound in checked:
        if not (part <= bound).all():
            raise BoundError(
                f"{when} training, what is averaged has a {what} of magnitude {part.max():g}, beyond the agreed "
                f"{what}_bound = {bound:g}: agree on a larger one, or {remedy}"
            )


def model_weight(counts: NDArray[np.int64], most_samples: int) -> int:
    """What a site's model weighs in a sum: its samples, at least 1 and at most ``most_samples``.

    Noisy counts (K,) may be 0 of all classes, and sums over weights of 0 have no mean.
    """
    return max(1, min(int(counts.sum()), most_samples))


def check_local_number(local: LocalClusters, most: int, classes: Sequence[str]) -> None:
    """Raise :class:`BoundError` for more than ``most`` local prototypes of a class, which no message has room for."""
    each = np.bincount(local.labels, minlength=len(classes))
    fullest = int(each.argmax())
    if each[fullest] > most:
        raise BoundError(
            f"class {classes[fullest]!r} has {each[fullest]} local prototypes at this site, and the agreement has room "
            f"for {most}: agree on a larger most_prototypes in [fedplcc] (256 at most)"
        )
