"""Record of a run without noise in a site's privacy ledger: its data set has no guarantee in this and all later runs.

The ledger has the record before any exact value leaves the site.
"""

from __future__ import annotations

import logging
from pathlib import Path

from agreement import Agreement
from privacy.ledger.hash_chain import Anchor
from secure_client.privacy.budget_section import BudgetSection
from secure_client.privacy.releases import NO_GUARANTEE, Spent
from secure_client.privacy.site_ledger import site_ledger

_log = logging.getLogger("protoseal.site")


class ExactReleases:
    """Exact releases of a site, which end the guarantee for its data set in this and all later runs."""

    def __init__(self, agreement: Agreement, budget: BudgetSection) -> None:
        """Open the ledger, or begin it; :class:`LedgerError` where it cannot be written, or is of another limit."""
        self._agreement, self._budget = agreement, budget
        self._ledger = site_ledger(budget)

    def declare(self) -> None:
        """Have it in the ledger that this run has no guarantee, once; durable when this returns.

        :class:`LedgerError` where that cannot be: then nothing may leave.
        """
        if self._ledger.expose(self._agreement.run, self._agreement.hash()):
            _log.warning(
                "%s for data set %r from now on: exact values leave in run %r (%s)",
                *(NO_GUARANTEE, self._budget.dataset, self._agreement.run, self._budget.ledger),
            )

    @property
    def dataset(self) -> str:
        """The data set's name, as the site gave it."""
        return self._budget.dataset

    @property
    def ledger(self) -> Path:
        """The ledger's file."""
        return self._budget.ledger

    @property
    def anchor(self) -> Anchor:
        """The ledger's last entry."""
        return self._ledger.anchor

    def check_anchor(self, anchor: Anchor) -> None:
        """Raise :class:`RolledBackError` where the ledger lacks the entry that was kept."""
        self._ledger.check_anchor(anchor.seq, anchor.head)

    @property
    def spent(self) -> Spent:
        """So far, over all runs; guaranteed is none of it."""
        return Spent(self._ledger.epsilon_spent(), self._budget.delta, guaranteed=False)


def open_exact(agreement: Agreement, budget: BudgetSection | None) -> ExactReleases | None:
    """None where what leaves is noisy, or the site keeps no ledger."""
    return None if agreement.privacy is not None or budget is None else ExactReleases(agreement, budget)
