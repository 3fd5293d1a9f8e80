"""Records on a grid whose step follows from the noise: what sensitivity is in whole numbers, without any rounding.

The step is noise_multiplier·√(C² + w²)/2^20 for a clip C and a count weight w, so that noise of standard deviation
2^20 steps is what the noise multiplier says. A record's feature vector becomes whole steps with a norm of at most
B = ⌊C/step⌋ and its count W = ⌊w/step⌋ steps, with B² + W² ≤ (2^20/noise_multiplier)², which is checked in exact
arithmetic. The step of a rounded root may miss that by its last digits; it is then the next larger float.

Where several sites add noise of 2^20 steps each, the step is that of each one's share (:func:`share_of`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Ints = NDArray[np.int64]

SIGMA_LOG2 = 20
SIGMA = 2**SIGMA_LOG2
"""The standard deviation of a query's noise, in steps."""
_MAX_RADIUS = 2**30
"""With it squares of norms, and sums of 2^32 records, stay within 63 bits."""


def share_of(noise_multiplier: float, terms: int) -> float:
    """The noise multiplier of each of ``terms`` ≥ 1 independent noises that make one of ``noise_multiplier`` together.

    noise_multiplier/√terms: variances add up. No less than that in exact arithmetic, terms·share² ≥ noise_multiplier²,
    so that a grid which keeps the share has noise with a variance of terms·2^40, at least ``noise_multiplier`` times
    the sensitivity, squared. Raises ``ValueError`` for fewer terms, or a multiplier that is not positive and finite.
    """
    if terms < 1 or not 0.0 < noise_multiplier < math.inf:
        raise ValueError(
            f"noise of multiplier {noise_multiplier} has no {terms} shares: it is positive, they are 1 or more"
        )
    share = noise_multiplier / math.sqrt(terms)
    while terms * Fraction(share) ** 2 < Fraction(noise_multiplier) ** 2:
        share = math.nextafter(share, math.inf)
    return share


def best_count_weight(clip: float, dim: int) -> float:
    """The weight of counts that makes the error of a noisy mean least: clip/d^¼.

    :func:`secure_client.privacy.calibration.mean_error` is noise·clip·(√d + 1)/count with it.
    """
    return clip / math.sqrt(math.sqrt(dim))


@dataclass(frozen=True)
class Grid:
    """``step`` in units of a feature, ``radius`` B and ``weight`` W in steps."""

    step: float
    radius: int
    weight: int

    @classmethod
    def of(cls, clip: float, count_weight: float, noise_multiplier: float) -> Grid:
        """The grid for features of norm up to ``clip``.

        Raises ``ValueError`` unless all three are positive and finite, and where features or counts would have less
        than one step, or more than 2^30: where the noise multiplier or the ratio of the two is far out.
        """
        given = (clip, count_weight, noise_multiplier)
        if not all(0.0 < each < math.inf for each in given):
            raise ValueError(f"clip, count weight and noise multiplier are positive and finite, not {given}")
        step = noise_multiplier * math.hypot(clip, count_weight) / SIGMA
        if not 0.0 < step < math.inf:
            raise ValueError(f"clip, count weight and noise multiplier {given} have no step between them")
        while not (grid := cls._with_step(step, clip, count_weight)).keeps(noise_multiplier):
            step = math.nextafter(step, math.inf)
        if not (1 <= grid.radius <= _MAX_RADIUS and 1 <= grid.weight <= _MAX_RADIUS):
            raise ValueError(
                f"{clip:g} and {count_weight:g} are {grid.radius} and {grid.weight} steps, not 1 to 2^30: "
                "bring the count weight nearer to the clip, or the noise multiplier nearer to 1"
            )
        return grid

    @classmethod
    def _with_step(cls, step: float, clip: float, count_weight: float) -> Grid:
        exact = Fraction(step)
        return cls(step, math.floor(Fraction(clip) / exact), math.floor(Fraction(count_weight) / exact))

    @property
    def sensitivity_squared(self) -> int:
        """B² + W²: no record changes the whole-numbered query by a squared norm above it."""
        return self.radius**2 + self.weight**2

    def keeps(self, noise_multiplier: float) -> bool:
        """Whether noise of 2^20 steps is at least ``noise_multiplier`` times the sensitivity. Exact."""
        return bool(self.sensitivity_squared * Fraction(noise_multiplier) ** 2 <= SIGMA**2)

    def records(self, features: Float) -> Ints:
        """Features (N, d), clipped, in whole steps of norm at most B: int64 (N, d).

        A vector longer than B steps, which is the clip but for a part of one, keeps its direction; each value is then
        truncated towards zero, which moves it by less than a step. A record's row depends on that record alone, to
        the last digit, whatever stands beside it. Features have to be finite.
        """
        largest = np.abs(features).max(axis=1, initial=0.0)
        largest[largest == 0.0] = 1.0
        directions = features / largest[:, None]
        lengths = np.minimum(largest, self.radius * self.step / np.maximum(_norms(directions), 1.0))
        return self._within(np.trunc(directions * (lengths / self.step)[:, None]).astype(np.int64))

    def _within(self, rows: Ints) -> Ints:
        """Shorten, a step at a time in its largest value, what float rounding has left longer than B."""
        while (over := np.flatnonzero(np.square(rows).sum(axis=1) > self.radius**2)).size:
            at = np.abs(rows[over]).argmax(axis=1)
            rows[over, at] -= np.sign(rows[over, at])
        return rows


def _norms(rows: Float) -> Float:
    """Euclidean norms of rows (N, d) with values up to 1: (N,).

    Added up a column at a time, since what numpy or a BLAS does with a whole matrix may depend on its shape, and with
    it a record's last digit on how many others there are.
    """
    squares = np.zeros(len(rows))
    for column in rows.T:
        squares += np.square(column)
    return np.sqrt(squares)
