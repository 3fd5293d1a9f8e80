"""Releases of a site in one run, noisy or exact: each is in the data set's privacy ledger before it leaves the site.

A noisy release is paid for, then drawn, then sent; so is training by DP-SGD. A site that dies between two steps has
paid for what it never sent, and never the other way round. A run without noise ends the guarantee for its data set, in
this and all later runs, and the ledger says so before any exact value leaves.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from agreement import Agreement
from agreement.sections.privacy import USUAL_DEVIATIONS, Extractor, PrivacySection
from privacy.accounting.events import Event, Unit
from privacy.errors import BudgetError
from privacy.ledger.budget_account import read_account
from privacy.ledger.hash_chain import Anchor
from privacy.ledger.lines import GUARANTEE, Fact, ReleaseName, Spending
from privacy.mechanisms.cell_query import Cells, ReleasedCells, release_cells
from privacy.mechanisms.grid import Float, Ints
from privacy.mechanisms.joint_clipping import joint_sums
from privacy.mechanisms.prototype_query import PrototypeQuery, Released, Sums
from secure_client.data import SiteData
from secure_client.errors import DataError
from secure_client.privacy.budget import NO_GUARANTEE, BudgetSection, SpentBudget, open_site_ledger
from secure_client.privacy.cost import (
    PROTOTYPES,
    TRAINING,
    check_planned,
    check_room,
    planned_history,
    release_event,
    training_event,
)
from secure_client.privacy.kept_releases import KeptReleases

_log = logging.getLogger("protoseal.site")
WEIGHTS = "weights"
"""Key of the fact that records the start of training: the SHA-256 of the initial model."""
Batches = Iterable[tuple[Float, Ints]]
"""Features (B, d) and labels (B,)."""


def build_query(agreed: PrivacySection, dim: int, draws: int = 1) -> PrototypeQuery:
    """Return the agreed query of features (d,); raise ``ValueError`` for numbers that have no grid.

    The default of ``min_count`` is for the mean of so many ``draws``.
    """
    weight = agreed.weight(dim)
    deviation = agreed.noise_multiplier * math.hypot(agreed.clip, weight) / weight / math.sqrt(draws)
    least = USUAL_DEVIATIONS * deviation if agreed.min_count is None else agreed.min_count
    return PrototypeQuery(agreed.clip, weight, agreed.noise_multiplier, least)


class Releases:
    """Payments and draws of one run, out of the budget in the data set's ``ledger``."""

    def __init__(
        self,
        agreement: Agreement,
        agreed: PrivacySection,
        budget: BudgetSection,
        kept: KeptReleases | None = None,
    ) -> None:
        """Open or create the ledger. ``kept`` keeps each release for an audit of the run.

        Raises :class:`BudgetError` if the agreement's releases alone exceed the site's limit, or what they still take
        exceeds the rest of it, so that no run starts or resumes that cannot finish;
        :class:`privacy.errors.LedgerError` for a ledger that cannot record spending.
        """
        self._agreement = agreement
        self._agreed = agreed
        self._budget = budget
        self.kept = kept
        try:
            self._query = build_query(agreed, agreement.dim)
        except ValueError as error:
            raise BudgetError(f"[privacy] of the agreement: {error}") from error
        self._weights: str | None = None
        self._facts: Mapping[str, Fact] = {}
        if not budget.ledger.exists():  # a refused run begins no ledger; check_room judges one that has begun
            check_planned(agreement, agreed, budget)
        if budget.unit is not agreed.unit:
            raise BudgetError(
                f"releases for one {agreed.unit} cannot be charged to a budget for one {budget.unit}; set unit "
                "in [privacy] alike"
            )
        self.ledger = open_site_ledger(budget)
        for event in planned_history(agreement, agreed)[:1]:  # training, if rounds train by DP-SGD
            self.ledger.check_covered(
                Spending(ReleaseName(agreement.run, 1, TRAINING), agreement.hash(), event)
            )
        check_room(agreement, agreed, read_account(budget.ledger))

    def begin_with(self, weights: str) -> None:
        """Set the SHA-256 of the initial model, in hex, which the ledger records with every payment."""
        self._weights = weights

    def note(self, facts: Mapping[str, Fact]) -> None:
        """Set facts on the records, which the ledger records with the next payment alone."""
        self._facts = facts

    @property
    def dim(self) -> int:
        """Dimension of features."""
        return self._agreement.dim

    @property
    def distributed(self) -> bool:
        """True if sites share the noise of their sums, once they have trained."""
        return self._agreed.distributed

    @property
    def averages(self) -> bool:
        """True if later draws ask the same query of the same features again, so that the mean of all has less noise."""
        return self._agreement.has_fixed_query and self._agreement.releases > 1

    def is_due(self, round_number: int, released: int | None) -> bool:
        """Return True if a round needs a new release; ``released`` is the round of the last release, if there is one.

        A release is due only in a round that sends it. A site that missed that round keeps an earlier release, or has
        none, until the next period.
        """
        agreement = self._agreement
        is_new = released is None or released < agreement.release_round(round_number)
        return is_new and agreement.sends_rows(round_number)

    def pay_for_training(self, round_number: int) -> None:
        """Pay for one execution of a round's training, before it starts. Training without DP-SGD costs nothing.

        Raises the errors of :meth:`release`; after an error the site must not train.
        """
        settings, event = self._agreed.dp_sgd, training_event(self._agreement, self._agreed)
        if settings is None or event is None:
            return
        training = ReleaseName(self._agreement.run, round_number, TRAINING)
        self.ledger.spend(self._spending(training, event, clip=settings.clip))
        _log.info(
            "round %d: the site trains by %d steps of DP-SGD, which are paid for", round_number, event.steps
        )

    def release(self, round_number: int, batches: Batches, owners: Ints | None = None) -> Released:
        """Pay for and draw noisy prototypes (K, d) of features (B, d) and labels (B,), each record once.

        Where the agreed unit is more than a record, ``owners`` (N,) has the number of each record's owner, in the order
        of the records, ascending; ``ValueError`` without owners. Raises :class:`BudgetError` if the release would
        exceed the limit, :class:`privacy.errors.LedgerError` if the ledger cannot be read or written; after either
        nothing was drawn.
        """
        # Sum, pay, draw: an error in the records costs nothing, and no noise exists that was not paid for.
        sums = self._sums(self._query, len(self._agreement.classes), batches, owners)
        name, anchor = self._pay_for_prototypes(round_number)
        released = sums.release()
        if self.kept is not None:
            self.kept.keep_drawn(name, anchor, released.sums, released.counts)
        self._log_spending(round_number)
        return released

    def release_cells(
        self, round_number: int, batches: Batches, cells: Cells, owners: Ints | None = None
    ) -> ReleasedCells:
        """Release parts of classes: as many prototypes of a class as it has cells of enough records.

        ``cells`` are those of the centres that the site trains from. ``ValueError`` for more cells than are agreed.
        The cost is that of the agreed number in every round.
        """
        if len(cells) > self._agreement.most_cells:
            raise ValueError(
                f"a release over {len(cells)} cells exceeds the agreed {self._agreement.most_cells}"
            )
        assigned = ((features, cells.assign(features, labels)) for features, labels in batches)
        sums = self._sums(self._query, len(cells), assigned, owners)
        name, anchor = self._pay_for_prototypes(round_number)
        released = release_cells(sums, cells)
        if self.kept is not None:
            self.kept.keep_drawn(name, anchor, *released.drawn, cells)
        self._log_spending(round_number)
        return released

    def mean(self, sums: Float, counts: Float, draws: int) -> Released:
        """Return the prototypes of the mean noisy ``sums`` (K, d) and ``counts`` (K,) of so many ``draws``.

        This is post-processing of draws that are paid for, and costs nothing.
        """
        return build_query(self._agreed, self.dim, draws).means(sums, counts)

    def draw_share(self, round_number: int) -> Ints:
        """Pay for one attempt's sum, then draw this site's share of the noise: int64 (K·(d + 1),), in whole steps.

        The share is secret and serves one sum: another attempt needs another payment and another share. The payment
        comes before the site states its presence, so that the anchor in its statement covers the payment. Raises
        :class:`BudgetError` and :class:`privacy.errors.LedgerError` as :meth:`release` does; after either nothing was
        drawn.
        """
        self._pay_for_prototypes(
            round_number, noise=self._agreed.noise.value, colluding=self._agreed.colluding
        )
        share = self._query.draw(len(self._agreement.classes), self._agreement.dim)
        self._log_spending(round_number, "to be summed under shared noise")
        return share

    def sum_term(
        self, batches: Batches, listed: int, share: Ints, owners: Ints | None = None
    ) -> tuple[Ints, Ints]:
        """Return this site's term of a sum of ``listed`` sites: int64 (K, d) and (K,), with its ``share`` of noise.

        ``share`` comes from :meth:`draw_share`; the same records and the same list give the same numbers. **A term
        alone is not private**: use a term only in a masked sum that opens over at least a threshold of the listed
        sites. Batches, ``owners`` and ``ValueError`` are as in :meth:`release`.
        """
        # The grid follows the list: with fewer sites, each one's noise of 2^20 steps has to be a larger part of the
        # agreed noise. The share was drawn in steps, before the list was known.
        multiplier = self._agreement.noisy_sum(listed).share
        query = replace(self._query, noise_multiplier=multiplier)
        return self._sums(query, len(self._agreement.classes), batches, owners).add_noise(share)

    def spent_budget(self) -> SpentBudget:
        """Return the budget spent so far, over all runs."""
        guaranteed = self._is_guaranteed and self.ledger.is_guaranteed()
        return SpentBudget(self.ledger.epsilon_spent(), self.ledger.limit.delta, guaranteed)

    def log_missed(self, round_number: int) -> None:
        """Log that a site without a release came after the round that sends it, and when it adds prototypes."""
        following = range(round_number + 1, self._agreement.rounds + 1)
        coming = next(filter(self._agreement.sends_rows, following), None)
        _log.warning(
            "round %d: this site missed the round of the release: it adds no prototypes %s, and pays for none",
            round_number,
            "to this run" if coming is None else f"before round {coming}",
        )

    def _sums(self, query: PrototypeQuery, parts: int, batches: Batches, owners: Ints | None) -> Sums:
        if (owners is None) is not (self._agreed.unit is Unit.RECORD):
            raise ValueError(
                f"the release protects one {self._agreed.unit}, but the records' owners do not match"
            )
        sums = query.start(parts, self._agreement.dim)
        if owners is not None:
            return joint_sums(sums, _finite(batches), owners)
        for features, labels in _finite(batches):
            sums.add(features, labels)
        return sums

    @property
    def _is_guaranteed(self) -> bool:
        return self._agreed.extractor is not Extractor.TRAINED

    def _pay_for_prototypes(self, round_number: int, **facts: Fact) -> tuple[ReleaseName, Anchor]:
        """Pay for a release: as much in every round and for every outcome, so that no refusal shows a record."""
        agreement, query = self._agreement, self._query
        name = ReleaseName(agreement.run, round_number, PROTOTYPES)
        spending = self._spending(
            name,
            release_event(agreement, self._agreed),
            clip=query.clip,
            count_weight=query.count_weight,
            classes=len(agreement.classes),
            dim=agreement.dim,
            **facts,
        )
        return name, self.ledger.spend(spending)

    def _spending(self, release: ReleaseName, event: Event, **facts: Fact) -> Spending:
        of_model: dict[str, Fact] = {"extractor": self._agreed.extractor.value}
        if self._weights is not None:
            of_model[WEIGHTS] = self._weights
        if self._agreed.project_from is not None:
            of_model["projected_from"] = self._agreed.project_from
        guarantee = self._agreed.unit.value if self._is_guaranteed else "none"
        # Once: the sketch of the records belongs to the start of a run, and would tell nothing in each line.
        of_records, self._facts = self._facts, {}
        return Spending(
            release, self._agreement.hash(), event, {**facts, **of_model, **of_records, GUARANTEE: guarantee}
        )

    def _log_spending(self, round_number: int, how: str = "released with noise") -> None:
        spent = self.spent_budget()
        _log.info(
            "%sround %d: prototypes %s; epsilon %.4g of %g at delta %g for one %s spent on %r",
            "" if spent.guaranteed else f"{NO_GUARANTEE}: ",
            round_number,
            how,
            spent.epsilon,
            self._budget.epsilon,
            spent.delta,
            self._budget.unit.value,
            self._budget.dataset,
        )


def open_releases(
    agreement: Agreement, budget: BudgetSection | None, kept: KeptReleases | None = None
) -> Releases | None:
    """Return the site's releases, which ``kept`` keeps for an audit; None where the agreement has no noise."""
    if agreement.privacy is None:
        return None
    if budget is None:
        raise BudgetError("the agreement's releases need a budget: add [privacy] to the site's file")
    return Releases(agreement, agreement.privacy, budget, kept)


def with_owners(data: SiteData, agreement: Agreement) -> SiteData:
    """Return the data with the agreement's privacy units as ``subjects``; None where each record is a unit.

    A site is one unit. Raises :class:`DataError` if subjects are agreed on but unknown.
    """
    match Unit.RECORD if agreement.privacy is None else agreement.privacy.unit:
        case Unit.RECORD:
            return replace(data, subjects=None)
        case Unit.SITE:
            return replace(data, subjects=np.zeros(data.train_samples, np.int64))
        case Unit.SUBJECT:
            _check_subjects(data)
            return data


def count_units(data: SiteData, agreement: Agreement) -> int:
    """Return the number of units for which δ is to hold: this site's records or subjects, or the run's sites."""
    if agreement.privacy is not None and agreement.privacy.unit is Unit.SITE:
        return agreement.max_sites
    owners = with_owners(data, agreement).subjects
    return data.train_samples if owners is None else len(np.unique(owners))


def _check_subjects(data: SiteData) -> None:
    if data.subjects is None:
        raise DataError(
            "the agreement protects subjects, but the training samples have none: add an array subjects to the "
            "npz, a subjects.csv to the folder, or an attribute subjects to your own data set; in a "
            "simulation, add subject=8 to --split"
        )
    if data.subjects.shape != (data.train_samples,):
        raise DataError(f"{len(data.subjects)} subjects are given for {data.train_samples} training samples")


def _finite(batches: Batches) -> Iterator[tuple[Float, Ints]]:
    """Replace non-finite features by zero, so that no record can abort a release and thereby show its presence."""
    spoilt = 0
    for features, labels in batches:
        finite = np.asarray(np.isfinite(features).all(axis=1))
        spoilt += len(finite) - int(finite.sum())
        yield np.where(finite[:, None], features, 0.0), labels
    if spoilt:
        _log.warning(
            "the features of %d records are not finite and count as zero: look for extreme values in the data",
            spoilt,
        )


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
