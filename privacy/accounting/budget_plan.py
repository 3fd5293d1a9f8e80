"""A plan of a budget: what a site releases, what that costs, and how far its prototypes will be off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from privacy.accounting.accountant import Composed, Slack
from privacy.accounting.calibration import count_error, mean_error, noise_multiplier, releases
from privacy.accounting.events import DpSgd, GaussianRelease
from privacy.units import Unit


@dataclass(frozen=True)
class Query:
    """The prototype query: ``classes`` sums of ``dim`` features of norm at most ``clip``, and counts weighted.

    It protects one ``unit``; a subject or a site has records of so many ``classes_of_one``, and counts one over their
    root in each (:mod:`privacy.mechanisms.joint_clipping`).
    """

    clip: float
    count_weight: float
    dim: int
    classes: int
    unit: Unit = Unit.RECORD
    classes_of_one: int = 1

    def __post_init__(self) -> None:
        most = 1 if self.unit is Unit.RECORD else self.classes
        if not 1 <= self.classes_of_one <= most:
            raise ValueError(f"one {self.unit} has records of 1 to {most} classes, not {self.classes_of_one}")

    @property
    def coordinates(self) -> int:
        """Numbers in one release: each class's sum and count."""
        return self.classes * (self.dim + 1)


@dataclass(frozen=True)
class ErrorOfMean:
    """Of a class with ``records``, or with subjects or sites that have some.

    Root mean square of its mean's error, that over the clip, and its count's error.

    ``first_order`` tells whether the count's noise is below a third of the count: else the class is often treated as
    absent, and the other two figures are too low.
    """

    records: int
    absolute: float
    relative: float
    count: float
    first_order: bool


@dataclass(frozen=True)
class Plan:
    """``releases`` of ``query`` with ``noise_multiplier``, and ``training``, within (``epsilon``, ``delta``)."""

    epsilon: float
    delta: float
    releases: int
    noise_multiplier: float
    query: Query
    training: DpSgd | None = None

    @property
    def history(self) -> Composed:
        release = GaussianRelease(self.noise_multiplier, self.query.coordinates)
        return Composed.of(() if self.training is None else (self.training,)).and_releases(
            self.releases, release
        )

    @property
    def spent(self) -> float:
        """The ε of all of it at ``delta``: at most ``epsilon``."""
        return self.history.epsilon(self.delta)

    @property
    def slack(self) -> Slack:
        return self.history.slack()

    def error(self, records: int) -> ErrorOfMean:
        """Of a class of which so many units have records, 1 or more."""
        query, spread = self.query, math.sqrt(self.query.classes_of_one)
        absolute = spread * mean_error(
            self.noise_multiplier, query.clip, query.count_weight, records, query.dim
        )
        count = spread * count_error(self.noise_multiplier, query.clip, query.count_weight)
        return ErrorOfMean(records, absolute, absolute / query.clip, count, 3 * count < records)

    def with_releases(self, count: int) -> Plan:
        """The same budget spread over another number of releases."""
        return _with_noise(self, count)


def plan(
    query: Query,
    delta: float,
    *,
    epsilon: float | None = None,
    count: int | None = None,
    noise: float | None = None,
    training: DpSgd | None = None,
) -> Plan:
    """The plan with the one of ``epsilon``, ``count`` (of releases) and ``noise`` (multiplier) that is None found.

    Raises ValueError if not exactly one is None, :class:`~privacy.errors.Unattainable` where there is no such.
    """
    known = Plan(epsilon or 0.0, delta, count or 0, noise or 0.0, query, training)
    if noise is None and epsilon is not None and count is not None:
        return _with_noise(known, count)
    if count is None and epsilon is not None and noise is not None:
        most = releases(epsilon, delta, noise, query.coordinates, _beside(training))
        return replace(known, releases=most)
    if epsilon is None and count is not None and noise is not None:
        return replace(known, epsilon=known.spent)
    raise ValueError("give two of ε, the number of releases and the noise multiplier")


def _with_noise(known: Plan, count: int) -> Plan:
    beside = _beside(known.training)
    noise = noise_multiplier(known.epsilon, known.delta, count, known.query.coordinates, beside)
    return replace(known, releases=count, noise_multiplier=noise)


def _beside(training: DpSgd | None) -> Sequence[DpSgd]:
    return () if training is None else (training,)
