"""A site that pays for its releases: a learner with its journal and its ledger, which can be restarted."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from agreement import Agreement
from crypto.keys import StorageKey
from privacy.ledger.budget_account import read_account
from privacy.ledger.lines import Entry
from secure_client.checkpoints.learner_factory import build_checkpointed_learner, build_learner
from secure_client.data import SiteData
from secure_client.privacy.budget import BudgetSection
from secure_client.privacy.releases import open_releases
from secure_client.protocol.journal import Journal
from secure_client.training.learner import Learner
from tests.support.small import small_data

SITE = "clinic-a"


class PayingSite:
    """A learner with its journal and ledger. ``limits`` are settings of the site's budget."""

    def __init__(
        self,
        folder: Path,
        agreed: Agreement,
        data: SiteData | None = None,
        *,
        name: str = SITE,
        epsilon: float = 100.0,
        **limits: Any,
    ) -> None:
        self.ledger = folder / "ledger.jsonl"
        self.agreed = agreed
        self._data = data
        self._name = name
        self._journal_file = folder / "journal.sqlite"
        self._budget = BudgetSection(dataset="scans", ledger=self.ledger, epsilon=epsilon, **limits)
        self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.journal.close()

    def restart(self) -> None:
        """Open everything again, as a new process of the site does."""
        self.journal.close()
        self._open()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Entries of the ledger, oldest first."""
        return read_account(self.ledger).entries

    def _open(self) -> None:
        self.journal = Journal(
            self._journal_file,
            run=self.agreed.run,
            agreement_hash=self.agreed.hash(),
            site=self._name,
            storage=StorageKey(bytes(32)),
        )
        self.releases = open_releases(self.agreed, self._budget)
        self.bare_learner = make_bare_learner(self.agreed, self._data, self._name)
        self.learner = build_checkpointed_learner(self.agreed, self.bare_learner, self.journal, self.releases)


def make_bare_learner(agreed: Agreement, data: SiteData | None = None, name: str = SITE) -> Learner:
    """Return the site's learner without checkpoints."""
    data = small_data(agreed)[name] if data is None else data
    return build_learner(agreed, name, data, model=agreed.training.model, device="cpu")
