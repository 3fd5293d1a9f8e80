"""The prototype query: noisy sums of features and noisy counts of all classes, as one Gaussian mechanism.

A record has one label, so adding or removing one changes the sums of one class by a vector of norm at most C (its
feature vector, clipped) and that class's count, weighted, by w: √(C² + w²) in all, whatever the number of classes.
On :class:`~privacy.mechanisms.grid.Grid` the statement is one about whole numbers and holds exactly. Independent
discrete Gaussian noise of 2^20 steps is added to each of the K·(d + 1) coordinates; everything after that is
post-processing. :func:`privacy.mechanisms.gaussian.discreteness` says how the guarantee follows from that of a
Gaussian mechanism with the same noise multiplier. All K classes take part in each release, with and without records:
which of them have any is private.

The guarantee's unit is a record and its neighbours are by adding or removing one
(:mod:`privacy.mechanisms.joint_clipping` has other units). Where the feature extractor was trained on the same records,
it is a statement about this query alone. Features have to be finite. A site's are: a record for which the model gives
others counts as zeros (:mod:`secure_client.training.feature_pass`). Here they are an error, and that an error was
raised is not covered.
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
"""Values of features that are worked on together."""
_MOST_RECORDS = 2**32


@dataclass(frozen=True)
class Released:
    """What may leave: ``rows`` (K, d) and ``counts`` (K,) float64, ``present`` (K,) bool.

    Rows are noisy class means, zero where a class is not present. Counts are noisy, and may be negative. Who is
    present follows from the counts alone.
    """

    rows: Float
    present: Bool
    counts: Float


@dataclass(frozen=True)
class PrototypeQuery:
    """Features clipped to the norm ``clip``, counts weighted by ``count_weight``, in units of a feature.

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
            raise ValueError(f"the least noisy count is positive and finite, not {self.min_count}")
        object.__setattr__(self, "grid", Grid.of(self.clip, self.count_weight, self.noise_multiplier))

    @staticmethod
    def coordinates(classes: int, dim: int) -> int:
        """K·(d + 1): how many numbers get noise in a release."""
        return classes * (dim + 1)

    def draw(self, classes: int, dim: int) -> Ints:
        """Draw noise of 2^20 steps for each coordinate of K ``classes`` and d features: int64 (K·(d + 1),), secret.

        Noise in whole steps is the same whatever a step is worth: the grid may be settled after the draw.
        """
        return discrete_gaussian(self.coordinates(classes, dim), SIGMA_LOG2)

    def start(self, classes: int, dim: int) -> Sums:
        """Sums over no records yet, for K ≥ 1 classes and d ≥ 1 features; else ``ValueError``."""
        if classes < 1 or dim < 1:
            raise ValueError(f"classes and features are 1 or more, not {classes} and {dim}")
        return Sums(self, np.zeros((classes, dim), np.int64), np.zeros(classes, np.int64))

    def exact(self, features: Float, labels: Ints, classes: int) -> Sums:
        """The sums without noise. Arguments and errors as for :meth:`Sums.add`."""
        sums = self.start(classes, features.shape[1] if features.ndim == 2 else 1)
        sums.add(features, labels)
        return sums

    def release(self, features: Float, labels: Ints, classes: int) -> Released:
        """The query's answer with fresh noise. Every call is a release that has to be paid for beforehand."""
        return self.exact(features, labels, classes).release()


@dataclass(frozen=True, repr=False)
class Sums:
    """The query in whole steps, without noise: secret. ``vectors`` int64 (K, d), ``weights`` int64 (K,), W a record."""

    query: PrototypeQuery
    vectors: Ints
    weights: Ints

    def __repr__(self) -> str:
        return f"Sums(<secret>, classes={self.vectors.shape[0]}, dim={self.vectors.shape[1]})"

    def add(self, features: Float, labels: Ints) -> None:
        """Add records: features float64 (N, d), finite, labels int64 (N,) in [0, K). Each record once, in any order.

        Raises :class:`NotFiniteError` for a feature that is not finite, and ``ValueError`` for anything else or beyond
        2^32 records; then nothing was added.
        """
        self.check(features, labels)
        size = max(1, _AT_ONCE // self.vectors.shape[1])
        for first in range(0, len(labels), size):
            some = slice(first, first + size)
            rows, owners = self.query.grid.records(features[some]), labels[some]
            for label in np.unique(owners):
                self.vectors[label] += rows[owners == label].sum(axis=0)
        self.weights[:] += self.query.grid.weight * np.bincount(labels, minlength=self.weights.size)

    def noised(self, drawn: Ints | None = None) -> tuple[Ints, Ints]:
        """Return vectors and weights with noise of 2^20 steps on each coordinate, int64 (K, d) and (K,).

        The noise is fresh unless it was ``drawn`` before, by :meth:`PrototypeQuery.draw`, for these sums alone. Every
        call with fresh noise is a release that has to be paid for beforehand.
        """
        classes, dim = self.vectors.shape
        noise = (self.query.draw(classes, dim) if drawn is None else drawn).reshape(classes, dim + 1)
        return self.vectors + noise[:, :dim], self.weights + noise[:, dim]

    def release(self) -> Released:
        """Noisy means and counts: :meth:`noised` and post-processing, so that it is a release as well."""
        vectors, weights = self.noised()
        counts = weights / self.query.grid.weight
        present = counts >= self.query.min_count
        rows = np.zeros(vectors.shape)
        rows[present] = vectors[present] * self.query.grid.step / counts[present, None]
        return Released(rows, present, counts)

    def check(self, features: Float, labels: Ints) -> None:
        """Raise as :meth:`add` does."""
        classes, dim = self.vectors.shape
        if features.dtype != np.float64 or features.ndim != 2 or features.shape[1] != dim:
            raise ValueError(
                f"features are float64 of shape (N, {dim}), not {features.dtype} of {features.shape}"
            )
        if labels.dtype != np.int64 or labels.shape != features.shape[:1]:
            raise ValueError(f"labels are int64, one a record, not {labels.dtype} of {labels.shape}")
        if ((labels < 0) | (labels >= classes)).any():
            raise ValueError(f"a label is not one of the {classes} classes")
        if not np.isfinite(features).all():
            raise NotFiniteError(
                "a feature is not finite; lower the learning rate, and look for extreme values in the data"
            )
        if int(self.weights.sum()) // self.query.grid.weight + len(labels) > _MOST_RECORDS:
            raise ValueError("sums have room for 2^32 records")
