"""Privacy cost of a history of noisy releases and private training: ε at a δ, and δ at an ε.

Privacy loss distributions (``dp_accounting``) compose Gaussian releases and DP-SGD with Poisson sampling. Neighbours
are data sets that differ by one record, added or removed.

Guarantee: with the addition of :class:`Slack`, the cost is never understated. Limit: the Gaussian noise of DP-SGD
counts as exact (docs/explanation/privacy.md has the limit of float64).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from privacy.accounting.events import DpSgd, Event, GaussianRelease
from privacy.mechanisms.discrete_gaussian import discreteness

if TYPE_CHECKING:
    from dp_accounting.pld import PLDAccountant

_ROUNDING = 1e-12
"""Part of δ that covers float64 rounding in sums of privacy losses."""
_ROUNDING_OF_A_STEP = 1e-15
"""Part of δ that covers float64 rounding for each step whose spectrum is raised to a power."""

_MOST_STEPS = 10**15
"""Largest number of steps that is distinguished: the rounding of more steps is above every δ already."""

_FINENESS = 1000
"""Ratio of the standard deviation of all privacy losses to the width h of their grid."""
_GRID_COST = 1e-4
"""Largest T·h² for T steps: rounding each step to the grid costs about 2·T·h² of ε."""
_POINTS = 2**20
"""Largest number of grid points."""

MOST_EPSILON = 900.0
"""Largest finite ε: a guarantee above 900 says nothing, so a larger ε counts as infinite."""

_LEAST_NOISE, _MOST_NOISE, _MOST_TRAINING_NOISE = 1e-6, 1e9, 1e6
"""Range of noise multipliers. Noise above the range counts as the largest, which costs more and avoids overflow. A
release with noise below the range costs infinite ε either way."""
_LEAST_TRAINING_NOISE = 1e-3
"""Least noise multiplier of training: training with less costs infinite ε, whatever the sampling rate."""
_LEAST_RATE = 1e-12
"""Least sampling rate: a smaller rate counts as this rate, which costs more."""


@dataclass(frozen=True)
class Slack:
    """Cost beyond continuous noise: the real noise is discrete, and float64 rounds.

    A history that is (ε, δ)-private with continuous noise and exact arithmetic is (ε + ``epsilon``,
    ``factor``·δ + ``delta``)-private with the real noise
    (:func:`~privacy.mechanisms.discrete_gaussian.discreteness`): with p ≤ e^a·q and q ≤ e^b·p,
    P(S) ≤ e^a·Q(S) ≤ e^a·(e^ε·Q'(S) + δ) ≤ e^(a+b+ε)·P'(S) + e^a·δ.
    """

    epsilon: float
    delta: float
    factor: float


@dataclass(frozen=True)
class Composed:
    """History with equal events merged, since the order of events does not change the cost.

    ``squares`` is Σ 1/noise_multiplier² over all releases, which together cost as much as one release with a noise
    multiplier of 1/√squares. ``coordinates`` is the sum of the releases' numbers of coordinates.
    """

    squares: float = 0.0
    coordinates: int = 0
    training: tuple[DpSgd, ...] = ()

    @classmethod
    def of(cls, history: Iterable[Event]) -> Composed:
        """Return the merged history. Raises ``TypeError`` for an event that has no accounting."""
        releases: list[GaussianRelease] = []
        steps: dict[tuple[float, float], int] = {}
        for event in history:
            if isinstance(event, GaussianRelease):
                releases.append(event)
            elif isinstance(event, DpSgd):
                # Less noise and a larger rate cost more, so clamping to the range of the accountant never understates.
                rate = max(event.sampling_rate, _LEAST_RATE)
                kind = min(event.noise_multiplier, _MOST_TRAINING_NOISE), rate
                steps[kind] = steps.get(kind, 0) + event.steps
            else:
                # An unknown event must not count as free.
                raise TypeError(f"no accountant covers the event {event!r:.80}")
        # Gaussians of noise z_i compose to one of 1/z² = Σ 1/z_i² (Dong, Roth and Su 2022).
        return cls(
            squares=math.fsum(map(_square, releases)),
            coordinates=sum(release.coordinates for release in releases),
            # Sorted, so that equal histories are equal keys of the caches.
            training=tuple(
                DpSgd(noise, rate, min(count, _MOST_STEPS)) for (noise, rate), count in sorted(steps.items())
            ),
        )

    def with_releases(self, count: int, release: GaussianRelease) -> Composed:
        """Return this history with ``count`` equal releases added; added to none, bit for bit what :meth:`of` gives."""
        return Composed(
            squares=self.squares + count * _square(release),
            coordinates=self.coordinates + count * release.coordinates,
            training=self.training,
        )

    def epsilon(self, delta: float) -> float:
        """Return the ε for which this history is (ε, ``delta``)-private under adding or removing one record.

        ε is 0 for an empty history. ε is infinite where ``delta`` is not above the :class:`Slack`'s delta, or where ε
        would exceed :data:`MOST_EPSILON`. ε is never less than the true cost, and exceeds the true cost by at most
        0.001 or 1 %. Training with a noise multiplier below 1e-3 (infinite ε) or a sampling rate below 1e-12 is
        overstated by more. Raises ``ValueError`` unless ``delta`` is between 0 and 1.
        """
        if not 0 < delta < 1:
            raise ValueError(f"delta must be between 0 and 1, not {delta}")
        if self == Composed():
            return 0.0
        if self.is_beyond() or delta <= (slack := self.slack()).delta:
            return math.inf
        left = (delta - slack.delta) / slack.factor
        # The slack is taken from δ first, since its factor multiplies the δ of the continuous noise (class Slack).
        epsilon = float(_accountant(self).get_epsilon(left)) + slack.epsilon
        return epsilon if epsilon <= MOST_EPSILON else math.inf

    def deltas(self, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the δ for each ε, float64 (n,), from one composition. The history must not be empty.

        δ is 1 for a history whose ε counts as infinite at every δ.
        """
        if self.is_beyond() or (slack := self.slack()).delta >= 1.0:
            return np.ones(len(epsilons))
        continuous = np.asarray(_accountant(self).get_delta((epsilons - slack.epsilon).tolist()))
        return np.minimum(1.0, continuous * slack.factor + slack.delta)

    def slack(self) -> Slack:
        """Return the :class:`Slack` of this history, for which :meth:`is_beyond` must be False."""
        if self == Composed():
            return Slack(0.0, 0.0, 1.0)
        # a and b of Slack: coordinates of all releases are one vector of independent draws, so one bound holds for
        # them together, also where later releases were chosen after seeing earlier ones.
        above, below = discreteness(self.coordinates)
        rounding = _ROUNDING + _ROUNDING_OF_A_STEP * sum(training.steps for training in self.training)
        return Slack(above + below, rounding, math.exp(above))

    def is_beyond(self) -> bool:
        """Return True if ε counts as infinite: the releases cost too much at any δ below 0.49, or noise is too low."""
        return (
            self.squares / 2 > MOST_EPSILON
            or sum(discreteness(self.coordinates)) > MOST_EPSILON
            or any(training.noise_multiplier < _LEAST_TRAINING_NOISE for training in self.training)
        )


def _square(release: GaussianRelease) -> float:
    return 1 / min(max(release.noise_multiplier, _LEAST_NOISE), _MOST_NOISE) ** 2


def _accountant(composed: Composed) -> PLDAccountant:
    from privacy.accounting.loss_accountants import compose_losses  # noqa: PLC0415 (takes a second to import)

    return compose_losses(composed.training, composed.squares, _grid_width(composed))


def _grid_width(composed: Composed) -> float:
    """Return the width of the grid of losses: a power of two, so that histories that differ little share one grid."""
    steps = sum(training.steps for training in composed.training)
    variance, single = _spread(composed)
    wanted = math.sqrt(variance) / _FINENESS
    if steps:
        wanted = min(wanted, math.sqrt(_GRID_COST / steps))
    # The grid has to hold the largest loss of one step, and twenty deviations of all of them, in _POINTS points.
    fits = max(single, 20 * math.sqrt(variance)) / _POINTS
    return float(max(2.0 ** math.floor(math.log2(wanted)), 2.0 ** math.ceil(math.log2(fits))))


def _spread(composed: Composed) -> tuple[float, float]:
    """Estimate the variance of all privacy losses together, as of a Gaussian, and the largest loss of one step."""
    variance, single = composed.squares, 0.0
    for training in composed.training:
        # A step on every record has losses of variance 1/z². Sampling at rate q leaves q²·(e^(1/z²) − 1), the
        # χ²-divergence of the mixture, where that is less.
        inverse = training.noise_multiplier**-2
        sampled = training.sampling_rate**2 * math.expm1(min(inverse, 50.0))
        variance += training.steps * min(inverse, sampled)
        single = max(single, inverse / 2 + 10 / training.noise_multiplier)
    return variance, single
