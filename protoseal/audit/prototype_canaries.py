"""Audit of noisy prototype releases: canaries, each the only record of a class of its own, are put in by coin flips.

The audit adds a class for each canary. Further classes do not raise the sensitivity, since a record belongs to one
class, so the claim under test is that of the agreed clip, count weight and noise. A canary's features have 100 times
the norm of the clip and the same magnitude in every coordinate, so that missing clipping shows, and clipping of each
coordinate by itself shows too. Contributions of canaries to the query are orthogonal: under the claimed noise, all
that the noisy sums reveal of a canary is their inner product with its contribution.

Noise that differs from the claim can reveal more, and the scores look for three such faults:

- noise that is equal in several coordinates or releases: signs of features alternate, so that such noise cancels;
- sums that got no noise: scores are weighted by the inverse of the sums' empirical covariance;
- classes without any noise: canaries whose scores are equal in every bit are guessed first.

No score depends on the coin flips.

Limits:

- The covariance is estimated over four parts of the coordinates and eight parts of the releases, not for each one.
- Noise from a known seed looks like fresh noise, unless the same noise appears in a later release.

If the privacy unit is a subject or a site, each canary is a subject with several records in each of two classes. If
sites share the noise, a sum has as many shares of noise as the shortest list of participants that the agreement
permits has members, less the colluding sites.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from privacy.accounting.accountant import Composed
from privacy.accounting.events import GaussianRelease, Unit
from privacy.mechanisms.grid import SIGMA, Ints
from privacy.mechanisms.joint_clipping import joint_sums
from privacy.mechanisms.prototype_query import PrototypeQuery, Sums
from protoseal.audit.canary_audit import random
from protoseal.audit.canary_bound import Bool, Float
from protoseal.audit.trade_off import TradeOff, composed_trade_off

LENGTH = 100.0
"""Norm of a canary's features, over the clip."""
_AT_ONCE = 1000
"""Number of canaries that are added in one batch."""
_CLASSES, _RECORDS = 2, 3
"""Number of classes of a subject, and of its records in each class."""
_PARTS, _BLOCKS = 4, 8
"""Parts of the coordinates, and of the releases, that scores weigh against each other."""
_CANARIES_OF_A_NUMBER = 500
"""Canaries for each of a score's numbers from which on their covariance is estimated; with fewer, all weigh alike."""
_RIDGE = 1e-6
"""The part of the claimed noise's variance that is added to every number's, so that none has zero variance."""
_SHARPER = 1.02
"""Coordinates and releases are weighed against each other if that tells the coins better than the claim by so much."""
_TURNS = np.array([1.0, -1.0, 1.0, 1.0])
"""Signs of a canary's features in parts of the coordinates, and in blocks of releases."""
_SAME, _REPEATS = 1e-9, 10
"""Difference below which scores are equal, and the number of equal scores that shows missing noise."""


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
        """Release with the canaries that are in by ``coins`` (m,): near the number of releases for these, else 0.

        Canaries whose classes have no noise are infinitely likely to be in, or out.
        """
        added = self._added()
        seen = self._seen(coins, len(added))
        seen -= seen.mean(axis=0)
        weights = weighed(seen, added.reshape(-1))
        scores = seen @ weights * (self.releases / float(added.reshape(-1) @ weights))
        return sure_of_repeats(scores) + self.releases / 2

    def _seen(self, coins: Bool, blocks: int) -> Float:
        """Return the noisy numbers (m, n) of each canary's classes, with the claimed noise's deviation for a unit."""
        turns = np.resize(_TURNS, blocks).tolist()
        exact = {sign: self._exact(coins, sign) for sign in set(turns)}
        seen = np.zeros((coins.size, blocks, self._parts * (len(self._starts) + 1)))
        for number in range(self.releases):
            block = number % blocks
            for share in [exact[turns[block]], *[self._nothing(coins.size)] * (self.shares - 1)]:
                seen[:, block] += self._in_parts(*share.add_noise(), turns[block])
        seen /= np.sqrt(self._releases_per_block(blocks) * self.shares)[:, None]
        return seen.reshape(coins.size, -1)

    def _in_parts(self, vectors: Ints, weights: Ints, sign: float) -> Float:
        """Return sums over parts of the coordinates, and the counts: (m, n), of deviation 1 under one share's noise."""
        signed = np.add.reduceat(vectors * (sign * self._signs), self._starts, axis=1)
        sizes = np.diff([*self._starts, self.dim])
        numbers = np.concatenate([signed / np.sqrt(sizes), weights[:, None]], axis=1) / SIGMA
        return np.asarray(numbers.reshape(-1, self._parts * numbers.shape[1]))

    def _added(self) -> Float:
        """Return what a canary adds to the numbers that are seen: (blocks, n)."""
        grid, blocks = self.query.grid, min(_BLOCKS, self.releases)
        sizes = np.diff([*self._starts, self.dim])
        of_class = np.array([*(grid.radius * np.sqrt(sizes / self.dim)), grid.weight]) / SIGMA
        of_release = np.tile(of_class / math.sqrt(self._parts), self._parts)
        return np.asarray(np.sqrt(self._releases_per_block(blocks) / self.shares)[:, None] * of_release)

    def _releases_per_block(self, blocks: int) -> Ints:
        """Return the number of releases in each block."""
        return np.bincount(np.arange(self.releases) % blocks, minlength=blocks)

    @property
    def _starts(self) -> Ints:
        """The first coordinate of each part."""
        parts = min(_PARTS, self.dim)
        return np.arange(parts) * self.dim // parts

    @property
    def _signs(self) -> Float:
        """Signs (d,) of a canary's features."""
        sizes = np.diff([*self._starts, self.dim])
        return np.asarray(np.repeat(np.resize(_TURNS, self._starts.size), sizes))

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

    def _exact(self, coins: Bool, sign: float) -> Sums:
        sums, inside = self._nothing(coins.size), np.flatnonzero(coins)
        if self.unit is not Unit.RECORD:
            owners = np.repeat(inside, _CLASSES * _RECORDS)
            return joint_sums(sums, self._batches(inside, sign), owners)
        for features, labels in self._batches(inside, sign):
            sums.add(features, labels)
        return sums

    def _batches(self, inside: Ints, sign: float) -> Iterator[tuple[Float, Ints]]:
        """Yield features and labels of these canaries, in their order."""
        records = 1 if self.unit is Unit.RECORD else _RECORDS
        features = sign * self._signs * (LENGTH * self.query.clip / math.sqrt(self.dim))
        for first in range(0, inside.size, _AT_ONCE):
            some = inside[first : first + _AT_ONCE, None] * self._parts + np.arange(self._parts)
            labels = np.repeat(some.reshape(-1), records)
            yield np.tile(features, (labels.size, 1)), labels


def weighed(seen: Float, added: Float) -> Float:
    """Return weights (n,) of the numbers ``seen`` (m, n), of which a canary that is in has ``added`` (n,) more.

    ``seen`` have a mean of zero, and are to have noise of deviation 1 each: then ``added`` itself is best. Where the
    covariance that is seen shows less noise in some direction, the weights are those of Fisher's discriminant for it.
    The covariance includes what the coins make of it, which does not change that direction.
    """
    canaries, numbers = seen.shape
    if canaries < _CANARIES_OF_A_NUMBER * numbers:
        return added
    covariance = seen.T @ seen / canaries + _RIDGE * np.eye(numbers)
    weights: Float = np.linalg.solve(covariance, added)
    length = float(added @ added)
    return weights if float(added @ weights) > _SHARPER * length / (1 + length / 4) else added


def sure_of_repeats(scores: Float) -> Float:
    """Return ``scores`` (m,) with those infinite that are repeated: above zero in, below it out."""
    _, which, counts = np.unique(np.rint(scores / _SAME), return_inverse=True, return_counts=True)
    return np.where(counts[which] >= _REPEATS, np.copysign(np.inf, scores), scores)
