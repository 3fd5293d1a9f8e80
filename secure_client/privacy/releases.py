"""A site's releases in one run: each is spent, then drawn; in between nothing of it exists."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from protoseal.config import Agreement
from protoseal.config.privacy import BudgetSection, Extractor, PrivacySection
from secure_client.errors import BudgetError
from secure_client.privacy.accounting import epsilon
from secure_client.privacy.calibration import best_count_weight
from secure_client.privacy.chain import Anchor
from secure_client.privacy.entries import GUARANTEE, RECORD, Fact, Limit, Release, Spending, is_guaranteed
from secure_client.privacy.events import GaussianRelease
from secure_client.privacy.grid import Float, Ints
from secure_client.privacy.ledger import Ledger
from secure_client.privacy.query import PrototypeQuery, Released

_log = logging.getLogger("protoseal.site")
WHAT = "prototypes"
NO_GUARANTEE = "no record-level guarantee"
SIMULATED_DELTA = 1e-5
_PAID_TWICE = 8
_USUAL_DEVIATIONS = 3.0
"""Of a noisy count: an empty class is taken for one with records once in 740 releases."""


@dataclass(frozen=True)
class Spent:
    """Of the data set's budget, over all runs: ``epsilon`` at ``delta``.

    ``guaranteed``: that this is true of a record, all releases of the ledger being of features that no record shaped.
    """

    epsilon: float
    delta: float
    guaranteed: bool


def query_of(agreed: PrivacySection, dim: int) -> PrototypeQuery:
    """The agreed query of features (d,). ``ValueError`` for numbers that have no grid."""
    best = best_count_weight(agreed.clip, dim)
    weight = best if agreed.count_weight is None else agreed.count_weight
    deviation = agreed.noise_multiplier * math.hypot(agreed.clip, weight) / weight
    least = _USUAL_DEVIATIONS * deviation if agreed.min_count is None else agreed.min_count
    return PrototypeQuery(agreed.clip, weight, agreed.noise_multiplier, least)


class Releases:
    """Noisy prototypes of one run's rounds, out of one data set's budget."""

    def __init__(self, agreement: Agreement, agreed: PrivacySection, budget: BudgetSection) -> None:
        """Open the ledger, or begin it.

        :class:`BudgetError` where the agreement's releases alone would exceed the site's limit, so that a run is not
        begun that cannot be ended; :class:`LedgerError` for a ledger that cannot be spent by.
        """
        self._agreement, self._agreed, self._budget = agreement, agreed, budget
        try:
            self._query = query_of(agreed, agreement.dim)
        except ValueError as error:
            raise BudgetError(f"[privacy] of the agreement: {error}") from error
        self._event = event_of(agreement, agreed)
        self._check_planned(planned_epsilon(agreement, agreed, budget.delta))
        self._ledger = Ledger(
            budget.ledger, budget.dataset, Limit(budget.epsilon, budget.delta), epsilon=epsilon
        )

    def due(self, round_number: int, released: int | None) -> bool:
        """Whether a round has a release of its own, ``released`` being the round of the last one."""
        return released is None or round_number >= released + self._agreed.release_every

    def release(self, round_number: int, batches: Iterable[tuple[Float, Ints]]) -> Released:
        """Noisy prototypes (K, d) of features (B, d) and labels (B,), each record once.

        :class:`BudgetError` where they would exceed the limit, :class:`LedgerError` where the ledger cannot say so:
        then nothing was drawn.
        """
        sums = self._query.start(len(self._agreement.classes), self._agreement.dim)
        for features, labels in batches:
            sums.add(features, labels)
        self._ledger.spend(self._spending(round_number))
        released, spent = sums.release(), self.spent
        _log.info(
            "round %d: prototypes released with noise; epsilon %.4g of %g at delta %g spent on %r%s",
            *(round_number, spent.epsilon, self._budget.epsilon, spent.delta, self._budget.dataset),
            "" if spent.guaranteed else f"; {NO_GUARANTEE}",
        )
        return released

    @property
    def spent(self) -> Spent:
        """So far, over all runs."""
        guaranteed = self._is_of_frozen and all(map(is_guaranteed, self._ledger.entries()))
        return Spent(self._ledger.epsilon_spent(), self._budget.delta, guaranteed)

    @property
    def anchor(self) -> Anchor:
        """The ledger's last entry, for a site to keep elsewhere."""
        return self._ledger.anchor

    def check_anchor(self, anchor: Anchor) -> None:
        """:class:`RolledBackError` where the ledger has not the entry that was kept: removed, or an older copy."""
        self._ledger.check_anchor(anchor.seq, anchor.head)

    @property
    def _is_of_frozen(self) -> bool:
        return self._agreed.extractor is Extractor.FROZEN

    def _spending(self, round_number: int) -> Spending:
        agreed, query = self._agreed, self._query
        facts: dict[str, Fact] = {
            "clip": query.clip,
            "count_weight": query.count_weight,
            "classes": len(self._agreement.classes),
            "dim": self._agreement.dim,
            "extractor": agreed.extractor.value,
            GUARANTEE: RECORD if self._is_of_frozen else "none",
        }
        release = Release(self._agreement.run, round_number, WHAT)
        return Spending(release, self._agreement.hash(), self._event, facts)

    def _check_planned(self, planned: float) -> None:
        if not planned <= self._budget.epsilon:
            count = self._agreed.releases(self._agreement.rounds)
            raise BudgetError(
                f"the agreement's {count} releases with noise multiplier {self._agreed.noise_multiplier:g} take epsilon"
                f" {planned:.4g} at delta {self._budget.delta:g}, and this site allows {self._budget.epsilon:g}:"
                " `protoseal budget plan` finds noise, or releases, that fit"
            )


def event_of(agreement: Agreement, agreed: PrivacySection) -> GaussianRelease:
    """What each release costs."""
    coordinates = PrototypeQuery.coordinates(len(agreement.classes), agreement.dim)
    return GaussianRelease(agreed.noise_multiplier, coordinates)


def planned_epsilon(agreement: Agreement, agreed: PrivacySection, delta: float) -> float:
    """Of all releases of a run; infinite where the noise is too little to say."""
    return epsilon([event_of(agreement, agreed)] * agreed.releases(agreement.rounds), delta)


def simulated_budget(agreement: Agreement, site: str, folder: Path) -> BudgetSection:
    """Of a site that is simulated: a ledger of its own in ``folder`` with room for the run, whatever it costs.

    And for a few releases that are paid twice, by runs that are killed and go on.

    :class:`BudgetError` where the noise is too little for any.
    """
    if agreement.privacy is None:
        raise ValueError("an agreement without noise needs no budget")
    count = agreement.privacy.releases(agreement.rounds) + _PAID_TWICE
    planned = epsilon([event_of(agreement, agreement.privacy)] * count, SIMULATED_DELTA)
    if not math.isfinite(planned):
        raise BudgetError("with so little noise no epsilon can be told: set a larger noise_multiplier")
    return BudgetSection(
        dataset=site,
        ledger=folder / "ledger.jsonl",
        epsilon=planned,
        delta=SIMULATED_DELTA,
        allow_no_guarantee=True,
    )


def check_delta(budget: BudgetSection, records: int) -> None:
    """Raise :class:`BudgetError` for a δ with which publishing one record at random would be private."""
    if not budget.delta * records < 1.0:
        raise BudgetError(
            f"delta = {budget.delta:g} in [privacy] is not below one over the number of this site's records: set a"
            " smaller one, well below"
        )


def open_releases(agreement: Agreement, budget: BudgetSection | None) -> Releases | None:
    """What a site releases by; None where the agreement has no noise."""
    if agreement.privacy is None:
        return None
    if budget is None:
        raise BudgetError("the agreement's releases need a budget: give the site's file a [privacy]")
    return Releases(agreement, agreement.privacy, budget)
