"""The privacy ledger that a site's own file names."""

from __future__ import annotations

from protoseal.config.privacy import BudgetSection
from secure_client.privacy.accountants import accountant_of
from secure_client.privacy.entries import Limit
from secure_client.privacy.ledger import Ledger


def site_ledger(budget: BudgetSection) -> Ledger:
    """Return the ledger with the limit and the accountant of the site's file; opens nothing yet."""
    limit = Limit(budget.epsilon, budget.delta, budget.unit, budget.accountant)
    return Ledger(budget.ledger, budget.dataset, limit, epsilon=accountant_of(budget.accountant))
