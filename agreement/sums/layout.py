"""What one site adds to a sum, as one vector: prototypes, model, weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agreement.sections.averaging import AveragingSection
from crypto.fixed_point import Segment

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Layout:
    """Prototypes [K·d], then a model's parameters and buffers, then the weight that the model is multiplied by.

    ``classes`` K is 0 where no prototypes are added up. Where ``weighted``, the model comes N times, N being the
    site's samples, and N itself last; otherwise it comes once, and there is no weight. Where ``noisy``, there are sums
    of features with noise in the place of prototypes, and last of all the weights of their counts [K], all of them
    whole numbers of steps.
    """

    classes: int
    dim: int
    parameters: int
    buffers: int
    weighted: bool
    noisy: bool = False

    @property
    def prototypes(self) -> int:
        """The numbers in all rows."""
        return self.classes * self.dim

    @property
    def model(self) -> int:
        """The numbers of the model."""
        return self.parameters + self.buffers

    @property
    def means(self) -> int:
        """The numbers in what a sum comes to, once its weight is divided out."""
        return self.prototypes + self.model

    @property
    def length(self) -> int:
        """L: all numbers."""
        return self.means + int(self.weighted) + self._noisy_weights

    @property
    def _noisy_weights(self) -> int:
        return self.classes if self.noisy else 0

    def contribution(self, rows: Vector, model: Vector, samples: int) -> Vector:
        """A site's vector (L,), for ``rows`` (K, d) or (0, d), ``model`` (p + q,) and its number of samples."""
        if not self.weighted:
            return np.concatenate([rows.ravel(), model])
        return np.concatenate([rows.ravel(), model * samples, [float(samples)]])

    def noisy_contribution(self, vectors: Vector, weights: Vector, model: Vector) -> Vector:
        """A site's vector (L,) with noise: sums (K, d) and weights (K,) of all classes, and ``model`` (p + q,)."""
        return np.concatenate([vectors.ravel(), model, weights])

    def noisy_parts(self, vector: Vector) -> tuple[Vector, Vector]:
        """Sums (K, d) and weights (K,) of a vector (L,) with noise."""
        return vector[: self.prototypes].reshape(self.classes, self.dim), vector[self.means :]

    def split(self, vector: Vector) -> tuple[Vector, Vector]:
        """Rows (K, d) and model (p + q,) of a vector of ``means`` numbers, or of ``length``."""
        rows, model = np.split(vector[: self.means], [self.prototypes])
        return rows.reshape(self.classes, self.dim), model

    def segments(self, row_bound: float, agreed: AveragingSection) -> tuple[Segment, ...]:
        """The largest magnitudes in a contribution, ``row_bound`` in rows and their weights.

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
