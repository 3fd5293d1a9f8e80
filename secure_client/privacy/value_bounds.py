"""Bounds that were agreed for a site's values; values are clipped to them before any are sent.

Values beyond a bound are saturated, never refused: an error that ended the session would tell the coordinator, who
chooses what sites train from, whether a value that it may not see is beyond the bound. What was changed is logged at
the site alone. The one refusal is of an initial model beyond the bounds, before the site joins.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agreement import AveragingSection
from algorithms.fedplcc import LocalClusters
from algorithms.gram import Float
from algorithms.prototypes import project_to_norm
from crypto.errors import BoundError

_log = logging.getLogger("protoseal.site")
_LARGEST = 1e150
"""Magnitudes beyond it count as it: the square of a larger number would overflow, and a norm with it."""


@dataclass(frozen=True)
class Bounded:
    """Prototypes (K, d) within their bounds, and how many of them were ``negative`` somewhere or ``shortened``."""

    rows: NDArray[np.float64]
    negative: int
    shortened: int


@dataclass(frozen=True)
class PrototypeBounds:
    """The largest Euclidean norm of a prototype, and whether components below 0 become 0 first.

    ``most_of_class`` bounds the local prototypes of a class, where a class may have several.
    """

    norm_bound: float
    clip_at_zero: bool = False
    most_of_class: int | None = None

    def bounded(self, rows: Float) -> Bounded:
        """Return prototypes (K, d) as a site sends them; NaN becomes 0.

        A caller reports what was changed: the rows are no class means then.
        """
        rows = np.clip(np.nan_to_num(rows), -_LARGEST, _LARGEST)
        negative = int((rows < 0).any(axis=1).sum()) if self.clip_at_zero else 0
        clipped = np.maximum(rows, 0.0) if self.clip_at_zero else rows
        within, shortened = project_to_norm(clipped, self.norm_bound)
        return Bounded(within, negative, shortened)

    def few(self, local: LocalClusters) -> LocalClusters:
        """Return local prototypes of which no class has more than ``most_of_class``: a class with more has its mean."""
        if self.most_of_class is None:
            return local
        numbers = np.bincount(local.labels)
        crowded = np.flatnonzero(numbers > self.most_of_class)
        for k in crowded:
            local = _joined(local, int(k))
        return local

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


def check_initial_bounds(averaged: Float, agreed: AveragingSection) -> None:
    """Raise :class:`BoundError` for an initial model (p + q,) beyond the agreed bounds, before the site joins."""
    parameters, buffers = np.split(np.abs(averaged), [agreed.parameters])
    checked = (
        ("parameter", parameters, agreed.parameter_bound),
        ("buffer", buffers, agreed.buffer_bound),
    )
    for what, part, bound in checked:
        if not (part <= bound).all():
            raise BoundError(
                f"before training, what is averaged has a {what} of magnitude {part.max():g}, beyond the agreed "
                f"{what}_bound = {bound:g}: agree on a larger one, or start from another model"
            )


def saturated(averaged: Float, agreed: AveragingSection, where: str) -> NDArray[np.float64]:
    """Return the averaged part of a trained model (p + q,) within the agreed bounds; NaN becomes 0.

    Numbers that this changes are logged under ``where``: the sum is then not over the models as they were trained.
    """
    largest = np.full(len(averaged), agreed.buffer_bound)
    largest[: agreed.parameters] = agreed.parameter_bound
    within = np.clip(np.nan_to_num(averaged), -largest, largest)
    changed = int((within != averaged).sum())
    if changed:
        _log.warning(
            "%s: %d numbers of the averaged model were beyond parameter_bound = %g or buffer_bound = %g and were set"
            " to it; train with a smaller learning rate, or agree on larger bounds",
            *(where, changed, agreed.parameter_bound, agreed.buffer_bound),
        )
    return np.asarray(within, dtype=np.float64)


def model_weight(counts: NDArray[np.int64], most_samples: int) -> int:
    """Return the weight of a site's model in a sum: its samples, at least 1 and at most ``most_samples``.

    Noisy counts (K,) may be 0 for all classes, and sums over weights of 0 have no mean.
    """
    return max(1, min(int(counts.sum()), most_samples))


def _joined(local: LocalClusters, k: int) -> LocalClusters:
    """Replace the prototypes of class ``k`` by their mean over samples."""
    own = local.labels == k
    counts = local.counts[own]
    mean = np.average(local.rows[own], axis=0, weights=counts)
    at = int(np.flatnonzero(own)[0])
    return LocalClusters(
        np.insert(local.rows[~own], at, mean, axis=0),
        np.insert(local.labels[~own], at, k),
        np.insert(local.counts[~own], at, counts.sum()),
    )
