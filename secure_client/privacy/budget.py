"""Privacy budget of a site: the limits in its own configuration file, the ledger, and what is spent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from agreement.sections.privacy import Colluding, Extractor, PrivacySection
from agreement.toml_loading import Count, LocalPath, Positive, Section
from privacy.accounting.accounting_rules import Accounting, accountant_for
from privacy.accounting.events import Unit
from privacy.errors import BudgetError
from privacy.ledger.ledger import Ledger
from privacy.ledger.lines import Limit

OpenShare = Annotated[float, Field(gt=0, lt=1)]
Rate = Annotated[float, Field(gt=0, le=1)]

NO_GUARANTEE = "NO GUARANTEE"
"""First words of every message on a data set without a guarantee, after a release or a run without noise."""


class BudgetSection(Section):
    """A site's own limits, whatever is agreed: ``epsilon`` at ``delta`` over all runs on the data set ``dataset``.

    ``ledger`` is the file that records each release before it leaves the site; a data set has one ledger for all runs.
    The budget is for one ``unit`` added or removed, which must equal the agreement's unit. The site refuses less noise
    than ``least_noise_multiplier``, a larger clip than ``largest_clip`` and more rounds than ``most_rounds``; in
    DP-SGD, less noise than ``least_training_noise`` and a larger rate than ``largest_sampling_rate``.
    ``allow_no_guarantee`` accepts an agreement without a record-level guarantee, or without any noise. ``ledger_lost``
    resumes with a ledger that lacks an entry which the site has shown, without a guarantee from then on. Distributed
    noise is refused without ``least_colluding``, the fewest colluding sites that the noise must tolerate.
    ``most_paid_attempts`` bounds what repeated attempts of a round, and restarts during it, cost.
    ``accountant`` is the ledger's (:class:`Accounting`). ``keep_releases`` keeps sensitive files in ``state_dir``
    (:mod:`secure_client.privacy.kept_releases`), without which an audit of the run sees little of it.
    """

    dataset: Annotated[str, Field(min_length=1, max_length=200)]
    """Name of the data set whose budget this is, over all runs."""
    ledger: LocalPath
    """File in which each release is recorded before it leaves."""
    epsilon: Positive
    """Largest ε that may be spent on the data set."""
    delta: OpenShare = 1e-5
    """δ at which ε is counted; well below one over the number of records."""
    unit: Unit = Unit.RECORD
    """Unit whose participation the ledger protects: the agreement's unit has to be the same."""
    least_noise_multiplier: Positive | None = None
    """Least noise of a release that this site accepts."""
    largest_clip: Positive | None = None
    """Largest clip that this site accepts."""
    most_rounds: Count | None = None
    """Most rounds that this site accepts."""
    most_paid_attempts: Count = 3
    """Most payments for one release, or for one round's training: over repeated attempts and restarts."""
    least_training_noise: Positive | None = None
    """Least noise of DP-SGD that this site accepts."""
    largest_sampling_rate: Rate | None = None
    """Largest sampling rate of DP-SGD that this site accepts."""
    allow_no_guarantee: bool = False
    """Take part in runs without a record-level guarantee, or without noise."""
    ledger_lost: bool = False
    """Resume although the ledger is lost; NO GUARANTEE from then on."""
    accountant: Accounting = Accounting.PLD
    """Accountant of the ledger, which decides what may follow from earlier results."""
    least_colluding: Colluding | None = None
    """Fewest colluding sites that shared noise has to hold off; shared noise is refused without it."""
    keep_releases: bool = False
    """Keep each release and its model in `state_dir`, for `protoseal budget audit run`."""

    def check(self, agreed: PrivacySection | None, rounds: int) -> None:
        """Raise ``ValueError`` for agreed settings that are beyond this site's limits."""
        if agreed is None:
            self._check_guarantee("the agreement has no [privacy] section, so prototypes would be exact")
            return
        if agreed.unit is not self.unit:
            raise ValueError(
                f"the agreement protects one {agreed.unit}, and this site's budget one {self.unit}: a ledger "
                "has a single unit; change unit in the agreement, or name a ledger for that unit"
            )
        if agreed.extractor is Extractor.TRAINED:
            self._check_guarantee("extractor = 'trained' leaves no record-level guarantee")
        if agreed.distributed:
            self._check_colluding(agreed.colluding)
        for what, value, kind, limit in self._limited_settings(agreed, rounds):
            if limit is not None and (value < limit if kind == "least" else value > limit):
                raise ValueError(
                    f"the agreement has {what} {value:g}, but the {kind} that this site allows is {limit:g}: change "
                    "the agreement, or the limit in [privacy] of the site's file"
                )

    def _limited_settings(
        self, agreed: PrivacySection, rounds: int
    ) -> Iterator[tuple[str, float, str, float | None]]:
        """Yield each agreed setting, its value, whether the site's limit is a minimum or maximum, and the limit."""
        yield "noise multiplier", agreed.noise_multiplier, "least", self.least_noise_multiplier
        yield "clip", agreed.clip, "largest", self.largest_clip
        yield "rounds", rounds, "most", self.most_rounds
        training = agreed.dp_sgd
        if training is not None:
            noise = self.least_training_noise
            yield "noise multiplier in training", training.noise_multiplier, "least", noise
            yield "sampling rate", training.sampling_rate, "largest", self.largest_sampling_rate

    def _check_guarantee(self, why: str) -> None:
        if not self.allow_no_guarantee:
            raise ValueError(
                f"{why}; change the agreement, or set allow_no_guarantee = true in [privacy] of the site's file"
            )

    def _check_colluding(self, colluding: int) -> None:
        if self.least_colluding is None:
            raise ValueError(
                "noise = 'distributed' protects this site's records partly by other sites' noise; agree on "
                "local noise, or set least_colluding, the number of colluding sites to tolerate, in [privacy] "
                "of the site's file"
            )
        if colluding < self.least_colluding:
            raise ValueError(
                f"the agreement's distributed noise tolerates {colluding} colluding sites, but least_colluding "
                f"of this site is {self.least_colluding}"
            )


def check_delta(budget: BudgetSection, units: int) -> None:
    """Raise :class:`BudgetError` for a δ so large that publishing one unit at random would count as private.

    ``units`` is the number of units: this site's records or subjects, or the most sites of a run.
    """
    # With δ ≥ 1/n, a mechanism that publishes one of n records, chosen at random, would be (0, δ)-private.
    if not budget.delta * units < 1.0:
        whose = "sites of a run" if budget.unit is Unit.SITE else f"this site's {budget.unit}s"
        raise BudgetError(
            f"delta = {budget.delta:g} in [privacy] is not below one over the number of {whose}: set delta well "
            "below that"
        )


@dataclass(frozen=True)
class SpentBudget:
    """Part of the data set's budget that is spent, over all runs: ``epsilon`` at ``delta``.

    ``guaranteed`` is true if the spending holds for a record: all releases in the ledger are of features that depend on
    no record, or only through training that is in the ledger as well.
    """

    epsilon: float
    delta: float
    guaranteed: bool


def open_site_ledger(budget: BudgetSection) -> Ledger:
    """Open or create the ledger, with the limit and accountant of the site's file."""
    limit = Limit(budget.epsilon, budget.delta, budget.unit, budget.accountant)
    return Ledger(
        budget.ledger,
        budget.dataset,
        limit,
        epsilon=accountant_for(budget.accountant),
        most_payments=budget.most_paid_attempts,
    )
