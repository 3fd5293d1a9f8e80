"""Control runs of an experiment: sites train without a federation, with the same model, data and schedule."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from agreement import CONTROLS, Agreement, Method
from crypto.keys import KEY_BYTES, StorageKey
from protoseal.simulation.local_federation import RunOutcome
from protoseal.simulation.run_log import RunLog
from protoseal.simulation.site_pool import EVERY_ROUND, ONE_BY_ONE, SitePool, SiteTesting, SiteTraining
from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
from secure_client.checkpoints.learner_factory import build_checkpointed_learner
from secure_client.data import SiteData
from secure_client.output.site_log import site_round
from secure_client.protocol.journal import Journal
from secure_server.round_log import CoordinatorRound


def run_control(
    agreement: Agreement,
    control: Method,
    data: Mapping[str, SiteData],
    *,
    training: SiteTraining = ONE_BY_ONE,
    testing: SiteTesting = EVERY_ROUND,
    state: Path | None = None,
    on_completed: Callable[[LocalControl, int], None] = lambda run, number: None,
) -> RunOutcome:
    """Run the same models, data and schedule without a federation, and return each site's results by round.

    ``self`` aligns and predicts as the agreement's method does, with prototypes clipped to the same bounds. The other
    arguments are those of ``LocalFederation``. Raises ``ValueError`` for a method that is no control.
    """
    if control not in CONTROLS:
        raise ValueError(f"{control} is no control")
    with ExitStack() as stack:
        folder = state or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="protoseal-")))
        log = stack.enter_context(RunLog(folder / "log.sqlite"))
        learners = {
            name: build_checkpointed_learner(
                agreement,
                training.learner(agreement, name, data[name], position),
                stack.enter_context(_open_journal(folder / "sites" / name, agreement, name)),
                alone=True,
            )
            for position, name in enumerate(sorted(data))
        }
        pool = SitePool(
            learners,
            data,
            log,
            method=agreement.method if control is Method.SELF else control,
            agreement=agreement,
            training=training,
            testing=testing,
        )
        run = LocalControl(agreement, control, learners, pool, log, on_completed)
        run.run()
        pool.run_final_tests()
        return run.outcome


def _open_journal(folder: Path, agreement: Agreement, site: str) -> Journal:
    """Open a site's journal, which has no secret, so that its key may differ at each start."""
    return Journal(
        folder / "journal.sqlite",
        run=agreement.run,
        agreement_hash=agreement.hash(),
        site=site,
        storage=StorageKey(secrets.token_bytes(KEY_BYTES)),
        durable=False,
    )


class LocalControl:
    """Sites that train side by side and exchange nothing."""

    def __init__(
        self,
        agreement: Agreement,
        control: Method,
        learners: Mapping[str, CheckpointedLearner],
        pool: SitePool,
        log: RunLog,
        on_completed: Callable[[LocalControl, int], None],
    ) -> None:
        self._agreement = agreement
        self._control = control
        self._learners = learners
        self._pool = pool
        self._log = log
        self._on_completed = on_completed

    def run(self) -> None:
        """Run the remaining rounds, or until training stops early."""
        self._log_completed_rounds()
        # The process may have been killed after the last report of a round and before the round's end.
        self._pool.end_round(self._pool.completed)
        while not self._pool.is_over:
            number = self._pool.completed + 1
            self._pool.train(number)
            for name in sorted(self._learners.keys() - self._log.reporting_sites(number)):
                self._run_round(name, number)
            self._log.put_round(self._as_coordinated(number))
            self._pool.end_round(number)
            self._on_completed(self, number)

    @property
    def outcome(self) -> RunOutcome:
        """Return the results so far, with rounds as a coordinator would record them, without bytes."""
        return RunOutcome(self._pool.logs(), self._log.rounds(), [], self._pool.best_round)

    def _run_round(self, name: str, number: int) -> None:
        learner, start = self._learners[name], time.perf_counter()
        learner.train_round(number)
        seconds = {"train": time.perf_counter() - start, "protect": 0.0}
        if self._control is Method.SELF:
            learner.received.take_targets(number, *learner.values.latest())
        tested = learner.predictor.evaluate() if self._pool.tests_in(number) else None
        shortened = learner.values.require_last().shortened_share if self._control is Method.SELF else None
        how = self._agreement.inference
        # One attempt of one site, and no class withheld, since nothing is averaged.
        figures = site_round(number, 1, 1, (), tested, seconds, inference=how, shortened=shortened)
        self._pool.record_round(name, figures)

    def _log_completed_rounds(self) -> None:
        """Log completed rounds: a process may have been killed between a round's last site and the round itself."""
        logged = {completed.round for completed in self._log.rounds()}
        for number in range(1, self._pool.completed + 1):
            if number not in logged:
                self._log.put_round(self._as_coordinated(number))
                self._on_completed(self, number)

    def _as_coordinated(self, number: int) -> CoordinatorRound:
        reports = [self._log.site_round(name, number) for name in sorted(self._learners)]
        slowest = max(report.seconds["train"] for report in reports)
        return CoordinatorRound(number, 1, tuple(sorted(self._learners)), (), 0.0, slowest)
