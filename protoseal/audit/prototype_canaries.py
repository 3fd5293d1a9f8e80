"""Audit of noisy prototype releases: canaries, each the only record of a class of its own, are put in by coin flips.

The audit adds a class for each canary. Further classes do not raise the sensitivity, since a record belongs to one
class, so the claim under test is that of the agreed clip, count weight and noise. A canary's features have 100 times
the norm of the clip and the same magnitude in every coordinate, so that missing clipping shows, and clipping of each
coordinate by itself shows too. Contributions of canaries to the query are orthogonal: under the claimed noise, all
that the noisy sums reveal of a canary is their inner product with its contribution.

Noise that differs from the claim can reveal more, and the scores look for three such faults:

- noise that is equal in several coordinates or releases: signs of features alternate, so that such noise cancels;
- sums that got no noise: scores are Fisher's discriminant, weighted by the inverse of the sums' empirical covariance;
- classes without any noise: canaries whose scores are equal in every bit are guessed first.

No score depends on the coin flips, which the theorem of :mod:`protoseal.audit.canary_audit` demands.

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
from protoseal.audit.canary_audit import Bool, Float, fresh_generator
from protoseal.audit.trade_off import TradeOff, composed_trade_off

LENGTH = 100.0
"""Norm of a canary's features, over the clip."""
CANARY_BATCH = 1000
"""Number of canaries that are added in one batch."""
SUBJECT_CLASSES = 2
"""Number of classes of a subject that is a canary."""
SUBJECT_RECORDS = 3
"""Number of records of such a subject in each of its classes."""
COORDINATE_PARTS = 4
"""Parts of the coordinates that scores weigh against each other."""
RELEASE_BLOCKS = 8
"""Blocks of releases that scores weigh against each other."""
CANARIES_PER_STATISTIC = 500
"""Canaries for each statistic from which on their covariance is estimated; with fewer, the claimed one is used."""
RIDGE = 1e-6
"""The part of the claimed noise's variance that is added to every statistic's, so that none has zero variance."""
DISCRIMINANT_MARGIN = 1.02
"""Factor by which the estimated discriminant has to separate the coins better than the claimed one, or is not used."""
SIGN_PATTERN = np.array([1.0, -1.0, 1.0, 1.0])
"""Signs of a canary's features in parts of the coordinates, and in blocks of releases."""
DUPLICATE_TOLERANCE = 1e-9
"""Difference below which two scores are duplicates."""
DUPLICATES = 10
"""Number of equal scores that shows missing noise: real noise makes hardly two equal."""


@dataclass(frozen=True)
class AuditedQuery:
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

    def simulated_scores(self, coins: Bool, noise: float = 1.0) -> Float:
        """Draw scores (m,) for ``coins`` (m,) without running the query."""
        deviation = self.noise_multiplier * noise * math.sqrt(self.releases)
        return np.asarray(coins * float(self.releases) + fresh_generator().normal(0.0, deviation, coins.size))

    def scores(self, coins: Bool) -> Float:
        """Release with the canaries that are in by ``coins`` (m,): near the number of releases for these, else 0.

        Canaries whose classes have no noise are infinitely likely to be in, or out.
        """
        signal = self._canary_signal()
        statistics = self._noisy_statistics(coins, len(signal))
        statistics -= statistics.mean(axis=0)
        weights = discriminant_weights(statistics, signal.reshape(-1))
        # Divided by the signal's own score, a canary that is in scores the number of releases.
        scores = statistics @ weights * (self.releases / float(signal.reshape(-1) @ weights))
        return force_certain_on_duplicates(scores) + self.releases / 2

    def _noisy_statistics(self, coins: Bool, blocks: int) -> Float:
        """Return statistics (m, n) of each canary's classes, whose claimed noise has a deviation of 1."""
        signs = np.resize(SIGN_PATTERN, blocks).tolist()
        clean = {sign: self._clean_sums(coins, sign) for sign in set(signs)}
        statistics = np.zeros((coins.size, blocks, self._classes * (len(self._part_starts) + 1)))
        for release in range(self.releases):
            block = release % blocks
            # One site has the canaries; the others add empty sums, which have their share of the noise.
            for share in [clean[signs[block]], *[self._empty_sums(coins.size)] * (self.shares - 1)]:
                statistics[:, block] += self._block_sums(*share.add_noise(), signs[block])
        # Noise of n independent sums has a deviation of √n: divided, every statistic has a deviation of 1.
        statistics /= np.sqrt(self._releases_per_block(blocks) * self.shares)[:, None]
        return statistics.reshape(coins.size, -1)

    def _block_sums(self, vectors: Ints, weights: Ints, sign: float) -> Float:
        """Return sums over parts of the coordinates, and the counts: (m, n), of deviation 1 under one share's noise."""
        signed = np.add.reduceat(vectors * (sign * self._feature_signs), self._part_starts, axis=1)
        sums = np.concatenate([signed / np.sqrt(self._part_sizes), weights[:, None]], axis=1) / SIGMA
        return np.asarray(sums.reshape(-1, self._classes * sums.shape[1]))

    def _canary_signal(self) -> Float:
        """Return what a canary adds to its statistics: (blocks, n)."""
        grid, blocks = self.query.grid, min(RELEASE_BLOCKS, self.releases)
        per_class = np.array([*(grid.radius * np.sqrt(self._part_sizes / self.dim)), grid.weight]) / SIGMA
        # A subject's bound is shared among its classes, as joint clipping does.
        per_release = np.tile(per_class / math.sqrt(self._classes), self._classes)
        return np.asarray(np.sqrt(self._releases_per_block(blocks) / self.shares)[:, None] * per_release)

    def _releases_per_block(self, blocks: int) -> Ints:
        return np.bincount(np.arange(self.releases) % blocks, minlength=blocks)

    @property
    def _part_starts(self) -> Ints:
        parts = min(COORDINATE_PARTS, self.dim)
        return np.arange(parts) * self.dim // parts

    @property
    def _part_sizes(self) -> Ints:
        return np.diff([*self._part_starts, self.dim])

    @property
    def _feature_signs(self) -> Float:
        """Signs (d,) of a canary's features."""
        return np.asarray(np.repeat(np.resize(SIGN_PATTERN, self._part_starts.size), self._part_sizes))

    @property
    def _classes(self) -> int:
        return 1 if self.unit is Unit.RECORD else SUBJECT_CLASSES

    def _history(self, canaries: int, noise: float) -> Composed:
        coordinates = self.query.coordinates(canaries * self._classes, self.dim)
        release = GaussianRelease(self.noise_multiplier * noise, coordinates)
        return Composed.of([release] * self.releases)

    def _empty_sums(self, canaries: int) -> Sums:
        return self.query.start(canaries * self._classes, self.dim)

    def _clean_sums(self, coins: Bool, sign: float) -> Sums:
        sums, members = self._empty_sums(coins.size), np.flatnonzero(coins)
        if self.unit is not Unit.RECORD:
            owners = np.repeat(members, SUBJECT_CLASSES * SUBJECT_RECORDS)
            return joint_sums(sums, self._batches(members, sign), owners)
        for features, labels in self._batches(members, sign):
            sums.add(features, labels)
        return sums

    def _batches(self, members: Ints, sign: float) -> Iterator[tuple[Float, Ints]]:
        records = 1 if self.unit is Unit.RECORD else SUBJECT_RECORDS
        features = sign * self._feature_signs * (LENGTH * self.query.clip / math.sqrt(self.dim))
        for first in range(0, members.size, CANARY_BATCH):
            batch = members[first : first + CANARY_BATCH, None] * self._classes + np.arange(self._classes)
            labels = np.repeat(batch.reshape(-1), records)
            yield np.tile(features, (labels.size, 1)), labels


def discriminant_weights(statistics: Float, signal: Float) -> Float:
    """Return Fisher's discriminant (n,) for ``statistics`` (m, n) of which a canary that is in has ``signal`` more.

    The ``statistics`` have a mean of zero, and are claimed to have independent noise of deviation 1: then ``signal``
    (n,) itself is the discriminant. Where their covariance shows less noise in some direction, the weights are
    covariance⁻¹·signal. The covariance includes the variance that the coins cause along ``signal``, which changes the
    length of the discriminant and not its direction (Sherman and Morrison).
    """
    canaries, count = statistics.shape
    if canaries < CANARIES_PER_STATISTIC * count:
        return signal
    covariance = statistics.T @ statistics / canaries + RIDGE * np.eye(count)
    weights: Float = np.linalg.solve(covariance, signal)
    # Under the claim the covariance is I + signal·signalᵀ/4 (fair coins), for which signal·weights is this.
    length = float(signal @ signal)
    expected = length / (1 + length / 4)
    return weights if float(signal @ weights) > DISCRIMINANT_MARGIN * expected else signal


def force_certain_on_duplicates(scores: Float) -> Float:
    """Return ``scores`` (m,) with duplicates made infinite: above zero they are surely in, below it surely out.

    Noise hardly ever gives two equal scores, so equal ones come from classes without noise.
    """
    # Compared after rounding, since a solver may differ in the last bit between equal rows.
    _, group, counts = np.unique(
        np.rint(scores / DUPLICATE_TOLERANCE), return_inverse=True, return_counts=True
    )
    return np.where(counts[group] >= DUPLICATES, np.copysign(np.inf, scores), scores)
