"""Bounds that were agreed for a site's values; values are clipped to them before any are sent.

Values beyond a bound are saturated, never refused: the coordinator chooses the sites' base, and an error that ended the
session would reveal whether a hidden value is beyond the bound. Changes are logged at the site only. The one refusal is
of an initial model beyond the bounds, before the site joins.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agreement import AveragingSection
from algorithms.fedplcc import LocalClusters
from algorithms.gram_matrix import Float
from algorithms.prototypes import project_to_norm
from crypto.errors import BoundError

_log = logging.getLogger("protoseal.site")
_LARGEST = 1e150
"""Largest magnitude that counts: larger magnitudes are set to it, since their squares would overflow in a norm."""


@dataclass(frozen=True)
class Bounded:
    """Prototypes (K, d) within bounds, and the number of rows with a ``negative`` component or ``shortened``.

    ``longest`` is the largest norm before any was shortened.
    """

    rows: NDArray[np.float64]
    negative: int
    shortened: int
    longest: float


@dataclass(frozen=True)
class PrototypeBounds:
    """Bounds of prototypes: the largest Euclidean norm, and whether negative components first become 0.

    ``most_of_class`` bounds the local prototypes of a class, where a class may have several.
    """

    norm_bound: float
    clip_at_zero: bool = False
    most_of_class: int | None = None

    def bound(self, rows: Float) -> Bounded:
        """Return prototypes (K, d) within the bounds, as a site sends them; NaN becomes 0.

        The caller reports changes, since changed rows are no class means.
        """
        # No error for any value: an error that ends the session would tell the coordinator about a record.
        rows = np.clip(np.nan_to_num(rows), -_LARGEST, _LARGEST)
        negative = int((rows < 0).any(axis=1).sum()) if self.clip_at_zero else 0
        clipped = np.maximum(rows, 0.0) if self.clip_at_zero else rows
        within, shortened = project_to_norm(clipped, self.norm_bound)
        longest = float(np.linalg.norm(clipped, axis=1).max(initial=0.0))
        return Bounded(within, negative, shortened, longest)

    def limit_per_class(self, local: LocalClusters) -> LocalClusters:
        """Return local prototypes, with the mean in place of a class that has more than ``most_of_class``."""
        if self.most_of_class is None:
            return local
        numbers = np.bincount(local.labels)
        crowded = np.flatnonzero(numbers > self.most_of_class)
        for k in crowded:
            local = _join_class(local, int(k))
        return local

    def warn(self, bounded: Bounded, where: str) -> None:
        """Log changes of prototypes that are class means; the log stays at the site."""
        if bounded.negative:
            _log.warning(
                "%s: %d prototypes had negative components, which were set to 0, since the method's cosines "
                "must not be negative; end the model's features with a ReLU",
                where,
                bounded.negative,
            )
        if bounded.shortened:
            _log.warning(
                "%s: %d prototypes were longer than norm_bound = %g, the longest %.3g, and were shortened to it; "
                "agree on a larger norm_bound",
                where,
                bounded.shortened,
                self.norm_bound,
                bounded.longest,
            )


def check_initial_bounds(averaged: Float, agreed: AveragingSection) -> None:
    """Raise :class:`BoundError` for an initial model (p + q,) beyond the agreed bounds, before the site joins."""
    parameters, buffers = np.split(np.abs(averaged), [agreed.parameters])
    larger = f"agreed parameter_bound = {agreed.parameter_bound:g}: agree on a larger bound, or"
    checked = (
        ("parameter", parameters, agreed.parameter_bound, larger),
        ("buffer", buffers, agreed.buffer_bound, f"bound of {agreed.buffer_bound:g}:"),
    )
    for what, part, bound, limit in checked:
        if not (part <= bound).all():
            raise BoundError(
                f"before training, the averaged part of the model has a {what} of magnitude {part.max():g}, "
                f"beyond the {limit} start from another model"
            )


def saturate(averaged: Float, agreed: AveragingSection, where: str) -> NDArray[np.float64]:
    """Return the averaged part of a trained model (p + q,) within the agreed bounds; NaN becomes 0.

    Changes are logged under ``where``: the sum is then not over the models as trained.
    """
    within = np.empty(len(averaged))
    # The same passes for all values: their time must not show whether any is beyond its bound.
    for part, bound in (
        (slice(agreed.parameters), agreed.parameter_bound),
        (slice(agreed.parameters, None), agreed.buffer_bound),
    ):
        np.clip(averaged[part], -bound, bound, out=within[part])
    np.copyto(within, 0.0, where=np.isnan(within))
    changed = int(np.count_nonzero(within != averaged))
    if changed:
        _log.warning(
            "%s: %d numbers of the averaged model were beyond parameter_bound = %g, or as buffers beyond %g, and were"
            " set to it; train with a smaller learning rate, or agree on a larger bound",
            where,
            changed,
            agreed.parameter_bound,
            agreed.buffer_bound,
        )
    return within


def model_weight(counts: NDArray[np.int64], most_samples: int) -> int:
    """Return the weight of a site's model in a sum: its samples, at least 1 and at most ``most_samples``.

    Noisy counts (K,) may be 0 for all classes, and sums over weights of 0 have no mean.
    """
    return max(1, min(int(counts.sum()), most_samples))


def _join_class(local: LocalClusters, k: int) -> LocalClusters:
    """Replace the prototypes of class ``k`` by their mean over samples."""
    members = local.labels == k
    counts = local.counts[members]
    mean = np.average(local.rows[members], axis=0, weights=counts)
    at = int(np.flatnonzero(members)[0])
    return LocalClusters(
        np.insert(local.rows[~members], at, mean, axis=0),
        np.insert(local.labels[~members], at, k),
        np.insert(local.counts[~members], at, counts.sum()),
    )
