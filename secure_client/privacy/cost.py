"""Privacy cost of a run, from its agreement alone, and the check that a site's remaining budget covers it.

All sites train equally often, with equal noise. The check is made whenever a run begins or resumes.

Limits. The plan has no retries: a repeated round may be paid for again, up to ``most_paid_attempts`` times, so a run
that exactly fits the plan can still end early. Rounds that the site missed count until a later round is paid for: a
site that missed the only release of its run needs room for the release whenever it starts, although the release is
never paid for. Other runs on the same ledger can spend the rest after the check.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

from agreement import Agreement
from agreement.sections.privacy import PrivacySection
from privacy.accounting.accounting_rules import Accounting, accountant_for, pld_cost
from privacy.accounting.events import DpSgd, Event, GaussianRelease
from privacy.errors import BudgetError
from privacy.ledger.budget_account import Account
from privacy.ledger.lines import ReleaseName
from privacy.mechanisms.prototype_query import PrototypeQuery
from secure_client.privacy.budget import BudgetSection

PROTOTYPES, TRAINING = "prototypes", "training"
"""Names in the ledger of a run's two kinds of payments: a release, and a round's training by DP-SGD."""
SIMULATED_DELTA = 1e-5
_PAID_TWICE = 8
"""Number of rounds that a simulated site may pay for twice, in runs that are killed and resumed."""


def release_event(agreement: Agreement, agreed: PrivacySection) -> GaussianRelease:
    """Return the cost of a release over the agreed number of parts of classes, which bounds that over fewer.

    Every release of a run costs as much. The number of cells around centres follows from a decryption under ``ckks``,
    so a cost by that number would say in a refusal what the centres were.
    """
    coordinates = PrototypeQuery.coordinates(agreement.most_cells, agreement.dim)
    return GaussianRelease(agreed.noise_multiplier, coordinates)


def training_event(agreement: Agreement, agreed: PrivacySection) -> DpSgd | None:
    """Return the cost of a round's training; None without DP-SGD, when training is free or not covered."""
    settings = agreed.dp_sgd
    if settings is None:
        return None
    steps = settings.steps(agreement.training.local_epochs)
    return DpSgd(settings.noise_multiplier, settings.sampling_rate, steps)


def planned_history(agreement: Agreement, agreed: PrivacySection) -> list[Event]:
    """Return all events of a run: the training of every round, and every release."""
    training = training_event(agreement, agreed)
    trained: list[Event] = [] if training is None else [training] * agreement.rounds
    return [*trained, *[release_event(agreement, agreed)] * agreement.releases]


def planned_epsilon(
    agreement: Agreement,
    agreed: PrivacySection,
    delta: float,
    accountant: Accounting = Accounting.PLD,
    *,
    attempts: int = 1,
) -> float:
    """Return the ε of :func:`planned_history`, paid for ``attempts`` times; infinite for too little noise."""
    return accountant_for(accountant)(planned_history(agreement, agreed) * attempts, delta)


def planned_in_words(agreement: Agreement, agreed: PrivacySection) -> str:
    """Describe :func:`planned_history` in words."""
    count, training = agreement.releases, training_event(agreement, agreed)
    releases = f"{count} release{'s' * (count != 1)} with noise multiplier {agreed.noise_multiplier:g}"
    if training is None:
        return releases
    return (
        f"{releases} and {training.steps * agreement.rounds} steps of DP-SGD with {training.noise_multiplier:g} at"
        f" sampling rate {training.sampling_rate:g}"
    )


def simulated_budget(agreement: Agreement, site: str, folder: Path) -> BudgetSection:
    """Return the budget of a simulated site: its own ledger in ``folder``, with room for the whole run.

    The budget also has room for a few rounds that are paid for twice, by runs that are killed and resumed. Raises
    :class:`BudgetError` if the noise is too small for any finite budget.
    """
    agreed = agreement.privacy
    if agreed is None:
        raise ValueError("an agreement without noise needs no budget")
    training = training_event(agreement, agreed)
    again: list[Event] = [release_event(agreement, agreed), *([] if training is None else [training])]
    planned = pld_cost([*planned_history(agreement, agreed), *again * _PAID_TWICE], SIMULATED_DELTA)
    if not math.isfinite(planned):
        raise BudgetError("the noise is too small for a finite epsilon: set a larger noise_multiplier")
    return BudgetSection(
        dataset=site,
        ledger=folder / "ledger.jsonl",
        epsilon=planned,
        delta=SIMULATED_DELTA,
        unit=agreed.unit,
        allow_no_guarantee=True,
        least_colluding=0,
        most_paid_attempts=1 + _PAID_TWICE,
    )


def check_planned(agreement: Agreement, agreed: PrivacySection, budget: BudgetSection) -> None:
    """Raise :class:`BudgetError` if the whole run takes more than the site allows, whatever is spent already."""
    planned = planned_epsilon(agreement, agreed, budget.delta, budget.accountant)
    if not planned <= budget.epsilon:
        raise BudgetError(
            f"the agreement's {planned_in_words(agreement, agreed)} take epsilon {planned:.4g} at delta "
            f"{budget.delta:g}, but this site allows {budget.epsilon:g}: find noise or releases that fit with "
            "`protoseal budget plan`"
        )


def planned_by_round(agreement: Agreement, agreed: PrivacySection) -> Iterator[tuple[ReleaseName, Event]]:
    """Yield the events of :func:`planned_history` with their names, oldest first."""
    training, release = training_event(agreement, agreed), release_event(agreement, agreed)
    # Round 0 is FedPC's grouping, for which each site releases the prototypes of its initial model.
    for number in range(0 if agreement.method.is_grouped else 1, agreement.rounds + 1):
        if training is not None and number:
            yield ReleaseName(agreement.run, number, TRAINING), training
        if agreement.release_round(number) == number:
            yield ReleaseName(agreement.run, number, PROTOTYPES), release


def check_room(agreement: Agreement, agreed: PrivacySection, account: Account) -> None:
    """Raise :class:`BudgetError` unless the remaining budget covers the rest of the run, without retries."""
    agreement_hash, limit = agreement.hash(), account.limit
    cost = accountant_for(limit.accountant)
    # Entries of this run in the ledger are paid for. The coordinator does not return to a round before the last one
    # that is paid for, so payments that the site missed in earlier rounds are never due.
    paid = {
        entry.spending.release for entry in account.entries if entry.spending.agreement_hash == agreement_hash
    }
    reached = max((release.round for release in paid), default=0)
    due = [
        (name, event)
        for name, event in planned_by_round(agreement, agreed)
        if name.round >= reached and name not in paid
    ]

    def exceeds(count: int) -> bool:
        events = [event for _, event in due[:count]]
        return not cost([*account.history, *events], limit.delta) <= limit.epsilon

    if not due or not exceeds(len(due)):
        return
    # The cost only grows with further events, so a bisection finds the first round without room.
    number = due[bisect_left(range(1, len(due) + 1), True, key=exceeds)][0].round
    spent = cost(account.history, limit.delta) if account.history else 0.0
    raise BudgetError(
        f"the budget of {account.budget.dataset!r} does not cover round {number} of {agreement.rounds}, even without"
        f" a repeated round: epsilon {spent:.4g} of {limit} is spent; agree on more noise or fewer releases (`protoseal"
        " budget plan`), or raise the limit (`protoseal budget allow`, which records a reason)"
    )
