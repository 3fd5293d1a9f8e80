"""Check, whenever a run begins or resumes at a site, that the remaining budget covers the rest of the run.

Limits. The plan has no retries: a repeated round may be paid for again, up to ``most_paid_attempts`` times, so a run
that exactly fits the plan can still end early. Rounds that the site missed count until a later round is paid for: a
site that missed the only release of its run needs room for the release whenever it starts, although the release is
never paid for. Other runs on the same ledger can spend the rest after the check.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from agreement import Agreement
from agreement.sections.privacy import PrivacySection
from privacy.accounting.accounting_rules import accountant_for
from privacy.accounting.events import Event
from privacy.errors import BudgetError
from privacy.ledger.budget_account import Account
from privacy.ledger.lines import ReleaseName
from secure_client.privacy.run_cost import TRAINING, WHAT, event_of, training_of


def planned_by_round(agreement: Agreement, agreed: PrivacySection) -> Iterator[tuple[ReleaseName, Event]]:
    """Yield the events of :func:`secure_client.privacy.run_cost.planned_history` with their names, oldest first."""
    training, release = training_of(agreement, agreed), event_of(agreement, agreed)
    for number in range(0 if agreement.method.is_grouped else 1, agreement.rounds + 1):
        if training is not None and number:
            yield ReleaseName(agreement.run, number, TRAINING), training
        if agreement.release_round(number) == number:
            yield ReleaseName(agreement.run, number, WHAT), release


def first_without_room(agreement: Agreement, agreed: PrivacySection, account: Account) -> int | None:
    """Return the first round that the remaining budget does not cover; None if the rest of the run fits.

    Entries of this run in the ledger are already paid for. The coordinator does not return to a round before the last
    one that is paid for, so payments that the site missed in earlier rounds are never due.
    """
    paid = {
        entry.spending.release
        for entry in account.entries
        if entry.spending.agreement_hash == agreement.hash()
    }
    reached = max((release.round for release in paid), default=0)
    planned = planned_by_round(agreement, agreed)
    left = [(name, event) for name, event in planned if name.round >= reached and name not in paid]
    events, limit = [event for _, event in left], account.limit
    cost = accountant_for(limit.accountant)

    def exceeds(count: int) -> bool:
        return not cost([*account.history, *events[:count]], limit.delta) <= limit.epsilon

    if not events or not exceeds(len(events)):
        return None
    counts = range(1, len(events) + 1)
    return left[bisect_left(counts, True, key=exceeds)][0].round


def check_room(agreement: Agreement, agreed: PrivacySection, account: Account) -> None:
    """Raise :class:`BudgetError` unless the remaining budget covers the rest of the run, without retries."""
    number = first_without_room(agreement, agreed, account)
    if number is None:
        return
    limit = account.limit
    spent = accountant_for(limit.accountant)(account.history, limit.delta) if account.history else 0.0
    raise BudgetError(
        f"the budget of {account.budget.dataset!r} does not cover round {number} of {agreement.rounds}, even without"
        f" a repeated round: epsilon {spent:.4g} of {limit} is spent; agree on more noise or fewer releases (`protoseal"
        " budget plan`), or raise the limit (`protoseal budget allow`, which records a reason)"
    )
