"""Budget plans: the releases of a site, their privacy cost, and the expected error of the noisy prototypes.

A plan fixes two of ε, the number of releases and the noise multiplier, and finds the third. The search starts at the
closed form for continuous noise and asks the accountant until the budget holds. Guarantee: a plan never costs more than
its ε by :mod:`privacy.accounting.accountant`. Limit: errors of means are first-order estimates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from privacy.accounting.accountant import MOST_EPSILON, Composed, Slack
from privacy.accounting.events import DpSgd, Event, GaussianRelease, Unit
from privacy.errors import Unattainable

NOISE_GRID = 10_000
"""Number of noise multipliers per unit: every noise multiplier is a whole multiple of 1/10,000."""

_ROUNDING = 1e-9
"""Largest relative error of the noise in closed form."""
_MOST_NOISE = 10**6 * NOISE_GRID
_MOST_RELEASES = 10**9


def find_noise_multiplier(
    epsilon: float, delta: float, releases: int, coordinates: int = 0, beside: Sequence[Event] = ()
) -> float:
    """Return the least noise multiplier, in steps of 0.0001, that keeps ``releases`` and ``beside`` within ``epsilon``.

    ``coordinates`` is the number of coordinates of one release. The search starts at the noise that ``releases`` with
    continuous noise need alone, so the result is never smaller. Raises ``ValueError`` for an ε that is not positive
    and finite or for no release, and :class:`~privacy.errors.Unattainable` if no noise is enough.
    """
    if releases < 1:
        raise ValueError(f"releases must be at least 1, not {releases}")
    _check_epsilon(epsilon)
    base = Composed.of(beside)
    _check_remainder(base, epsilon, delta)

    def is_enough(units: int) -> bool:
        release = GaussianRelease(units / NOISE_GRID, coordinates)
        return base.with_releases(releases, release).epsilon(delta) <= epsilon

    # Releases of equal noise compose to one with 1/√n of the noise, and discreteness and DP-SGD only cost more. So the
    # closed form bounds the result from below, and the search goes up in growing steps, then bisects the last one.
    lowest = max(1, math.floor(NOISE_GRID * math.sqrt(releases) / _mu(epsilon, delta) * (1 - _ROUNDING)))
    step, highest = 1, lowest
    while not is_enough(highest):
        if highest > _MOST_NOISE:
            raise Unattainable(
                f"no noise keeps {releases} releases within ε = {epsilon:g} at δ = {delta:g}: raise one of them"
            )
        lowest, highest, step = highest + 1, highest + step, 4 * step
    return _find_first(is_enough, lowest, highest) / NOISE_GRID


def find_releases(
    epsilon: float, delta: float, noise_multiplier: float, coordinates: int = 0, beside: Sequence[Event] = ()
) -> int:
    """Return the largest number of releases, 0 or more, that cost at most ``epsilon`` together with ``beside``.

    Raises ``ValueError`` for an ε that is not positive and finite, and :class:`~privacy.errors.Unattainable` if
    ``beside`` alone costs more than ``epsilon`` or the budget allows over 10^9 releases.
    """
    _check_epsilon(epsilon)
    base, release = Composed.of(beside), GaussianRelease(noise_multiplier, coordinates)
    _check_remainder(base, epsilon, delta)

    def is_too_many(count: int) -> bool:
        return base.with_releases(count, release).epsilon(delta) > epsilon

    # With continuous noise and no other events this many releases would fit: one more certainly exceeds the budget.
    reach = noise_multiplier * _mu(epsilon, delta)
    bound = 1 + reach * reach * (1 + _ROUNDING)
    if bound > _MOST_RELEASES:
        raise Unattainable(
            f"the budget allows over {_MOST_RELEASES} releases: plan with a lower noise multiplier or epsilon"
        )
    return _find_first(is_too_many, 1, math.floor(bound)) - 1


def mean_error(noise_multiplier: float, clip: float, count_weight: float, count: int, dim: int) -> float:
    """Return the root mean square distance (L2 norm) of a class's released mean from the mean of clipped features.

    The class has ``count`` records with features (``dim``,) of norm at most ``clip``. With σ = noise·√(clip² + weight²)
    the noise of the sum gives σ·√dim/count. The noise of the count, σ/weight, moves a mean of the largest norm,
    ``clip``, by clip·σ/(weight·count). The estimate is first-order: the count's noise (:func:`count_error`) must be
    small compared with the count.
    """
    sigma = noise_multiplier * math.hypot(clip, count_weight)
    # Delta method for the ratio sum/count: both errors are independent, so their squares add up.
    return sigma * math.hypot(math.sqrt(dim), clip / count_weight) / count


def count_error(noise_multiplier: float, clip: float, count_weight: float) -> float:
    """Return the standard deviation of a class's released count, in records."""
    return noise_multiplier * math.hypot(clip, count_weight) / count_weight


def _mu(epsilon: float, delta: float) -> float:
    """Return sensitivity over standard deviation of continuous noise alone (Balle and Wang 2018), to a relative 1e-11.

    ``epsilon`` above :data:`~privacy.accounting.accountant.MOST_EPSILON` counts as that maximum.
    """
    from dp_accounting import get_sigma_gaussian  # noqa: PLC0415 (it takes a second)

    return 1 / float(get_sigma_gaussian(min(epsilon, MOST_EPSILON), delta))


def _check_epsilon(epsilon: float) -> None:
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be positive and finite, not {epsilon}")


def _check_remainder(base: Composed, epsilon: float, delta: float) -> None:
    spent = base.epsilon(delta)
    if spent > epsilon:
        raise Unattainable(
            f"DP-SGD alone costs ε = {spent:.4g} of {epsilon:g} at δ = {delta:g}: raise its noise, or "
            "lower its sampling rate or steps, to leave a budget for releases"
        )


def _find_first(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the least number in ``low`` … ``high`` for which ``holds``; ``holds`` is monotone and true of ``high``."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return high


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
        most_classes = 1 if self.unit is Unit.RECORD else self.classes
        if not 1 <= self.classes_of_one <= most_classes:
            raise ValueError(
                f"classes_of_one must be from 1 to {most_classes} for unit {self.unit}, not {self.classes_of_one}"
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
        return Composed.of(self.beside).with_releases(self.releases, release)

    @property
    def beside(self) -> Sequence[DpSgd]:
        """Events of the plan beside its releases."""
        return () if self.training is None else (self.training,)

    @property
    def cost(self) -> float:
        """The ε of all events of the plan at ``delta``: at most ``epsilon``."""
        return self.history.epsilon(self.delta)

    @property
    def slack(self) -> Slack:
        """Cost beyond continuous noise (:class:`~privacy.accounting.accountant.Slack`)."""
        return self.history.slack()

    def error(self, records: int) -> ErrorOfMean:
        """Return the expected error for a class in which ``records`` ≥ 1 units have records."""
        # Joint clipping gives each class of a unit 1/√k of the weight, so the noise counts √k as much.
        query, spread = self.query, math.sqrt(self.query.classes_of_one)
        noise = self.noise_multiplier / math.sqrt(min(self.releases, self.averaged))
        absolute = spread * mean_error(noise, query.clip, query.count_weight, records, query.dim)
        count = spread * count_error(noise, query.clip, query.count_weight)
        return ErrorOfMean(records, absolute, absolute / query.clip, count, 3 * count < records)

    def with_releases(self, count: int) -> BudgetPlan:
        """Return a plan that spreads this budget over ``count`` releases."""
        noise = find_noise_multiplier(self.epsilon, self.delta, count, self.query.coordinates, self.beside)
        return replace(self, releases=count, noise_multiplier=noise)


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
    partial = BudgetPlan(epsilon or 0.0, delta, count or 0, noise or 0.0, query, training)
    if noise is None and epsilon is not None and count is not None:
        return partial.with_releases(count)
    if count is None and epsilon is not None and noise is not None:
        releases = find_releases(epsilon, delta, noise, query.coordinates, partial.beside)
        return replace(partial, releases=releases)
    if epsilon is None and count is not None and noise is not None:
        return replace(partial, epsilon=partial.cost)
    raise ValueError("give exactly two of epsilon, the number of releases and the noise multiplier")
