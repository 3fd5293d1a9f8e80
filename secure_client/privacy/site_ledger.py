"""Opening of the privacy ledger that a site's configuration file names."""

from __future__ import annotations

from privacy.accounting.accounting_rules import accountant_for
from privacy.ledger.ledger import Ledger
from privacy.ledger.lines import Limit
from secure_client.privacy.budget_section import BudgetSection


def site_ledger(budget: BudgetSection) -> Ledger:
    """Return the ledger with the limit and accountant of the site's file, without opening it."""
    limit = Limit(budget.epsilon, budget.delta, budget.unit, budget.accountant)
    return Ledger(
        budget.ledger,
        budget.dataset,
        limit,
        epsilon=accountant_for(budget.accountant),
        most_payments=budget.most_paid_attempts,
    )
