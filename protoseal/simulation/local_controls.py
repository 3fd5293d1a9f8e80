"""Control runs of an experiment: sites train without a federation, with the same model, data and schedule."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from agreement import CONTROLS, Agreement, Method
from crypto.keys import KEY_BYTES, StorageKey
from protoseal.simulation.local_federation import Outcome
from protoseal.simulation.run_log import RunLog
from protoseal.simulation.site_pool import EVERY_ROUND, ONE_BY_ONE, SitePool, SiteTesting, SiteTraining
from secure_client.checkpoints.learner_factory import build_checkpointed_learner
from secure_client.data import SiteData
from secure_client.output.site_log import site_round
from secure_client.protocol.journal import Journal
from secure_server.round_log import CoordinatorRound


class LocalControl:
    """Sites that train side by side and exchange nothing. Close it when done: it holds journals open."""

    def __init__(
        self,
        agreement: Agreement,
        control: Method,
        data: Mapping[str, SiteData],
        *,
        training: SiteTraining,
        testing: SiteTesting,
        state: Path | None = None,
        on_completed: Callable[[LocalControl, int], None] = lambda run, number: None,
    ) -> None:
        """Take the arguments of ``LocalFederation``; ``self`` aligns and predicts as the agreement's method.

        Raises ``ValueError`` for a method that is no control.
        """
        if control not in CONTROLS:
            raise ValueError(f"{control} is no control")
        self._agreement, self._control = agreement, control
        self._on_completed = on_completed
        self._stack = ExitStack()
        try:
            self._state = state or Path(
                self._stack.enter_context(tempfile.TemporaryDirectory(prefix="protoseal-"))
            )
            self._log = self._stack.enter_context(RunLog(self._state / "log.sqlite"))
            self._sites = {
                name: build_checkpointed_learner(
                    agreement,
                    training.learner(agreement, name, data[name], at),
                    self._journal(name),
                    alone=True,
                )
                for at, name in enumerate(sorted(data))
            }
            self._pool = SitePool(
                self._sites,
                data,
                self._log,
                method=agreement.method if control is Method.SELF else control,
                agreement=agreement,
                training=training,
                testing=testing,
            )
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._stack.close()

    def run(self) -> None:
        """Run the remaining rounds, or until training stops early."""
        self._log_completed_rounds()
        self._pool.end_round(self._pool.completed)
        while not self._pool.over:
            number = self._pool.completed + 1
            self._pool.train(number)
            for name in sorted(self._sites.keys() - self._log.sites_of(number)):
                self._round(name, number)
            self._log.put_round(self._as_coordinated(number))
            self._pool.end_round(number)
            self._on_completed(self, number)

    def close_tests(self) -> None:
        """Run the final tests."""
        self._pool.close()

    @property
    def outcome(self) -> Outcome:
        """Return the results so far, with rounds as a coordinator would record them, without bytes."""
        return Outcome(self._pool.logs(), self._log.rounds(), [], self._pool.best_round)

    def _round(self, name: str, number: int) -> None:
        learner, start = self._sites[name], time.perf_counter()
        learner.train_round(number)
        seconds = {"train": time.perf_counter() - start, "protect": 0.0}
        if self._control is Method.SELF:
            learner.take_targets(number, *learner.values.latest())
        tested = learner.evaluate() if self._pool.tests_in(number) else None
        shortened = learner.values.shortened if self._control is Method.SELF else None
        how = self._agreement.inference
        figures = site_round(number, 1, 1, (), tested, seconds, inference=how, shortened=shortened)
        self._pool.tell(name, figures)

    def _log_completed_rounds(self) -> None:
        """Log completed rounds: a process may have been killed between a round's last site and the round itself."""
        logged = {done.round for done in self._log.rounds()}
        for number in range(1, self._pool.completed + 1):
            if number not in logged:
                self._log.put_round(self._as_coordinated(number))
                self._on_completed(self, number)

    def _as_coordinated(self, number: int) -> CoordinatorRound:
        reports = [self._log.site_round(name, number) for name in sorted(self._sites)]
        slowest = max(report.seconds["train"] for report in reports)
        return CoordinatorRound(number, 1, tuple(sorted(self._sites)), (), 0.0, slowest)

    def _journal(self, name: str) -> Journal:
        """Return the journal, which has no secret, so that its key may differ at each start."""
        return self._stack.enter_context(
            Journal(
                self._state / "sites" / name / "journal.sqlite",
                run=self._agreement.run,
                agreement_hash=self._agreement.hash(),
                site=name,
                storage=StorageKey(secrets.token_bytes(KEY_BYTES)),
                durable=False,
            )
        )


def run_control(
    agreement: Agreement,
    control: Method,
    data: Mapping[str, SiteData],
    *,
    training: SiteTraining = ONE_BY_ONE,
    testing: SiteTesting = EVERY_ROUND,
    state: Path | None = None,
    on_completed: Callable[[LocalControl, int], None] = lambda run, number: None,
) -> Outcome:
    """Run the same models, data and schedule without a federation, and return each site's results by round.

    ``self`` aligns and predicts as the agreement's method does, with prototypes clipped to the same bounds.
    """
    with LocalControl(
        agreement,
        control,
        data,
        training=training,
        testing=testing,
        state=state,
        on_completed=on_completed,
    ) as run:
        run.run()
        run.close_tests()
        return run.outcome
