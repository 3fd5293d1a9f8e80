"""Which noise, or how many releases, a budget allows, and what the noise does to prototypes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from privacy.accounting.accountant import MOST_EPSILON, Composed
from privacy.accounting.events import Event, GaussianRelease
from privacy.errors import Unattainable

NOISE_GRID = 10_000
"""Noise multipliers are whole multiples of one over this."""

_ROUNDING = 1e-9
"""So much of itself, at most, is the noise in closed form off."""
_MOST_NOISE = 10**6 * NOISE_GRID
_MOST_RELEASES = 10**9


def noise_multiplier(
    epsilon: float, delta: float, releases: int, coordinates: int = 0, beside: Sequence[Event] = ()
) -> float:
    """The least noise multiplier, on a grid of 0.0001, with which ``releases`` and ``beside`` cost at most ``epsilon``.

    ``coordinates`` are those of one release. The noise is never less than that of continuous noise with nothing beside
    it, where the search starts. Raises :class:`~privacy.errors.Unattainable` where no noise is enough.
    """
    _check(epsilon, releases)
    base = Composed.of(beside)
    _leaves_something(base, epsilon, delta)

    def enough(units: int) -> bool:
        release = GaussianRelease(units / NOISE_GRID, coordinates)
        return base.and_releases(releases, release).epsilon(delta) <= epsilon

    least = max(1, math.floor(NOISE_GRID * math.sqrt(releases) / _mu(epsilon, delta) * (1 - _ROUNDING)))
    step, most = 1, least
    while not enough(most):
        if most > _MOST_NOISE:
            raise Unattainable(
                f"no noise keeps {releases} releases within ε = {epsilon:g} at δ = {delta:g}: raise one of them"
            )
        least, most, step = most + 1, most + step, 4 * step
    return _first(enough, least, most) / NOISE_GRID


def releases(
    epsilon: float, delta: float, noise_multiplier: float, coordinates: int = 0, beside: Sequence[Event] = ()
) -> int:
    """The most releases of ``noise_multiplier`` that, with ``beside``, cost at most ``epsilon``: 0 or more.

    Raises :class:`~privacy.errors.Unattainable` where ``beside`` alone costs more.
    """
    _check(epsilon, 1)
    base, release = Composed.of(beside), GaussianRelease(noise_multiplier, coordinates)
    _leaves_something(base, epsilon, delta)

    def too_many(count: int) -> bool:
        return base.and_releases(count, release).epsilon(delta) > epsilon

    # With continuous noise and nothing beside them there would be so many: one more is certainly too many.
    reach = noise_multiplier * _mu(epsilon, delta)
    bound = 1 + reach * reach * (1 + _ROUNDING)
    if bound > _MOST_RELEASES:
        raise Unattainable(
            f"the budget allows over {_MOST_RELEASES} releases: this is no noise worth planning"
        )
    return _first(too_many, 1, math.floor(bound)) - 1


def mean_error(noise_multiplier: float, clip: float, count_weight: float, count: int, dim: int) -> float:
    """Root mean square of how far (L2 norm) a class's released mean is from that of its clipped features.

    ``count`` records of a class, features (``dim``,) of norm at most ``clip``. With σ = noise·√(clip² + weight²), the
    sum's noise gives σ·√dim/count, and the count's, σ/weight, moves a mean of norm ``clip``, the most there is, by
    clip·σ/(weight·count). First order: it holds where the count's noise (:func:`count_error`) is small beside it.
    """
    sigma = noise_multiplier * math.hypot(clip, count_weight)
    return sigma * math.hypot(math.sqrt(dim), clip / count_weight) / count


def count_error(noise_multiplier: float, clip: float, count_weight: float) -> float:
    """Standard deviation of a class's released count, in records."""
    return noise_multiplier * math.hypot(clip, count_weight) / count_weight


def _mu(epsilon: float, delta: float) -> float:
    """Return sensitivity over deviation of continuous noise alone (Balle and Wang 2018), right to 1e-11 of it.

    Noise that costs more than any ε that is told is too little for every budget.
    """
    from dp_accounting import get_sigma_gaussian  # noqa: PLC0415 (it takes a second)

    return 1 / float(get_sigma_gaussian(min(epsilon, MOST_EPSILON), delta))


def _check(epsilon: float, releases: int) -> None:
    if not 0 < epsilon < math.inf:
        raise ValueError(f"an ε is a number over 0, not {epsilon}")
    if releases < 1:
        raise ValueError(f"a plan has 1 release or more, not {releases}")


def _leaves_something(base: Composed, epsilon: float, delta: float) -> None:
    spent = base.epsilon(delta)
    if spent > epsilon:
        raise Unattainable(
            f"DP-SGD costs ε = {spent:.4g} alone, of {epsilon:g} at δ = {delta:g}: more noise there, a lower sampling"
            " rate or fewer steps leave some for releases"
        )


def _first(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The least number from ``low`` on for which ``holds``, which is true of ``high`` and of all from the least on."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return high
