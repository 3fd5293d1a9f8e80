"""Prototype query: noisy sums of features and noisy counts of all classes, as one Gaussian mechanism.

A record has one label, so adding or removing a record changes the sum of one class by a vector of norm at most C (the
clipped feature vector) and the weighted count of that class by w. The sensitivity is √(C² + w²), whatever the number of
classes; on the integers of :class:`~privacy.mechanisms.grid.Grid` the bound holds exactly. Each of the K·(d + 1)
coordinates gets independent discrete Gaussian noise of 2^20 steps; all later steps are post-processing. All K classes
take part in each release, with and without records, since the set of classes with records is private.

Guarantee: differential privacy of a Gaussian mechanism with the given noise multiplier, by
:func:`privacy.mechanisms.discrete_gaussian.discreteness`, for one record added or removed
(:mod:`privacy.mechanisms.joint_clipping` has other units).

Limits: if the feature extractor was trained on the same records, the guarantee covers this query alone. Features must
be finite, and the fact that an error was raised for others is not covered. A site's features are always finite:
:mod:`secure_client.training.feature_pass` replaces others by zeros.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from privacy.errors import NotFiniteError
from privacy.mechanisms.discrete_gaussian import discrete_gaussian
from privacy.mechanisms.grid import SIGMA_LOG2, Float, Grid, Ints

Bool = NDArray[np.bool_]

_AT_ONCE = 1 << 20
"""Number of feature values that are processed together."""
_MOST_RECORDS = 2**32


@dataclass(frozen=True)
class Released:
    """Noisy answer that may leave the site: ``rows`` (K, d) and ``counts`` (K,) float64, ``present`` (K,) bool.

    Rows are noisy class means, zero where a class is not present. Counts are noisy, and may be negative. The classes
    present follow from the noisy counts alone. ``sums`` (K, d) are the noisy sums of all classes.
    """

    rows: Float
    present: Bool
    counts: Float
    sums: Float


@dataclass(frozen=True)
class PrototypeQuery:
    """Query with features clipped to the norm ``clip`` and counts weighted by ``count_weight``, in units of a feature.

    The noise has standard deviation ``noise_multiplier``·√(clip² + count_weight²) on each coordinate. A class whose
    noisy count is below ``min_count`` is treated as absent. Raises ``ValueError`` as :meth:`Grid.of` does, and unless
    ``min_count`` is positive and finite.
    """

    clip: float
    count_weight: float
    noise_multiplier: float
    min_count: float
    grid: Grid = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0.0 < self.min_count < math.inf:
            raise ValueError(f"min_count must be positive and finite, not {self.min_count}")
        object.__setattr__(self, "grid", Grid.of(self.clip, self.count_weight, self.noise_multiplier))

    @staticmethod
    def coordinates(classes: int, dim: int) -> int:
        """Return K·(d + 1), the number of values that get noise in a release."""
        return classes * (dim + 1)

    def draw(self, classes: int, dim: int) -> Ints:
        """Draw noise of 2^20 steps for each coordinate of K ``classes`` and d features: int64 (K·(d + 1),), secret.

        Noise in whole steps does not depend on the size of a step, so the grid may be fixed after the draw.
        """
        return discrete_gaussian(self.coordinates(classes, dim), SIGMA_LOG2)

    def start(self, classes: int, dim: int) -> Sums:
        """Return sums over no records yet. Raises ``ValueError`` unless K ≥ 1 classes and d ≥ 1 features are given."""
        if classes < 1 or dim < 1:
            raise ValueError(f"classes and features must be at least 1, not {classes} and {dim}")
        return Sums(self, np.zeros((classes, dim), np.int64), np.zeros(classes, np.int64))

    def sum_exact(self, features: Float, labels: Ints, classes: int) -> Sums:
        """Return the sums without noise. Arguments and errors are those of :meth:`Sums.add`."""
        sums = self.start(classes, features.shape[1] if features.ndim == 2 else 1)
        sums.add(features, labels)
        return sums

    def means(self, sums: Float, counts: Float) -> Released:
        """Return noisy means of noisy ``sums`` (K, d) and ``counts`` (K,): post-processing, which costs nothing."""
        # By the noisy count alone: a class that is left out because it has no records would reveal that.
        present = counts >= self.min_count
        rows = np.zeros(sums.shape)
        rows[present] = sums[present] / counts[present, None]
        return Released(rows, present, counts, sums)

    def release(self, features: Float, labels: Ints, classes: int) -> Released:
        """Return the query's answer with fresh noise. Every call is a release that has to be paid for beforehand."""
        return self.sum_exact(features, labels, classes).release()


@dataclass(frozen=True, repr=False)
class Sums:
    """Exact sums in whole steps, secret: ``vectors`` int64 (K, d), and ``weights`` int64 (K,), W for each record."""

    query: PrototypeQuery
    vectors: Ints
    weights: Ints

    def __repr__(self) -> str:
        return f"Sums(<secret>, classes={self.vectors.shape[0]}, dim={self.vectors.shape[1]})"

    def add(self, features: Float, labels: Ints) -> None:
        """Add records: finite features float64 (N, d), labels int64 (N,) in [0, K). Each record is added once.

        Raises :class:`NotFiniteError` for a feature that is not finite, and ``ValueError`` for other dtypes, shapes or
        labels, or more than 2^32 records; then nothing was added. The order of records does not matter.
        """
        self.check(features, labels)
        size = max(1, _AT_ONCE // self.vectors.shape[1])
        for first in range(0, len(labels), size):
            some = slice(first, first + size)
            rows, owners = self.query.grid.clip_records(features[some]), labels[some]
            # Whole numbers add up exactly, so no order of records or batches shows in the result.
            for label in np.unique(owners):
                self.vectors[label] += rows[owners == label].sum(axis=0)
        self.weights[:] += self.query.grid.weight * np.bincount(labels, minlength=self.weights.size)

    def add_noise(self, drawn: Ints | None = None) -> tuple[Ints, Ints]:
        """Return vectors and weights with noise of 2^20 steps on each coordinate, int64 (K, d) and (K,).

        The noise is fresh unless it was ``drawn`` before, by :meth:`PrototypeQuery.draw`, for these sums alone. Every
        call with fresh noise is a release that has to be paid for beforehand.
        """
        classes, dim = self.vectors.shape
        # One noise for sums and counts, with the sensitivity √(B² + W²) of both together: a class without records gets
        # as much, since the set of classes with records is private.
        noise = (self.query.draw(classes, dim) if drawn is None else drawn).reshape(classes, dim + 1)
        return self.vectors + noise[:, :dim], self.weights + noise[:, dim]

    def release(self) -> Released:
        """Return noisy means and counts: :meth:`add_noise` and post-processing, so each call is a release as well."""
        vectors, weights = self.add_noise()
        sums = np.asarray(vectors * self.query.grid.step, dtype=np.float64)
        return self.query.means(sums, weights / self.query.grid.weight)

    def check(self, features: Float, labels: Ints) -> None:
        """Raise the errors of :meth:`add` for records that :meth:`add` would refuse."""
        classes, dim = self.vectors.shape
        if features.dtype != np.float64 or features.ndim != 2 or features.shape[1] != dim:
            raise ValueError(
                f"features must be float64 of shape (N, {dim}), not {features.dtype} of {features.shape}"
            )
        if labels.dtype != np.int64 or labels.shape != features.shape[:1]:
            raise ValueError(
                f"labels must be int64, one for each record, not {labels.dtype} of {labels.shape}"
            )
        if ((labels < 0) | (labels >= classes)).any():
            raise ValueError(f"a label is outside the {classes} classes")
        if not np.isfinite(features).all():
            raise NotFiniteError(
                "a feature is not finite: lower the learning rate, or remove extreme values from the data"
            )
        if int(self.weights.sum()) // self.query.grid.weight + len(labels) > _MOST_RECORDS:
            raise ValueError("sums can hold at most 2^32 records")
