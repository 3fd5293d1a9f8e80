"""Pool of a simulation's sites: their common training, early stopping, and tests."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from agreement import Agreement, Method
from protoseal.reports.run_results import mean
from protoseal.simulation.batched.precision import Precision
from protoseal.simulation.batched.training import Batching, KeptPrograms, run_together
from protoseal.simulation.run_log import RunLog
from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
from secure_client.checkpoints.learner_factory import build_learner, warn_of_fedavg
from secure_client.data import SiteData
from secure_client.error_containment import run_or_fallback
from secure_client.errors import DataError
from secure_client.output.site_log import SiteLog, SiteRound, loss_figures, site_round
from secure_client.training.evaluation import Evaluation
from secure_client.training.job import Losses
from secure_client.training.learner import Learner

_log = logging.getLogger("protoseal.simulation")


@dataclass(frozen=True)
class SiteTraining:
    """Settings of the sites' training: device, batching, precision, and models.

    With ``models``, the site at position i in the order of names has the i-th model (cyclically) instead of the
    agreement's; ``pretrained`` then applies to sites with the agreement's model. The sites' logs keep ``class_names``.
    """

    device: str = "cpu"
    batching: Batching = Batching.NEVER
    precision: Precision = Precision.FLOAT32
    models: tuple[str, ...] = ()
    pretrained: Path | None = None
    accept_dark_or_constant_inputs: bool = False
    class_names: Mapping[str, str] = field(default_factory=dict)

    def model_at(self, agreement: Agreement, position: int) -> str:
        """Return the model that the site at that position trains."""
        return self.models[position % len(self.models)] if self.models else agreement.training.model

    def learner(self, agreement: Agreement, name: str, data: SiteData, position: int) -> Learner:
        """Return a site's learner, and log warnings that concern all sites with the first; raise a ``SiteError``."""
        model = self.model_at(agreement, position)
        learner = build_learner(
            agreement,
            name,
            data,
            model=model,
            device=self.device,
            pretrained=self.pretrained if model == agreement.training.model else None,
            accept_dark_or_constant_inputs=self.accept_dark_or_constant_inputs,
        )
        if position == 0:
            warn_of_fedavg(agreement, learner)
        return learner


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


class SitePool:
    """Sites of one run of one method, by site name, with the rounds that they reported.

    A killed run resumes with the learners of its journals and the rounds of its log: reported rounds are not repeated,
    and only training that no journal has is repeated. If sites train one by one, the results are the same, bit for bit
    on a CPU; in a batched program, the remaining sites form a smaller program, which rounds differently.
    """

    def __init__(
        self,
        learners: Mapping[str, CheckpointedLearner],
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
        self._learners = learners
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
        self._shares: dict[int, float] = {}
        self._reports = {
            name: {
                report.round: report
                for report in log.site_rounds(name)
                if until is None or report.round <= until[name]
            }
            for name in sorted(learners)
        }
        self._means: dict[int, float] = {}
        self._programs = KeptPrograms()

    # During the run

    def tests_in(self, round_number: int) -> bool:
        """Return True if models are tested after this round."""
        return round_number % self._testing.every == 0 or round_number == self._agreement.rounds

    def train(self, round_number: int) -> None:
        """Train all sites that have not trained in this round as one program; do nothing if they train one by one.

        Call this method when every site has the base of the round.
        """
        waiting = [learner for learner in self._learners.values() if not learner.is_trained_for(round_number)]
        if self._training.batching is Batching.NEVER or round_number == 0 or not waiting:
            return
        start = time.perf_counter()
        for learner in waiting:
            learner.begin(round_number)
        losses_by_learner = run_or_fallback(
            lambda: self._train_together(waiting, round_number),
            lambda: _train_one_by_one(waiting, round_number),
            f"training of {len(waiting)} sites as one program",
        )
        for learner, losses in zip(waiting, losses_by_learner, strict=True):
            learner.finish(round_number, losses)
        self._shares[round_number] = (time.perf_counter() - start) / len(waiting)

    def record_round(self, name: str, figures: SiteRound) -> SiteRound:
        """Add the simulation's figures to a site's figures of a round, store them, and return them."""
        learner, seconds = self._learners[name], dict(figures.seconds)
        # Each site's time is an equal share of the common training's time.
        seconds["train"] = seconds.get("train", 0.0) + self._shares.get(figures.round, 0.0)
        update: dict[str, Any] = {"seconds": seconds}
        update |= loss_figures(learner.values.require_last().losses, learner.values.label_entropy)
        validation = self._data[name].validation
        if self._testing.patience is not None and validation is not None:
            validated = learner.predictor.evaluate_on(validation)
            update["accuracy_validation"] = validated.accuracy_by(self._agreement.inference)
        return self._store(name, figures.model_copy(update=update))

    def end_round(self, round_number: int) -> None:
        """Finish a round; call this after all sites' reports, before any site trains for the next round."""
        if self._testing.patience is not None and self.best_round == round_number:
            for learner in self._learners.values():
                if learner.remembered != round_number:
                    learner.remember()

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

    def run_final_tests(
        self, save: Callable[[str, CheckpointedLearner], None] = lambda name, learner: None
    ) -> None:
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
        for name, learner in self._learners.items():
            if self._testing.patience is not None:
                learner.go_back()
            last = self._reports[name].get(self.best_round or self.completed)
            if last is not None:
                self._store(name, self._final_figures(learner, last))
            save(name, learner)

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

    # Helpers

    def _train_together(
        self, waiting: Sequence[CheckpointedLearner], round_number: int
    ) -> Sequence[Losses | None]:
        for stage in zip(*(learner.jobs(round_number) for learner in waiting), strict=True):
            losses = run_together(
                stage, self._training.batching, precision=self._training.precision, programs=self._programs
            )
        return losses

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

    def _final_figures(self, learner: CheckpointedLearner, figures: SiteRound) -> SiteRound:
        update: dict[str, Any] = {}
        if self._testing.patience is not None or self._testing.per_class:
            tested = learner.predictor.evaluate()
            update = {} if tested is None else self._test_figures(figures, tested)
        if self._testing.overall is not None:
            tested = learner.predictor.evaluate_on(self._testing.overall)
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


def _train_one_by_one(waiting: Sequence[CheckpointedLearner], round_number: int) -> list[Losses | None]:
    """Train each site by itself from the start of the round, so that a diverging site affects no other."""
    for learner in waiting:
        learner.undo()
    return [learner.run(round_number) for learner in waiting]
