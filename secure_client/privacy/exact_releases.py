"""Exact releases of a site: a run without noise ends the guarantee for its data set, in this and all later runs.

The site's privacy ledger records the run before any exact value leaves the site.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from agreement import Agreement
from privacy.ledger.lines import Fact
from secure_client.privacy.budget import NO_GUARANTEE, BudgetSection, SpentBudget, open_site_ledger

_log = logging.getLogger("protoseal.site")


class ExactReleases:
    """Record of a run without noise in the data set's ``ledger``."""

    def __init__(self, agreement: Agreement, budget: BudgetSection) -> None:
        """Open or create the ledger; raise ``LedgerError`` if it cannot be written or has another limit."""
        self.ledger = open_site_ledger(budget)
        self._agreement = agreement
        self._facts: Mapping[str, Fact] = {}

    def note(self, facts: Mapping[str, Fact]) -> None:
        """Set facts on the records, which the ledger records when :meth:`declare` adds its line."""
        self._facts = facts

    def declare(self) -> None:
        """Record once in the ledger that this run has no guarantee; the record is durable when this returns.

        Raises :class:`privacy.errors.LedgerError` if the record cannot be written: then no exact value may leave the
        site.
        """
        if self.ledger.record_exposure(self._agreement.run, self._agreement.hash(), self._facts):
            _log.warning(
                "%s for data set %r from now on: run %r releases exact values (%s)",
                NO_GUARANTEE,
                self.ledger.dataset,
                self._agreement.run,
                self.ledger.path,
            )

    def spent_budget(self) -> SpentBudget:
        """Return the budget spent so far, over all runs, without a guarantee."""
        return SpentBudget(self.ledger.epsilon_spent(), self.ledger.limit.delta, guaranteed=False)


def open_exact(agreement: Agreement, budget: BudgetSection | None) -> ExactReleases | None:
    """Open the record of exact releases; None if the run's releases are noisy or the site has no ledger."""
    return None if agreement.privacy is not None or budget is None else ExactReleases(agreement, budget)
