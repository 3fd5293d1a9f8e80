"""Pool of a simulation's sites: their common training, early stopping, and tests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from torch.utils.data import Dataset

from agreement import Agreement, Method
from protoseal.reports.run_results import mean
from protoseal.simulation.batched.training import Batching, KeptPrograms, Precision, run_alone, run_together
from protoseal.simulation.config import ScheduleSection
from protoseal.simulation.run_log import RunLog
from secure_client.checkpoints.checkpointed_learner import RunJob
from secure_client.checkpoints.exchanged_values import ExchangedValues
from secure_client.checkpoints.learner_factory import build_checked_model, build_learner, warn_of_fedavg
from secure_client.checkpoints.predictor import Predictor
from secure_client.data import SiteData
from secure_client.error_containment import run_or_fallback
from secure_client.errors import DataError
from secure_client.models.prototype_model import PrototypeModel
from secure_client.output.site_log import SiteLog, SiteRound, loss_figures, site_round
from secure_client.training.evaluation import Evaluation
from secure_client.training.job import Job, Losses
from secure_client.training.learner import Learner

_log = logging.getLogger("protoseal.simulation")


@dataclass(frozen=True)
class SiteTraining:
    """Settings of the sites' training: device, batching, precision, and models.

    With ``models``, the site at position i in the order of names has the i-th model (cyclically) instead of the
    agreement's; ``pretrained`` then applies to sites with the agreement's model. The sites' logs keep ``class_names``.
    ``schedule`` is for the engine on tensors.
    """

    device: str = "cpu"
    batching: Batching = Batching.NEVER
    precision: Precision = Precision.FLOAT32
    models: tuple[str, ...] = ()
    pretrained: Path | None = None
    accept_dark_or_constant_inputs: bool = False
    class_names: Mapping[str, str] = field(default_factory=dict)
    schedule: ScheduleSection = field(default_factory=ScheduleSection)

    def model_at(self, agreement: Agreement, position: int) -> str:
        """Return the model that the site at that position trains."""
        return self.models[position % len(self.models)] if self.models else agreement.training.model

    def learners(self, agreement: Agreement, data: Mapping[str, SiteData]) -> list[Learner]:
        """Return the sites' learners in the order of names, with copies of models that are built once."""
        built: dict[str, PrototypeModel] = {}
        learners = []
        for position, name in enumerate(sorted(data)):
            model = self.model_at(agreement, position)
            if model not in built:
                built[model] = build_checked_model(agreement, model, self._pretrained_for(agreement, model))
            learners.append(self.learner(agreement, name, data[name], position, built[model]))
        return learners

    def learner(
        self,
        agreement: Agreement,
        name: str,
        data: SiteData,
        position: int,
        initial: PrototypeModel | None = None,
    ) -> Learner:
        """Return a site's learner, with a copy of the ``initial`` model unless it is to be built.

        Warnings that concern all sites are logged with the first. Raises a ``SiteError``.
        """
        model = self.model_at(agreement, position)
        learner = build_learner(
            agreement,
            name,
            data,
            model=model,
            device=self.device,
            pretrained=self._pretrained_for(agreement, model),
            accept_dark_or_constant_inputs=self.accept_dark_or_constant_inputs,
            initial=initial,
        )
        if position == 0:
            warn_of_fedavg(agreement, learner)
        return learner

    def _pretrained_for(self, agreement: Agreement, model: str) -> Path | None:
        return self.pretrained if model == agreement.training.model else None


@dataclass(frozen=True)
class SiteTesting:
    """Settings of tests: after every ``every``-th round and after the last round.

    ``overall`` is a test set over all sites, on which every site's model is tested once, at the end. With ``patience``
    p, training stops when the sites' mean validation accuracy has not exceeded its best for p rounds.
    """

    overall: Dataset[Any] | None = None
    every: int = 1
    per_class: bool = False
    patience: int | None = None


ONE_BY_ONE, EVERY_ROUND = SiteTraining(), SiteTesting()
SITES_ALONE = "the sites compute one by one"
"""Consequence of a failed computation of all sites as one program, in the log."""


class PooledSite(Protocol):
    """Site of a pool: what it exchanges and predicts with, and a copy of its state in the best round."""

    values: ExchangedValues
    predictor: Predictor

    def remember(self) -> None:
        """Keep a copy of the present state, replacing an earlier copy."""
        ...

    @property
    def remembered(self) -> int:
        """Trained round of the last call of :meth:`remember`; 0 without a call."""
        ...

    def go_back(self) -> None:
        """Restore the remembered state permanently, as the end of training."""
        ...


SiteT = TypeVar("SiteT", bound=PooledSite)


class SitePool(Generic[SiteT]):
    """Sites of one run of one method, by site name, with the rounds that they reported.

    A killed run resumes with the rounds of its log: reported rounds are not repeated.
    """

    def __init__(
        self,
        sites: Mapping[str, SiteT],
        data: Mapping[str, SiteData],
        log: RunLog,
        *,
        method: Method,
        agreement: Agreement,
        training: SiteTraining,
        testing: SiteTesting,
        until: Mapping[str, int] | None = None,
    ) -> None:
        """Set up the pool, discarding logged rounds of a site after ``until``, which the site will report again.

        ``method`` determines the sites' inference. Raises :class:`DataError` if training may stop early and a site has
        no validation samples.
        """
        self._sites = sites
        self._data = data
        self._log = log
        self._method = method
        self._agreement = agreement
        self._training = training
        self._testing = testing
        lacking = [name for name in sorted(data) if data[name].validation is None]
        if testing.patience is not None and lacking:
            raise DataError(
                f"early_stopping needs validation samples at {lacking[0]}: add val=0.1 to the split's options"
            )
        self._reports = {
            name: {
                report.round: report
                for report in log.site_rounds(name)
                if until is None or report.round <= until[name]
            }
            for name in sorted(sites)
        }
        self._means: dict[int, float] = {}

    # During the run

    def tests_in(self, round_number: int) -> bool:
        """Return True if models are tested after this round."""
        return round_number % self._testing.every == 0 or round_number == self._agreement.rounds

    def record_round(self, name: str, figures: SiteRound) -> SiteRound:
        """Add the simulation's figures to a site's figures of a round, store them, and return them."""
        site = self._sites[name]
        update = loss_figures(site.values.require_last().losses, site.values.label_entropy)
        validation = self._data[name].validation
        if self._testing.patience is not None and validation is not None:
            validated = site.predictor.evaluate_on(validation)
            update["accuracy_validation"] = validated.accuracy_by(self._agreement.inference)
        return self._store(name, figures.model_copy(update=update))

    def end_round(self, round_number: int) -> None:
        """Finish a round; call this after all sites' reports, before any site trains for the next round."""
        if self._testing.patience is not None and self.best_round == round_number:
            for site in self._sites.values():
                if site.remembered != round_number:
                    site.remember()

    @property
    def completed(self) -> int:
        """Last round that every site has reported; 0 before the first."""
        # A site's rounds are in ascending order, and every turn of every site asks.
        return min(next(reversed(reports), 0) for reports in self._reports.values())

    @property
    def best_round(self) -> int | None:
        """First round of the highest mean validation accuracy; None without early stopping."""
        if self._testing.patience is None or not self.completed:
            return None
        for number in range(len(self._means) + 1, self.completed + 1):
            self._means[number] = self._mean_validation(number)
        # The earliest of equal rounds: patience counts from there, and a resumed run has to find the same one.
        return max(self._means, key=lambda number: (self._means[number], -number))

    @property
    def is_over(self) -> bool:
        """True if no training remains."""
        return self.stopped_early or self.completed >= self._agreement.rounds

    @property
    def stopped_early(self) -> bool:
        """True if early stopping ends training before the last round."""
        patience, best = self._testing.patience, self.best_round
        return patience is not None and best is not None and self.completed - best >= patience

    # End of the run

    def run_final_tests(self, save: Callable[[str, SiteT], None] = lambda name, site: None) -> None:
        """Test the reported models for the last time, and ``save`` them.

        With early stopping the sites return to the best round's model first. Logs a warning on rounds in which a site's
        training failed.
        """
        rounds = [report for reports in self._reports.values() for report in reports.values()]
        failed = sum(not report.trained for report in rounds)
        if failed:
            _log.warning(
                "%s: training failed in %d of %d rounds of all sites, whose models stayed unchanged: see the "
                "sites' logs, and do not use the figures to judge the method",
                self._method.value,
                failed,
                len(rounds),
            )
        for name, site in self._sites.items():
            if self._testing.patience is not None:
                site.go_back()
            last = self._reports[name].get(self.best_round or self.completed)
            if last is not None:
                self._store(name, self._final_figures(site, last))
            save(name, site)

    def logs(self) -> dict[str, SiteLog]:
        """Return each site's log so far."""
        return {
            name: SiteLog(
                name=name,
                model=self._training.model_at(self._agreement, position),
                class_names=dict(self._training.class_names),
                train_samples=self._data[name].train_samples,
                scale=self._data[name].scale,
                bytes_up=self._log.payload_bytes(name, up=True),
                bytes_down=self._log.payload_bytes(name, up=False),
                rounds=tuple(reports[number] for number in sorted(reports)),
            )
            for position, (name, reports) in enumerate(self._reports.items())
        }

    def reports(self, round_number: int) -> dict[str, SiteRound]:
        """Return the figures of the sites that reported a round."""
        return {
            name: reports[round_number] for name, reports in self._reports.items() if round_number in reports
        }

    # Helpers

    def _store(self, name: str, figures: SiteRound) -> SiteRound:
        self._log.put_site_round(name, figures)
        self._reports[name][figures.round] = figures
        return figures

    def _mean_validation(self, round_number: int) -> float:
        """Return the mean validation accuracy; −1 for a round without all sites."""
        reports = [report[round_number] for report in self._reports.values() if round_number in report]
        value = mean(report.accuracy_validation for report in reports)
        # A mean over fewer sites is not comparable, so that a round which one missed cannot be the best.
        return -1.0 if value is None or len(reports) < len(self._reports) else value

    def _final_figures(self, site: SiteT, figures: SiteRound) -> SiteRound:
        update: dict[str, Any] = {}
        if self._testing.patience is not None or self._testing.per_class:
            tested = site.predictor.evaluate()
            update = {} if tested is None else self._test_figures(figures, tested)
        if self._testing.overall is not None:
            tested = site.predictor.evaluate_on(self._testing.overall)
            update |= {"accuracy_global": tested.accuracy_by(self._agreement.inference)}
            update |= {"pm_v_global": tested.pm_v, "pm_l_global": tested.pm_l}
        return figures.model_copy(update=update)

    def _test_figures(self, figures: SiteRound, tested: Evaluation) -> dict[str, Any]:
        how = self._agreement.inference
        after = site_round(figures.round, figures.attempt, figures.sites, (), tested, {}, inference=how)
        names = ("accuracy", "accuracy_classifier", "accuracy_prototype", "accuracy_trained", "pm_v", "pm_l")
        update: dict[str, Any] = {name: getattr(after, name) for name in names}
        if self._testing.per_class:
            by_class = tested.shares_by(how)  # empty where no class has a prototype to predict by
            named = zip(self._agreement.classes, by_class, strict=bool(by_class))
            update["per_class"] = {name: share for name, share in named if share is not None}
        return update


class Trainee(Protocol):
    """Site whose round of training has begun."""

    def jobs(self, round_number: int) -> list[Job]:
        """Return the jobs of the round, to be run in this order."""
        ...

    def undo(self) -> None:
        """Restore the model of the round's start."""
        ...

    def run(self, round_number: int, run: RunJob | None = None) -> Losses | None:
        """Run the round's jobs and return the losses of the last job; None without jobs or after any error.

        Each job is run by ``run``, by default :func:`secure_client.training.loop.run_job`.
        """
        ...


def train_sites(
    sites: Sequence[Trainee], round_number: int, training: SiteTraining, programs: KeptPrograms
) -> Sequence[Losses | None]:
    """Train sites as one program; one by one under ``NEVER``, and where the program fails.

    Return the losses of each site's last job, None where its training failed. ``programs`` last for all rounds.
    """
    if training.batching is Batching.NEVER:
        return [site.run(round_number) for site in sites]
    return run_or_fallback(
        lambda: train_jobs([site.jobs(round_number) for site in sites], training, programs),
        lambda: _train_one_by_one(sites, round_number, training.precision),
        f"training of {len(sites)} sites as one program",
        SITES_ALONE,
    )


def train_jobs(
    jobs: Sequence[Sequence[Job]], training: SiteTraining, programs: KeptPrograms
) -> Sequence[Losses]:
    """Run the jobs of each site, those of one stage together; return the losses of each site's last job.

    Raises the errors of :func:`protoseal.simulation.batched.training.run_together`.
    """
    for stage in zip(*jobs, strict=True):
        losses = run_together(stage, training.batching, precision=training.precision, programs=programs)
    return losses


def _train_one_by_one(
    sites: Sequence[Trainee], round_number: int, precision: Precision
) -> list[Losses | None]:
    """Train each site by itself from the start of the round, so that a diverging site affects no other."""
    for site in sites:
        site.undo()
    return [site.run(round_number, partial(run_alone, precision=precision)) for site in sites]
