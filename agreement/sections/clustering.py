"""Settings that distinguish methods of ``Family.CLUSTERS``, and a site's contribution to their cluster sums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crypto.fixed_point import Segment
from crypto.prototype_row_checks import NORM_SLACK

Vector = NDArray[np.float64]


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
        return tuple(each for each in (sums, counts) if each.length)

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
