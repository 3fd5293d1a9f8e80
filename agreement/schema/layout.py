"""Layout of what a site adds to a sum: prototypes and models, parts of clusters, and noisy prototypes on a grid."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agreement.sections.averaging import AveragingSection
from agreement.sections.privacy import USUAL_DEVIATIONS, PrivacySection
from algorithms.gram_matrix import Bool, Float
from crypto.fixed_point import Segment
from crypto.pairwise.attempt import fewest_against, threshold
from crypto.protection import NORM_SLACK
from privacy.mechanisms.grid import SIGMA, Grid, noise_share

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
        return tuple(segment for segment in segments if segment.length)


@dataclass(frozen=True)
class Clustering:
    """Clustering with ``most_prototypes`` for a class at a site, or one where ``single``, and ``most_clusters`` in all.

    ``literal`` clusters vectors as they are, not their directions. Where ``uniform``, the clusters of a class
    have equal weights, else weights by samples.
    """

    most_prototypes: int
    most_clusters: int
    single: bool = False
    literal: bool = False
    uniform: bool = False

    @property
    def most_local(self) -> int:
        """Most local prototypes of a class at one site."""
        return 1 if self.single else self.most_prototypes

    @property
    def most_of_class(self) -> int:
        """Larger of both bounds: no array has more rows of a class."""
        return max(self.most_local, self.most_clusters)

    @property
    def counted(self) -> bool:
        """True if results depend on sample counts."""
        return not self.uniform

    def most_counted(self, most_samples: int) -> int:
        """Most samples of a class that a site's prototypes stand for; see :func:`counted_samples`."""
        return most_samples + self.most_local

    def segments(self, clusters: int, dim: int, norm_bound: float, most_samples: int) -> tuple[Segment, ...]:
        """Largest magnitudes in :meth:`vector`."""
        # Rounding may leave the quotients above the bound.
        sums = Segment(clusters * dim, self.most_local * norm_bound * (1.0 + NORM_SLACK))
        counts = Segment(clusters if self.counted else 0, float(self.most_counted(most_samples)))
        return tuple(segment for segment in (sums, counts) if segment.length)

    def vector(self, sums: Vector, counts: Vector) -> Vector:
        """Return a site's part in the sums of G clusters, for ``sums`` (G, d) and ``counts`` (G,), as one vector."""
        return np.concatenate([sums.ravel(), counts]) if self.counted else sums.ravel()

    def length(self, clusters: int, dim: int) -> int:
        """Return the length of :meth:`vector`."""
        return clusters * (dim + int(self.counted))

    def split(self, vector: Vector, clusters: int, dim: int) -> tuple[Vector, Vector]:
        """Split :meth:`vector` into (G, d) and (G,); counts are zeros where none are taken. G may be 0."""
        sums, counts = np.split(vector, [clusters * dim])
        return sums.reshape(clusters, dim), counts if self.counted else np.zeros(clusters)


def counted_samples(counts: NDArray[np.int64], most_samples: int) -> NDArray[np.int64]:
    """Return a site's sample counts as it sends them: as they are, or in proportion if they are too many.

    A site with more than ``most_samples`` samples counts as a site with about that many: rounded down, but none to 0.
    """
    total = int(counts.sum())
    return counts if total <= most_samples else np.maximum(counts * most_samples // total, 1)


_NOISE_BOUND = float(2**31)
"""Bound of a draw, exceeded once in e^2047."""


@dataclass(frozen=True)
class NoisySum:
    """Noise of one attempt's list, and the decoding of its sum.

    ``threshold`` is t, ``share`` the noise multiplier of each site's own noise, ``grid`` that of the share.
    """

    threshold: int
    share: float
    grid: Grid
    min_count: float | None

    @classmethod
    def of(cls, agreed: PrivacySection, dim: int, listed: int) -> NoisySum:
        """Return the noisy sum for features (d,) and a list of n ``listed`` sites.

        Raises ``ValueError`` for a list that ``colluding`` sites can open by themselves, or that has no other sites
        (:func:`crypto.pairwise.attempt.fewest_against`), and for noise without a grid.
        """
        least = fewest_against(agreed.colluding)
        if listed < least:
            raise ValueError(
                f"{listed} sites are listed: distributed noise against {agreed.colluding} colluding "
                f"sites needs {least} or more"
            )
        quorum = threshold(listed)
        share = noise_share(agreed.noise_multiplier, quorum - agreed.colluding)
        return cls(quorum, share, Grid.of(agreed.clip, agreed.weight(dim), share), agreed.min_count)

    def bound(self, most_samples: int) -> float:
        """Return the largest magnitude of a number that a site with so many records adds, except with e^-2047."""
        return most_samples * max(self.grid.radius, self.grid.weight) + _NOISE_BOUND

    def least_count(self, survivors: int) -> float:
        """Return the least noisy count of a class that is treated as present.

        Unless agreed: three deviations, with the noise of all survivors, of which there are more than T.
        """
        if self.min_count is not None:
            return self.min_count
        return float(USUAL_DEVIATIONS * math.sqrt(survivors) * SIGMA / self.grid.weight)

    def means(self, vectors: Float, weights: Float, survivors: int) -> tuple[NDArray[np.float64], Bool]:
        """Return mean features (K, d) over the records of all survivors, in units of a feature, and which exist (K,).

        ``vectors`` (K, d) and ``weights`` (K,) are the opened sums, in whole steps. Rows of absent classes are zero.
        """
        counts = weights / self.grid.weight
        has = counts >= self.least_count(survivors)
        rows = np.zeros(vectors.shape)
        rows[has] = vectors[has] * self.grid.step / counts[has, None]
        return rows, has
