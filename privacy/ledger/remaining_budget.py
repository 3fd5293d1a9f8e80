"""Remaining budget: checks that a release fits, and the number of releases that still fit.

Each check asks the accountant for the ε of the history with the release added. Guarantee: a count never exceeds the
number that fits. Limit: from 100 on, a count may be 1 % too low.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from privacy.accounting.accounting_rules import Accountant, Accounting
from privacy.accounting.events import DpSgd, Event
from privacy.errors import BudgetError
from privacy.ledger.lines import Budget, Entry, Limit, Spending

MOST_RELEASES, MOST_STEPS = 10_000, 1_000_000
"""Largest counts that :func:`count_remaining` returns."""


def spent_epsilon(history: Sequence[Event], limit: Limit, epsilon: Accountant) -> float:
    """Return the epsilon that a history has spent at the limit's delta: 0 for an empty history."""
    return epsilon(history, limit.delta) if history else 0.0


def fits(history: Sequence[Event], event: Event, limit: Limit, epsilon: Accountant) -> bool:
    """Return True if epsilon stays within the limit with ``event`` added; False if epsilon is not a number."""
    # In this direction, because a comparison with NaN is False: what cannot be counted does not fit.
    return epsilon((*history, event), limit.delta) <= limit.epsilon


def check_covered(entries: Sequence[Entry], spending: Spending, limit: Limit) -> None:
    """Raise :class:`BudgetError` for DP-SGD beside entries of another agreement if the accountant is ``PLD``.

    ``PLD`` covers parameters chosen after seeing earlier outputs for Gaussian releases only
    (docs/adr/0021-accounting-across-runs.md).
    """
    if limit.accountant is not Accounting.PLD:
        return
    # The composition of privacy losses is proven for parameters that are fixed beforehand. For Gaussian releases alone
    # the sum of 1/z² bounds the whole however the next z was chosen (Smith and Thakurta 2022).
    payments = [*(entry.spending for entry in entries), spending]
    agreements = {payment.agreement_hash for payment in payments}
    if len(agreements) > 1 and any(isinstance(payment.event, DpSgd) for payment in payments):
        raise BudgetError(
            f"{spending.release} has another agreement than earlier entries of the ledger, and DP-SGD is among them:"
            f" accountant = {Accounting.PLD.value!r} does not cover agreements chosen after seeing earlier results. Run"
            " `protoseal budget allow --accountant renyi-filter`, which costs more epsilon, or, if all agreements were"
            " fixed before the first release, --accountant pld-planned; then set the same accountant in [privacy] of"
            " the site's file"
        )


def check_payments(entries: Sequence[Entry], spending: Spending, most_payments: int | None) -> None:
    """Raise :class:`BudgetError` if the release has ``most_payments`` entries under its agreement already.

    The outcome depends only on the number of entries, which is public, and never on records.
    """
    if most_payments is None:
        return
    planned = (spending.release, spending.agreement_hash)
    paid = sum((entry.spending.release, entry.spending.agreement_hash) == planned for entry in entries)
    if paid >= most_payments:
        raise BudgetError(
            f"{spending.release} was paid for {paid} times, and this site allows {most_payments}: ask the coordinator"
            " why it repeats the round; to allow more, raise most_paid_attempts in [privacy] of the site's file"
        )


def refusal(history: Sequence[Event], spending: Spending, budget: Budget, epsilon: Accountant) -> BudgetError:
    """Return the error for a release that does not fit, with the epsilon it would reach and the count that remains."""
    limit, event = budget.limit, spending.event
    spent, total = spent_epsilon(history, limit, epsilon), epsilon((*history, event), limit.delta)
    return BudgetError(
        f"{spending.release} would bring data set {budget.dataset!r} to epsilon {total:.6g}, above its limit of "
        f"{limit}; epsilon {spent:.6g} is spent. Of this kind "
        f"{describe_remaining(event, count_remaining(history, event, limit, epsilon))} remain; `protoseal budget plan` "
        "finds what fits"
    )


def count_remaining(history: Sequence[Event], event: Event, limit: Limit, epsilon: Accountant) -> int:
    """Count how many more releases like ``event`` fit, or steps of DP-SGD with the parameters of ``event``.

    The count never exceeds the number that fits, nor :data:`MOST_RELEASES` or :data:`MOST_STEPS`. From 100 on, the
    count may be 1 % too low, because an accountant may take a second for each answer.
    """
    start, largest = (event.steps, MOST_STEPS) if isinstance(event, DpSgd) else (1, MOST_RELEASES)

    def fits_times(count: int) -> bool:
        return epsilon((*history, *_several(event, count)), limit.delta) <= limit.epsilon

    fitting, beyond = _bracket(fits_times, start, largest)
    # An accountant may take a second for an answer, so the bisection stops at 1 %, and splits factors, not differences.
    while beyond - fitting > max(1, fitting // 100):
        middle = max(fitting + 1, math.isqrt(fitting * beyond))
        fitting, beyond = (middle, beyond) if fits_times(middle) else (fitting, middle)
    return fitting


def _bracket(fit: Callable[[int], bool], start: int, largest: int) -> tuple[int, int]:
    """Return a count that fits, or 0, and one that does not, or ``largest`` + 1: at most a factor of 4 apart."""
    count = min(start, largest)
    if fit(count):
        while count < largest and fit(min(4 * count, largest)):
            count = min(4 * count, largest)
        return count, min(4 * count, largest) if count < largest else largest + 1
    while count > 1 and not fit(count // 4 or 1):
        count = count // 4 or 1
    return (count // 4 or 1, count) if count > 1 else (0, 1)


def describe_remaining(event: Event, count: int) -> str:
    """Return the words for ``count`` releases like ``event``, or ``count`` steps of DP-SGD."""
    if isinstance(event, DpSgd):
        steps = "step" if count == 1 else "steps"
        rate = f"sampling rate {event.sampling_rate:g}"
        return f"{count} {steps} of DP-SGD with noise multiplier {event.noise_multiplier:g} and {rate}"
    releases = "release" if count == 1 else "releases"
    return f"{count} {releases} with noise multiplier {event.noise_multiplier:g}"


def _several(event: Event, count: int) -> tuple[Event, ...]:
    return (replace(event, steps=count),) if isinstance(event, DpSgd) else (event,) * count
