"""Integer grid for noisy sums of records, whose step is chosen so that the sensitivity is exact.

The step is noise_multiplier·√(C² + w²)/2^20 for a clip C and a count weight w, so that noise with a standard deviation
of 2^20 steps has the noise multiplier that was asked for. A record's feature vector becomes whole steps with a norm of
at most B = ⌊C/step⌋, and its count W = ⌊w/step⌋ steps. B² + W² ≤ (2^20/noise_multiplier)² is checked in exact
arithmetic; where the rounded root breaks the bound in its last digits, the step is the next larger float.

Where several sites add noise of 2^20 steps each, the step follows from each site's share (:func:`noise_share`).
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
"""Standard deviation of a query's noise, in steps."""
_MAX_RADIUS = 2**30
"""Largest norm in steps: squares of norms, and sums of 2^32 records, stay within 63 bits."""


def noise_share(noise_multiplier: float, terms: int) -> float:
    """Return the noise multiplier of each of ``terms`` ≥ 1 independent noises whose sum has ``noise_multiplier``.

    Variances add up, so the share is noise_multiplier/√terms, rounded up: terms·share² ≥ noise_multiplier² in exact
    arithmetic. The summed noise on a grid that keeps the share has variance terms·2^40, at least the square of
    ``noise_multiplier`` times the sensitivity. Raises ``ValueError`` for fewer terms, or a multiplier that is not
    positive and finite.
    """
    if terms < 1 or not 0.0 < noise_multiplier < math.inf:
        raise ValueError(
            f"noise multiplier {noise_multiplier} must be positive and finite, and terms at least 1, not {terms}"
        )
    share = noise_multiplier / math.sqrt(terms)
    while terms * Fraction(share) ** 2 < Fraction(noise_multiplier) ** 2:
        share = math.nextafter(share, math.inf)
    return share


def best_count_weight(clip: float, dim: int) -> float:
    """Return clip/d^¼, the weight of counts that minimises the error of a noisy mean.

    :func:`privacy.accounting.budget_plan.mean_error` is then noise·clip·(√d + 1)/count.
    """
    return clip / math.sqrt(math.sqrt(dim))


@dataclass(frozen=True)
class Grid:
    """Grid with ``step`` in units of a feature, ``radius`` B and ``weight`` W in steps."""

    step: float
    radius: int
    weight: int

    @classmethod
    def of(cls, clip: float, count_weight: float, noise_multiplier: float) -> Grid:
        """Return the grid for features of norm up to ``clip``.

        Raises ``ValueError`` unless all three arguments are positive and finite, and unless clip and count weight are
        from 1 to 2^30 steps each, which fails for an extreme noise multiplier or ratio of clip to count weight.
        """
        numbers = (clip, count_weight, noise_multiplier)
        if not all(0.0 < number < math.inf for number in numbers):
            raise ValueError(
                f"clip, count weight and noise multiplier must be positive and finite, not {numbers}"
            )
        step = noise_multiplier * math.hypot(clip, count_weight) / SIGMA
        if not 0.0 < step < math.inf:
            raise ValueError(f"clip, count weight and noise multiplier {numbers} give no finite step above 0")
        while True:
            # Rounded down to whole steps: a record's clip may only become smaller than agreed.
            exact = Fraction(step)
            grid = cls(step, math.floor(Fraction(clip) / exact), math.floor(Fraction(count_weight) / exact))
            if grid.keeps(noise_multiplier):
                break
            # Rounding of the root may break the bound in its last digits: then the next larger float is the step.
            step = math.nextafter(step, math.inf)
        if not (1 <= grid.radius <= _MAX_RADIUS and 1 <= grid.weight <= _MAX_RADIUS):
            raise ValueError(
                f"clip {clip:g} and count weight {count_weight:g} are {grid.radius} and {grid.weight} steps, "
                "not 1 to 2^30: bring the count weight nearer to the clip, or the noise multiplier nearer to 1"
            )
        return grid

    @property
    def sensitivity_squared(self) -> int:
        """Squared sensitivity B² + W²: no record changes the integer query by a larger squared norm."""
        return self.radius**2 + self.weight**2

    def keeps(self, noise_multiplier: float) -> bool:
        """Return True if 2^20 steps are at least ``noise_multiplier`` times the sensitivity, in exact arithmetic."""
        return bool(self.sensitivity_squared * Fraction(noise_multiplier) ** 2 <= SIGMA**2)

    def clip_records(self, features: Float) -> Ints:
        """Return features (N, d), clipped, in whole steps with a norm of at most B: int64 (N, d).

        A vector longer than B steps (the clip, rounded down to a step) is shortened in its direction. Each value is
        then truncated towards zero, which moves the value by less than a step. A record's row depends on that record
        alone, to the last digit, whatever the other records are. Features must be finite.
        """
        largest = np.abs(features).max(axis=1, initial=0.0)
        largest[largest == 0.0] = 1.0
        directions = features / largest[:, None]
        lengths = np.minimum(largest, self.radius * self.step / np.maximum(_norms(directions), 1.0))
        return self._within(np.trunc(directions * (lengths / self.step)[:, None]).astype(np.int64))

    def _within(self, rows: Ints) -> Ints:
        """Shorten rows that float rounding has left longer than B, a step at a time in the row's largest value."""
        while (over := np.flatnonzero(np.square(rows).sum(axis=1) > self.radius**2)).size:
            at = np.abs(rows[over]).argmax(axis=1)
            rows[over, at] -= np.sign(rows[over, at])
        return rows


def _norms(rows: Float) -> Float:
    """Return the Euclidean norms (N,) of rows (N, d) with values up to 1.

    The sum runs column by column: numpy's or a BLAS's order of summation may depend on the matrix's shape, and then a
    record's last digit would depend on the number of other records.
    """
    squares = np.zeros(len(rows))
    for column in rows.T:
        squares += np.square(column)
    return np.sqrt(squares)
