"""Record of a run without noise in a site's privacy ledger: its data set has no guarantee in this and all later runs.

The ledger records the run before any exact value leaves the site.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from agreement import Agreement
from privacy.ledger.hash_chain import Anchor
from privacy.ledger.lines import Fact
from secure_client.privacy.budget_section import BudgetSection
from secure_client.privacy.releases import NO_GUARANTEE, Spent
from secure_client.privacy.site_ledger import site_ledger

_log = logging.getLogger("protoseal.site")


class ExactReleases:
    """Exact releases of a site, which end the guarantee for its data set in this and all later runs."""

    def __init__(self, agreement: Agreement, budget: BudgetSection) -> None:
        """Open or create the ledger; raise ``LedgerError`` if it cannot be written or has another limit."""
        self._agreement, self._budget = agreement, budget
        self._ledger = site_ledger(budget)
        self._noted: Mapping[str, Fact] = {}

    def note(self, facts: Mapping[str, Fact]) -> None:
        """Set facts on the records, which the ledger records when :meth:`declare` adds its line."""
        self._noted = facts

    def declare(self) -> None:
        """Record once in the ledger that this run has no guarantee; the record is durable when this returns.

        Raises :class:`privacy.errors.LedgerError` if the record cannot be written: then no exact value may leave the
        site.
        """
        if self._ledger.expose(self._agreement.run, self._agreement.hash(), self._noted):
            _log.warning(
                "%s for data set %r from now on: run %r releases exact values (%s)",
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
        """Raise :class:`privacy.errors.RolledBackError` if the ledger lacks the entry of the anchor."""
        self._ledger.check_anchor(anchor.seq, anchor.head)

    @property
    def spent(self) -> Spent:
        """Budget spent so far, over all runs, without a guarantee."""
        return Spent(self._ledger.epsilon_spent(), self._budget.delta, guaranteed=False)


def open_exact(agreement: Agreement, budget: BudgetSection | None) -> ExactReleases | None:
    """Open the record of exact releases; None if the run's releases are noisy or the site has no ledger."""
    return None if agreement.privacy is not None or budget is None else ExactReleases(agreement, budget)
