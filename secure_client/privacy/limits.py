"""Whether a release fits into what remains of a budget, and what would."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from secure_client.errors import BudgetError
from secure_client.privacy.entries import Budget, Limit, Spending
from secure_client.privacy.events import DpSgd, Event

Accountant = Callable[[Sequence[Event], float], float]
"""The epsilon of a history at a delta: never less than what it costs, and no less for a longer history."""
MOST_RELEASES, MOST_STEPS = 1 << 12, 1 << 24
"""As many as :func:`remaining` counts up to."""
_MOST_NOISE = 1 << 20


def epsilon_of(history: Sequence[Event], limit: Limit, epsilon: Accountant) -> float:
    """What a history has spent, at the limit's delta: 0 for none."""
    return epsilon(history, limit.delta) if history else 0.0


def check_fits(history: Sequence[Event], spending: Spending, budget: Budget, epsilon: Accountant) -> None:
    """:class:`BudgetError`, with what remains, if the release would bring epsilon above the limit."""
    limit = budget.limit
    total = epsilon((*history, spending.event), limit.delta)
    if total <= limit.epsilon:  # false for what is not a number
        return
    spent = epsilon_of(history, limit, epsilon)
    raise BudgetError(
        f"{spending.release} would bring data set {budget.dataset!r} to epsilon {total:.6g}, above its limit of "
        f"{limit}; epsilon {spent:.6g} is spent. " + _advice(history, spending.event, limit, epsilon)
    )


def remaining(history: Sequence[Event], event: Event, limit: Limit, epsilon: Accountant) -> int:
    """How many more releases like this one fit, or steps of DP-SGD with its parameters.

    Never more than :data:`MOST_RELEASES` or :data:`MOST_STEPS`.
    """

    def fits(count: int) -> bool:
        return epsilon((*history, *_several(event, count)), limit.delta) <= limit.epsilon

    most = MOST_STEPS if isinstance(event, DpSgd) else MOST_RELEASES
    fitting, beyond = 0, 1
    while beyond <= most and fits(beyond):
        fitting, beyond = beyond, 2 * beyond
    while beyond - fitting > 1:
        middle = (fitting + beyond) // 2
        fitting, beyond = (middle, beyond) if middle <= most and fits(middle) else (fitting, middle)
    return fitting


def in_words(event: Event, count: int) -> str:
    """``count`` releases like ``event``, or steps of it."""
    if isinstance(event, DpSgd):
        steps = "step" if count == 1 else "steps"
        rate = f"sampling rate {event.sampling_rate:g}"
        return f"{count} {steps} of DP-SGD with noise multiplier {event.noise_multiplier:g} and {rate}"
    releases = "release" if count == 1 else "releases"
    return f"{count} {releases} with noise multiplier {event.noise_multiplier:g}"


def _several(event: Event, count: int) -> tuple[Event, ...]:
    return (replace(event, steps=count),) if isinstance(event, DpSgd) else (event,) * count


def _advice(history: Sequence[Event], event: Event, limit: Limit, epsilon: Accountant) -> str:
    left = in_words(event, remaining(history, event, limit, epsilon))
    enough = _enough_noise(history, event, limit, epsilon)
    if enough is None:
        return f"Of this kind {left} remain, and none would fit with more noise: ask for no more releases"
    return f"Of this kind {left} remain; with noise multiplier {enough:.4g} it would fit"


def _enough_noise(history: Sequence[Event], event: Event, limit: Limit, epsilon: Accountant) -> float | None:
    """A noise multiplier, of four digits and at most some 2 % above the least, with which the event fits."""

    def fits(times: float) -> bool:
        louder = replace(event, noise_multiplier=_rounded(times * event.noise_multiplier))
        return epsilon((*history, louder), limit.delta) <= limit.epsilon

    quiet, enough = 1.0, 2.0
    while not fits(enough):
        quiet, enough = enough, 2 * enough
        if enough > _MOST_NOISE:
            return None
    while enough / quiet > 1.02:
        middle = (quiet * enough) ** 0.5
        quiet, enough = (quiet, middle) if fits(middle) else (middle, enough)
    return _rounded(enough * event.noise_multiplier)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
