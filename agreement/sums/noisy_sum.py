"""Noise that all sites together add to a masked sum, derived from the agreement and the list of sites.

With n sites listed and c that may collude, a sum that opens has the noise of T = t − c others at least, t being its
threshold. Each site adds discrete Gaussian noise of 2^20 steps on a grid whose step is that of one of T shares of the
agreed noise. Sites and the coordinator compute the same from the same signed list. docs/adr/0016 says why that is
enough and as cheap as noise of one site, and why means are over records and not over sites.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agreement.sections.privacy import USUAL_DEVIATIONS, PrivacySection
from algorithms.gram_matrix import Bool, Float
from crypto.pairwise.attempt_binding import fewest_against, threshold
from privacy.mechanisms.grid import SIGMA, Grid, noise_share

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
        (:func:`crypto.pairwise.attempt_binding.fewest_against`), and for noise without a grid.
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
