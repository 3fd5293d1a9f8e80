"""An audit of the prototype query as it is released, with canaries alone in classes of their own.

A further class costs nothing, since a record is in one, so the claim is that of a query with the agreed clip, weight
and noise. Features of a canary are a hundred times as long as the clip and equal in all coordinates, so that missing
clipping shows, and so does clipping of single coordinates. All canaries are orthogonal in the query: a canary's inner
product with the noisy sums is all that these reveal of it.

Where a subject or a site is the unit, each canary is a subject with several records in each of two classes. Where sites
share the noise, the sums have as many shares as are left of the smallest agreed list without those that collude.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from algorithms.grid import Ints
from protoseal.config.privacy import Unit
from protoseal.evaluation.audit import Bool, Float
from protoseal.evaluation.audited import random
from protoseal.evaluation.trade_off import TradeOff, composed_trade_off
from secure_client.privacy.accounting import Composed
from secure_client.privacy.events import GaussianRelease
from secure_client.privacy.joint import joint_sums
from secure_client.privacy.query import PrototypeQuery, Sums

LENGTH = 100.0
"""Norm of a canary's features, over the clip."""
_AT_ONCE = 1000
"""Canaries that are added together."""
_CLASSES, _RECORDS = 2, 3
"""Classes of a subject, and its records in each."""


@dataclass(frozen=True)
class QueryUnderAudit:
    """``releases`` of a ``query`` over features of length ``dim``, seen by whoever gets all the noisy sums.

    ``shares`` is the number of sites that add the query's noise to a sum; the noise multiplier of ``query`` is then
    that of one site's share.
    """

    query: PrototypeQuery
    releases: int = 1
    dim: int = 1
    unit: Unit = Unit.RECORD
    shares: int = 1

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of a release, with the noise of all shares."""
        return self.query.noise_multiplier * math.sqrt(self.shares)

    def epsilon(self, canaries: int, delta: float, noise: float = 1.0) -> float:
        """Return the ε that the accountant gives."""
        return self._history(canaries, noise).epsilon(delta)

    def curve(self, canaries: int, noise: float = 1.0) -> TradeOff:
        """Return the trade-off curve of all releases together."""
        return composed_trade_off(self._history(canaries, noise))

    def simulated(self, coins: Bool, noise: float = 1.0) -> Float:
        """Draw scores (m,) for ``coins`` (m,)."""
        deviation = self.noise_multiplier * noise * math.sqrt(self.releases)
        return np.asarray(coins * float(self.releases) + random().normal(0.0, deviation, coins.size))

    def scores(self, coins: Bool) -> Float:
        """Release with the canaries that are in by ``coins`` (m,): near the number of releases for these, else 0."""
        exact = self._exact(coins)
        scores = np.zeros(coins.size)
        for _ in range(self.releases):
            scores += self._products(*exact.noised())
            for _ in range(self.shares - 1):
                scores += self._products(*self._nothing(coins.size).noised())
        return scores

    @property
    def _parts(self) -> int:
        """Classes of one canary."""
        return 1 if self.unit is Unit.RECORD else _CLASSES

    def _history(self, canaries: int, noise: float) -> Composed:
        coordinates = self.query.coordinates(canaries * self._parts, self.dim)
        release = GaussianRelease(self.noise_multiplier * noise, coordinates)
        return Composed.of([release] * self.releases)

    def _nothing(self, canaries: int) -> Sums:
        return self.query.start(canaries * self._parts, self.dim)

    def _exact(self, coins: Bool) -> Sums:
        sums, inside = self._nothing(coins.size), np.flatnonzero(coins)
        if self.unit is not Unit.RECORD:
            owners = np.repeat(inside, _CLASSES * _RECORDS)
            return joint_sums(sums, self._batches(inside), owners)
        for features, labels in self._batches(inside):
            sums.add(features, labels)
        return sums

    def _batches(self, inside: Ints) -> Iterator[tuple[Float, Ints]]:
        """Yield features and labels of these canaries, in their order."""
        records = 1 if self.unit is Unit.RECORD else _RECORDS
        for first in range(0, inside.size, _AT_ONCE):
            some = inside[first : first + _AT_ONCE, None] * self._parts + np.arange(self._parts)
            labels = np.repeat(some.reshape(-1), records)
            yield np.full((labels.size, self.dim), LENGTH * self.query.clip / math.sqrt(self.dim)), labels

    def _products(self, vectors: Ints, weights: Ints) -> Float:
        """Return inner products (m,) with what a canary adds, in units of that squared."""
        grid = self.query.grid
        along = grid.radius / math.sqrt(self.dim) * vectors.sum(axis=1, dtype=np.float64)
        of_classes = (along + grid.weight * weights.astype(np.float64)).reshape(-1, self._parts)
        return np.asarray(of_classes.sum(axis=1) / (math.sqrt(self._parts) * float(grid.sensitivity_squared)))
