"""Layout of a site's contribution to a sum, as one vector: prototypes, model, weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agreement.sections.averaging import AveragingSection
from crypto.fixed_point import Segment

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Layout:
    """Layout of prototypes [K·d], a model's parameters and buffers, and the weight that the model is multiplied by.

    ``classes`` K is 0 where no prototypes are added up. Where ``weighted``, the model is multiplied by N, the number
    of the site's samples, and N itself comes last; otherwise the model comes once, and there is no weight. Where
    ``noisy``, sums of features with noise replace prototypes, and the weights of their counts [K] come last, all of
    them whole numbers of steps.
    """

    classes: int
    dim: int
    parameters: int
    buffers: int
    weighted: bool
    noisy: bool = False

    @property
    def prototypes(self) -> int:
        """Number of values in all rows."""
        return self.classes * self.dim

    @property
    def model(self) -> int:
        """Number of values of the model."""
        return self.parameters + self.buffers

    @property
    def means(self) -> int:
        """Number of values in a mean, once the weight is divided out."""
        return self.prototypes + self.model

    @property
    def length(self) -> int:
        """L: the number of all values."""
        return self.means + int(self.weighted) + self._noisy_weights

    @property
    def _noisy_weights(self) -> int:
        return self.classes if self.noisy else 0

    def contribution(self, rows: Vector, model: Vector, samples: int) -> Vector:
        """Return a site's vector (L,), for ``rows`` (K, d) or (0, d), ``model`` (p + q,) and its number of samples."""
        if not self.weighted:
            return np.concatenate([rows.ravel(), model])
        return np.concatenate([rows.ravel(), model * samples, [float(samples)]])

    def noisy_contribution(self, vectors: Vector, weights: Vector, model: Vector) -> Vector:
        """Return a site's noisy vector (L,): sums (K, d) and weights (K,) of all classes, and ``model`` (p + q,)."""
        return np.concatenate([vectors.ravel(), model, weights])

    def noisy_parts(self, vector: Vector) -> tuple[Vector, Vector]:
        """Return the sums (K, d) and weights (K,) of a noisy vector (L,)."""
        return vector[: self.prototypes].reshape(self.classes, self.dim), vector[self.means :]

    def split(self, vector: Vector) -> tuple[Vector, Vector]:
        """Return the rows (K, d) and model (p + q,) of a vector of ``means`` numbers, or of ``length``."""
        rows, model = np.split(vector[: self.means], [self.prototypes])
        return rows.reshape(self.classes, self.dim), model

    def segments(self, row_bound: float, agreed: AveragingSection) -> tuple[Segment, ...]:
        """Return the largest magnitudes in a contribution, ``row_bound`` in rows and their weights.

        Parts without numbers are left out.
        """
        times = agreed.most_samples if self.weighted else 1
        segments = (
            Segment(self.prototypes, row_bound, whole=self.noisy),
            Segment(self.parameters, times * agreed.parameter_bound),
            Segment(self.buffers, times * agreed.buffer_bound),
            Segment(int(self.weighted), float(times)),
            Segment(self._noisy_weights, row_bound, whole=self.noisy),
        )
        return tuple(each for each in segments if each.length)
