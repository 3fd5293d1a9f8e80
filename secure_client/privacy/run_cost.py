"""Privacy cost of a run, from its agreement alone: all sites train equally often, with equal noise."""

from __future__ import annotations

import math
from pathlib import Path

from agreement import Agreement
from agreement.sections.privacy import PrivacySection
from privacy.accounting.accounting_rules import Accounting, accountant_for, pld_cost
from privacy.accounting.events import DpSgd, Event, GaussianRelease
from privacy.errors import BudgetError
from privacy.mechanisms.prototype_query import PrototypeQuery
from secure_client.privacy.budget_section import BudgetSection

WHAT, TRAINING = "prototypes", "training"
"""Names in the ledger of a run's two kinds of payments: a release, and a round's training by DP-SGD."""
SIMULATED_DELTA = 1e-5
_PAID_TWICE = 8
"""Number of rounds that a simulated site may pay for twice, in runs that are killed and resumed."""


def event_of(agreement: Agreement, agreed: PrivacySection) -> GaussianRelease:
    """Return the cost of a release over the agreed number of parts of classes, which bounds that over fewer.

    Every release of a run costs as much. The number of cells around centres follows from a decryption under ``ckks``,
    so a cost by that number would say in a refusal what the centres were.
    """
    coordinates = PrototypeQuery.coordinates(agreement.most_cells, agreement.dim)
    return GaussianRelease(agreed.noise_multiplier, coordinates)


def training_of(agreement: Agreement, agreed: PrivacySection) -> DpSgd | None:
    """Return the cost of a round's training; None without DP-SGD, when training is free or not covered."""
    settings = agreed.dp_sgd
    if settings is None:
        return None
    steps = settings.steps(agreement.training.local_epochs)
    return DpSgd(settings.noise_multiplier, settings.sampling_rate, steps)


def planned_history(agreement: Agreement, agreed: PrivacySection) -> list[Event]:
    """Return all events of a run: the training of every round, and every release."""
    training = training_of(agreement, agreed)
    trained: list[Event] = [] if training is None else [training] * agreement.rounds
    return [*trained, *[event_of(agreement, agreed)] * agreement.releases]


def worst_epsilon(
    agreement: Agreement, agreed: PrivacySection, delta: float, accountant: Accounting, attempts: int
) -> float:
    """Return the ε of :func:`planned_history` with everything paid for in this many attempts of each round."""
    return accountant_for(accountant)(planned_history(agreement, agreed) * attempts, delta)


def planned_epsilon(
    agreement: Agreement, agreed: PrivacySection, delta: float, accountant: Accounting = Accounting.PLD
) -> float:
    """Return the ε of :func:`planned_history`; infinite if the noise is too small for a finite ε."""
    return accountant_for(accountant)(planned_history(agreement, agreed), delta)


def planned_in_words(agreement: Agreement, agreed: PrivacySection) -> str:
    """Describe :func:`planned_history` in words."""
    count, training = agreement.releases, training_of(agreement, agreed)
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
    training = training_of(agreement, agreed)
    again: list[Event] = [event_of(agreement, agreed), *([] if training is None else [training])]
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
