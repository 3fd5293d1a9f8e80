"""An audit of the prototype query as it is released, with a canary alone in each of many classes.

A class more costs nothing, since a record is in one, so the claim is that of a query with the agreed clip, weight and
noise. A canary is as large as a record can be: a feature vector of norm C and a count of w. All canaries are
orthogonal in the query, and each one's inner product with the noisy sums is all that these tell of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from protoseal.evaluation.audit import Bool, Float
from protoseal.evaluation.audit_power import Separation
from secure_client.privacy.accounting import epsilon
from secure_client.privacy.events import GaussianRelease
from secure_client.privacy.query import PrototypeQuery

_AT_ONCE = 1000
"""Canaries that are added together."""


@dataclass(frozen=True)
class QueryUnderAudit:
    """``releases`` of a ``query`` over features of length ``dim``, seen by whoever gets all the noisy sums."""

    query: PrototypeQuery
    releases: int = 1
    dim: int = 1

    def claimed(self, canaries: int, delta: float) -> float:
        """The ε that the accountant tells."""
        release = GaussianRelease(self.query.noise_multiplier, self.query.coordinates(canaries, self.dim))
        return epsilon([release] * self.releases, delta)

    def separation(self, noise: float = 1.0) -> Separation:
        """Of scores, if the noise were ``noise`` times as large as it is said to be."""
        return Separation(self.releases**0.5 / (self.query.noise_multiplier * noise))

    def scores(self, coins: Bool) -> Float:
        """Of canaries (m,), which are in by ``coins``: near the number of releases if they are, else near 0."""
        every = np.arange(coins.size)
        sums = self.query.start(coins.size, self.dim)
        inside = np.flatnonzero(coins)
        for first in range(0, inside.size, _AT_ONCE):
            some = inside[first : first + _AT_ONCE]
            features = np.zeros((some.size, self.dim))
            features[np.arange(some.size), some % self.dim] = self.query.clip
            sums.add(features, some)
        grid, scores = self.query.grid, np.zeros(coins.size)
        for _ in range(self.releases):
            vectors, weights = sums.noised()
            scores += float(grid.radius) * vectors[every, every % self.dim] + float(grid.weight) * weights
        return scores / float(grid.sensitivity_squared)
