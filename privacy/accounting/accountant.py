"""What a history of noisy releases and private training costs: ε at a δ, and δ at an ε.

Neighbours are data sets that differ by one record, added or removed. Privacy loss distributions (``dp_accounting``)
compose Gaussian releases and DP-SGD with Poisson sampling alike, and never tell less than the truth, given what
:class:`Slack` adds. DP-SGD's Gaussian counts as exact (docs/explanation/privacy.md has the limit of float64).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from privacy.accounting.events import DpSgd, Event, GaussianRelease
from privacy.mechanisms.gaussian import discreteness

if TYPE_CHECKING:
    from dp_accounting.pld import PLDAccountant

_ROUNDING = 1e-12
"""Of δ, for float64 in sums of privacy losses …"""
_ROUNDING_OF_A_STEP = 1e-15
"""… and for each step whose spectrum is raised to a power."""

_MOST_STEPS = 10**15
"""More steps count as so many, whose rounding is above every δ already."""

_FINENESS = 1000
"""So many times is the grid of privacy losses, h, finer than the standard deviation of all of them; …"""
_GRID_COST = 1e-4
"""… T·h² is at most this, as rounding each of T steps to the grid costs about 2·T·h² of ε; and there are at most …"""
_POINTS = 2**20
"""… so many points."""

MOST_EPSILON = 900.0
"""Beyond it a guarantee says nothing, and ε counts as infinite."""

_LEAST_NOISE, _MOST_NOISE, _MOST_TRAINING_NOISE = 1e-6, 1e9, 1e6
"""More noise than these counts as so much: that costs more, and nothing overflows. A release with less than the least
costs infinitely much either way; …"""
_LEAST_TRAINING_NOISE = 1e-3
"""… training with less than this counts as if it did, whatever its rate."""
_LEAST_RATE = 1e-12
"""A smaller one counts as this, which costs more."""


@dataclass(frozen=True)
class Slack:
    """What continuous noise does not cost: that the real noise is discrete, and float64's rounding.

    A history that is (ε, δ)-private with continuous noise and exact arithmetic is (ε + ``epsilon``,
    ``factor``·δ + ``delta``)-private as it is (:func:`~privacy.mechanisms.gaussian.discreteness`): with p ≤ e^a·q
    and q ≤ e^b·p, P(S) ≤ e^a·Q(S) ≤ e^a·(e^ε·Q'(S) + δ) ≤ e^(a+b+ε)·P'(S) + e^a·δ.
    """

    epsilon: float
    delta: float
    factor: float


@dataclass(frozen=True)
class Composed:
    """A history with equal things put together: order does not matter to what it costs.

    ``squares`` is Σ 1/noise_multiplier² over releases, which are one release with 1/√squares together.
    """

    squares: float = 0.0
    coordinates: int = 0
    training: tuple[DpSgd, ...] = ()

    @classmethod
    def of(cls, history: Iterable[Event]) -> Composed:
        releases: list[GaussianRelease] = []
        steps: dict[tuple[float, float], int] = {}
        for event in history:
            if isinstance(event, GaussianRelease):
                releases.append(event)
            elif isinstance(event, DpSgd):
                rate = max(event.sampling_rate, _LEAST_RATE)
                kind = min(event.noise_multiplier, _MOST_TRAINING_NOISE), rate
                steps[kind] = steps.get(kind, 0) + event.steps
            else:  # not to be passed over as if it cost nothing
                raise TypeError(f"there is no accounting for {event!r:.80}")
        return cls(
            squares=math.fsum(map(_square, releases)),
            coordinates=sum(release.coordinates for release in releases),
            training=tuple(DpSgd(*kind, min(count, _MOST_STEPS)) for kind, count in sorted(steps.items())),
        )

    def and_releases(self, count: int, release: GaussianRelease) -> Composed:
        """This with ``count`` times the same release, to the last bit as such a history alone."""
        return Composed(
            squares=self.squares + count * _square(release),
            coordinates=self.coordinates + count * release.coordinates,
            training=self.training,
        )

    def epsilon(self, delta: float) -> float:
        """See :func:`epsilon`."""
        _check_delta(delta)
        if self == Composed():
            return 0.0
        if self.is_beyond() or delta <= (slack := self.slack()).delta:
            return math.inf
        left = (delta - slack.delta) / slack.factor
        found = float(_accountant(self).get_epsilon(left)) + slack.epsilon
        return found if found <= MOST_EPSILON else math.inf

    def delta(self, epsilon: float) -> float:
        """See :func:`delta_of`."""
        if not 0 <= epsilon <= MOST_EPSILON:
            raise ValueError(f"an ε is from 0 to {MOST_EPSILON:g}, not {epsilon}")
        if self == Composed():
            return 0.0
        if self.is_beyond() or (slack := self.slack()).delta >= 1.0:
            return 1.0
        continuous = float(_accountant(self).get_delta(epsilon - slack.epsilon))
        return min(1.0, continuous * slack.factor + slack.delta)

    def deltas(self, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a δ for each ε (n,), as :meth:`delta` does, of one composition; for a history with events."""
        if self.is_beyond() or (slack := self.slack()).delta >= 1.0:
            return np.ones(len(epsilons))
        continuous = np.asarray(_accountant(self).get_delta((epsilons - slack.epsilon).tolist()))
        return np.minimum(1.0, continuous * slack.factor + slack.delta)

    def slack(self) -> Slack:
        """See :class:`Slack`; of a history that is not :meth:`is_beyond`."""
        if self == Composed():
            return Slack(0.0, 0.0, 1.0)
        above, below = discreteness(self.coordinates)
        rounding = _ROUNDING + _ROUNDING_OF_A_STEP * sum(each.steps for each in self.training)
        return Slack(above + below, rounding, math.exp(above))

    def is_beyond(self) -> bool:
        """Whether it counts as more ε than is told of: by its releases, at any δ below 0.49, or too little noise."""
        return (
            self.squares / 2 > MOST_EPSILON
            or sum(discreteness(self.coordinates)) > MOST_EPSILON
            or any(each.noise_multiplier < _LEAST_TRAINING_NOISE for each in self.training)
        )


def epsilon(history: Sequence[Event], delta: float) -> float:
    """The ε such that ``history`` is (ε, ``delta``)-private under adding or removing one record.

    0 for an empty history; infinite where ``delta`` is not above the :class:`Slack`'s, and above :data:`MOST_EPSILON`.
    Not less than the truth, and more by 0.001 or 1 % at most, but where training counts as worse than it is: with
    a noise multiplier below 1e-3 (infinitely), or a rate below 1e-12.
    """
    return Composed.of(history).epsilon(delta)


def delta_of(history: Sequence[Event], epsilon: float) -> float:
    """The δ such that ``history`` is (``epsilon``, δ)-private under adding or removing one record.

    ``epsilon`` is from 0 to :data:`MOST_EPSILON`. 1 for what :func:`epsilon` counts as infinite at every δ.
    """
    return Composed.of(history).delta(epsilon)


def _square(release: GaussianRelease) -> float:
    return 1 / min(max(release.noise_multiplier, _LEAST_NOISE), _MOST_NOISE) ** 2


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"a δ is between 0 and 1, not {delta}")


def _accountant(composed: Composed) -> PLDAccountant:
    from privacy.accounting.loss_accountants import by_losses  # noqa: PLC0415 (takes a second to import)

    return by_losses(composed.training, composed.squares, _grid_width(composed))


def _grid_width(composed: Composed) -> float:
    """The grid that is needed, if it fits: a power of two, so that histories that differ little have the same."""
    steps = sum(each.steps for each in composed.training)
    variance, single = _spread(composed)
    wanted = math.sqrt(variance) / _FINENESS
    if steps:
        wanted = min(wanted, math.sqrt(_GRID_COST / steps))
    fits = max(single, 20 * math.sqrt(variance)) / _POINTS
    return float(max(2.0 ** math.floor(math.log2(wanted)), 2.0 ** math.ceil(math.log2(fits))))


def _spread(composed: Composed) -> tuple[float, float]:
    """Roughly: the variance of all privacy losses together, which is a Gaussian's, and the largest loss of one step."""
    variance, single = composed.squares, 0.0
    for each in composed.training:
        inverse = each.noise_multiplier**-2
        sampled = each.sampling_rate**2 * math.expm1(min(inverse, 50.0))
        variance += each.steps * min(inverse, sampled)
        single = max(single, inverse / 2 + 10 / each.noise_multiplier)
    return variance, single
