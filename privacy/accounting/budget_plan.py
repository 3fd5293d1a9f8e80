"""Budget plans: the releases of a site, their privacy cost, and the expected error of the noisy prototypes.

A plan fixes two of ε, the number of releases and the noise multiplier, and finds the third. Guarantee: a plan never
costs more than its ε by :mod:`privacy.accounting.accountant`. Limit: errors are first-order estimates.
"""

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
    """Prototype query: ``classes`` sums of ``dim`` features of norm at most ``clip``, and weighted counts.

    The query protects one ``unit``. ``classes_of_one`` is the number of classes in which one subject or site has
    records; each class then counts 1/√classes_of_one (:mod:`privacy.mechanisms.joint_clipping`). Raises ``ValueError``
    unless ``classes_of_one`` is 1 for records, and from 1 to ``classes`` for subjects and sites.
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
            raise ValueError(
                f"classes_of_one must be from 1 to {most} for unit {self.unit}, not {self.classes_of_one}"
            )

    @property
    def coordinates(self) -> int:
        """Number of values in one release, K·(d + 1): each class's sum and count."""
        return self.classes * (self.dim + 1)


@dataclass(frozen=True)
class ErrorOfMean:
    """Expected error of a released class mean, for a class in which ``records`` units (records, subjects, sites) are.

    ``absolute`` is the root mean square error of the mean in units of a feature, ``relative`` is ``absolute`` divided
    by the clip, and ``count`` is the standard deviation of the count, in units of privacy.

    ``first_order`` is True if the count's noise is below a third of the count. Otherwise the class is often treated as
    absent, and ``absolute`` and ``relative`` are too low.
    """

    records: int
    absolute: float
    relative: float
    count: float
    first_order: bool


@dataclass(frozen=True)
class BudgetPlan:
    """Plan of ``releases`` of ``query`` at ``noise_multiplier``, and ``training``, within (``epsilon``, ``delta``).

    ``averaged`` is the number of releases whose noisy sums and counts a site averages; errors are of the last mean.
    """

    epsilon: float
    delta: float
    releases: int
    noise_multiplier: float
    query: Query
    training: DpSgd | None = None
    averaged: int = 1

    @property
    def history(self) -> Composed:
        """All events of the plan."""
        release = GaussianRelease(self.noise_multiplier, self.query.coordinates)
        return Composed.of(() if self.training is None else (self.training,)).with_releases(
            self.releases, release
        )

    @property
    def spent(self) -> float:
        """The ε of all events of the plan at ``delta``: at most ``epsilon``."""
        return self.history.epsilon(self.delta)

    @property
    def slack(self) -> Slack:
        """Cost beyond continuous noise (:class:`~privacy.accounting.accountant.Slack`)."""
        return self.history.slack()

    def error(self, records: int) -> ErrorOfMean:
        """Return the expected error for a class in which ``records`` ≥ 1 units have records."""
        query, spread = self.query, math.sqrt(self.query.classes_of_one)
        noise = self.noise_multiplier / math.sqrt(min(self.releases, self.averaged))
        absolute = spread * mean_error(noise, query.clip, query.count_weight, records, query.dim)
        count = spread * count_error(noise, query.clip, query.count_weight)
        return ErrorOfMean(records, absolute, absolute / query.clip, count, 3 * count < records)

    def with_releases(self, count: int) -> BudgetPlan:
        """Return a plan that spreads this budget over ``count`` releases."""
        return _with_noise(self, count)


def plan(
    query: Query,
    delta: float,
    *,
    epsilon: float | None = None,
    count: int | None = None,
    noise: float | None = None,
    training: DpSgd | None = None,
) -> BudgetPlan:
    """Find the one of ``epsilon``, ``count`` (of releases) and ``noise`` (multiplier) that is None; return the plan.

    Raises ``ValueError`` unless exactly one is None, and :class:`~privacy.errors.Unattainable` if no value fulfils the
    plan.
    """
    known = BudgetPlan(epsilon or 0.0, delta, count or 0, noise or 0.0, query, training)
    if noise is None and epsilon is not None and count is not None:
        return _with_noise(known, count)
    if count is None and epsilon is not None and noise is not None:
        most = releases(epsilon, delta, noise, query.coordinates, _beside(training))
        return replace(known, releases=most)
    if epsilon is None and count is not None and noise is not None:
        return replace(known, epsilon=known.spent)
    raise ValueError("give exactly two of epsilon, the number of releases and the noise multiplier")


def _with_noise(known: BudgetPlan, count: int) -> BudgetPlan:
    beside = _beside(known.training)
    noise = noise_multiplier(known.epsilon, known.delta, count, known.query.coordinates, beside)
    return replace(known, releases=count, noise_multiplier=noise)


def _beside(training: DpSgd | None) -> Sequence[DpSgd]:
    return () if training is None else (training,)
