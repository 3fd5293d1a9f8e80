"""Federation of the tensor engine: rounds of training, arithmetic and tests, without sessions, journals and messages.

A run has the results of :class:`protoseal.simulation.local_federation.LocalFederation` under ``plain``, up to the order
of sums in floating point, and the same files. It is written for speed: it answers questions about accuracy and cost.
Limit: no question about privacy or about failures can be asked of it, since nothing is protected, signed or lost.

A killed run resumes from its last checkpoint and repeats the rounds since, with the same results, bit for bit on a CPU.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from agreement import CONTROLS, Agreement, Method
from agreement.derived.cohorts import stated_classes
from algorithms.gram_matrix import Bool, Float
from algorithms.prototypes import Targets
from protoseal.reports.result_files import site_folder
from protoseal.simulation.batched.training import Batching
from protoseal.simulation.freed_memory import keep_freed_memory
from protoseal.simulation.local_federation import RunOutcome
from protoseal.simulation.run_log import RunLog
from protoseal.simulation.schedules import RunSchedule
from protoseal.simulation.site_pool import (
    EVERY_ROUND,
    ONE_BY_ONE,
    SITES_ALONE,
    SitePool,
    SiteTesting,
    SiteTraining,
)
from protoseal.simulation.tensors.checkpoint import Checkpoints
from protoseal.simulation.tensors.exchanges import Exchanged, build_exchange
from protoseal.simulation.tensors.lockstep import RoundTraining, run_in_lockstep
from protoseal.simulation.tensors.message_sizes import (
    Message,
    RoundFacts,
    round_messages,
    setup_messages,
)
from protoseal.simulation.tensors.models import bind_models
from protoseal.simulation.tensors.passes import embed_sites, evaluate_sites
from protoseal.simulation.tensors.sites import TensorSite
from protoseal_files import durable_files
from protoseal_wire.messages import PhaseKey
from secure_client.checkpoints.learner_factory import warn_of_weight
from secure_client.checkpoints.predictor import with_trained
from secure_client.data import SiteData
from secure_client.error_containment import run_or_fallback
from secure_client.output.site_files import write_agreement
from secure_client.output.site_log import site_round, write_site_log
from secure_client.training.evaluation import Evaluation
from secure_client.training.feature_pass import EmbeddedBatch
from secure_client.training.job import Losses
from secure_client.training.learner import choose_device
from secure_server.round_log import CoordinatorRound


class TensorFederation:
    """Sites of one run, trained, exchanged and tested together. Close the federation when done: its log is open."""

    def __init__(
        self,
        agreement: Agreement,
        data: Mapping[str, SiteData],
        *,
        method: Method | None = None,
        training: SiteTraining = ONE_BY_ONE,
        testing: SiteTesting = EVERY_ROUND,
        state: Path | None = None,
        on_completed: Callable[[TensorFederation, int], None] = lambda run, number: None,
    ) -> None:
        """Take ``data``, which maps site names to their data.

        ``method`` is its name if it differs from the agreement's. A control (``local``, ``self``) exchanges nothing,
        whatever the agreement says. ``on_completed`` is called after each round. A run resumes from the checkpoint that
        a killed process left in ``state``.
        """
        self.agreement = agreement
        self._method = method or agreement.method
        self._training = training
        self._on_completed = on_completed
        keep_freed_memory()
        self._stack = ExitStack()
        try:
            folder = state or Path(
                self._stack.enter_context(tempfile.TemporaryDirectory(prefix="protoseal-"))
            )
            self._log = self._stack.enter_context(RunLog(folder / "log.sqlite"))
            learners = training.learners(agreement, data)
            for learner in learners:
                warn_of_weight(agreement, learner)
            self._models = bind_models(learners, agreement.averaging)
            self._schedule = RunSchedule(training.schedule, agreement)
            self.sites = [
                TensorSite(agreement, learner, self._models, self._schedule) for learner in learners
            ]
            device = choose_device(training.device)
            self._exchange = (
                None
                if self._method in CONTROLS
                else build_exchange(agreement, self.sites, self._models, device)
            )
            self._checkpoints = Checkpoints(folder, self.sites, self._exchange, self._log)
            # A repeated round may go on differently on a GPU: with fewer rounds, or with other messages.
            self._log.discard_after(self._checkpoints.restore())
            self.pool = SitePool(
                {site.name: site for site in self.sites},
                data,
                self._log,
                # `self` predicts as the method that it is compared with.
                method=agreement.method if self._method is Method.SELF else self._method,
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
        run_in_lockstep([self.rounds()], self._training)

    def rounds(self) -> Iterator[RoundTraining]:
        """Run the remaining rounds as :meth:`run` does; the caller trains the sites that are yielded in each round.

        See :func:`protoseal.simulation.tensors.lockstep.run_in_lockstep`, which is such a caller.
        """
        if not self.pool.completed:
            self._start()
        while not self.pool.is_over:
            number = self.pool.completed + 1
            yield from self._run_round(number)
            self.pool.end_round(number)
            self._on_completed(self, number)
            if self._checkpoints.is_due:
                self._checkpoints.save(number)

    @property
    def outcome(self) -> RunOutcome:
        """Return the results so far."""
        return RunOutcome(self.pool.logs(), self._log.rounds(), [], self.pool.best_round)

    def end(self) -> RunOutcome:
        """Run the final tests, and return the results."""
        self.pool.run_final_tests()
        return self.outcome

    def save(self, out: Path) -> RunOutcome:
        """Run the final tests, and write every site's files to ``out/sites/NAME``."""

        def save_site(name: str, site: TensorSite) -> None:
            site.predictor.save(site_folder(out, name))
            write_agreement(site_folder(out, name), self.agreement)

        # A run is recorded as ended after this, so that a power cut in between repeats it from its checkpoint.
        with durable_files.sync_together():
            self.pool.run_final_tests(save_site)
            outcome = self.outcome
            for name, log in outcome.sites.items():
                write_site_log(site_folder(out, name), log)
        return outcome

    def _start(self) -> None:
        """Form the groups of sites, by FedPC from the prototypes of the initial models."""
        agreement, names = self.agreement, [site.name for site in self.sites]
        is_grouped = self._exchange is not None and agreement.method.is_grouped
        if is_grouped or self._schedule.leaves_sites_out:  # a site may be tested before it has trained
            self._compute_values(0, self.sites, [None] * len(self.sites))
        if self._exchange is None:
            return
        messages = [*setup_messages(agreement, names)]
        if is_grouped:
            shapes = [((1, len(agreement.classes) * agreement.dim),)] * len(names)
            messages += round_messages(0, self._round_start(0, self.sites), shapes, shapes)
        with self._log.transaction():
            self._log_messages(0, messages)
        self._exchange.group()

    def _participants(self, round_number: int) -> list[TensorSite]:
        """Return the sites that train and send in a round, in the order of their names."""
        groups = self._exchange.groups if self._exchange is not None else ()
        drawn = self._schedule.participants(groups or [[site.name for site in self.sites]], round_number)
        return [site for site in self.sites if site.name in drawn]

    def _run_round(self, number: int) -> Iterator[RoundTraining]:
        """Train the participants from their last results, exchange their values, and report the round."""
        began = time.perf_counter()
        participants = self._participants(number)
        began += yield from self._train(number, participants)
        start, trained = self._round_start(number, participants), time.perf_counter()
        exchanged = self._exchange_values(number, participants)
        ended = time.perf_counter()
        count = len(participants)
        seconds = {"train": (trained - began) / count, "protect": (ended - trained) / count}
        names = tuple(site.name for site in participants)
        received = dict(zip(names, exchanged.received, strict=True))
        with self._log.transaction():
            if self._exchange is not None:
                messages = round_messages(number, start, exchanged.sent, exchanged.result)
                self._log_messages(number, messages)
            tested = self._test(self.sites) if self.pool.tests_in(number) else [None] * len(self.sites)
            for site, test in zip(self.sites, tested, strict=True):
                classes = received.get(site.name)
                self._report(number, site, classes, test, seconds, count if self._exchange else 1)
            self._log.put_round(
                CoordinatorRound(
                    number,
                    1,
                    names,
                    self._names(~exchanged.active),
                    ended - trained,
                    time.perf_counter() - began,
                    exchanged.groups,
                )
            )

    def _train(self, number: int, sites: Sequence[TensorSite]) -> Generator[RoundTraining, None, float]:
        """Train each site from the averaged part that it received last; training that fails is undone.

        Return the seconds that passed for other runs.
        """
        for averaged, names in self._bases(sites):
            self._models.load(names, averaged)
        self._models.begin([site.name for site in sites])
        training, began = RoundTraining(number, sites), time.perf_counter()
        yield training
        others = time.perf_counter() - began - training.seconds
        finite = self._models.finite_sites
        kept = [
            last if site.name in finite else None for site, last in zip(sites, training.losses, strict=True)
        ]
        for site, last in zip(sites, kept, strict=True):
            if last is None:
                site.fail(number)
        self._compute_values(number, sites, kept)
        return others

    def _compute_values(
        self, number: int, sites: Sequence[TensorSite], losses: Sequence[Losses | None]
    ) -> None:
        """Compute what the sites exchange of their present models."""
        learners = [site.learner for site in sites]
        embedded: Sequence[list[EmbeddedBatch] | None] = [None] * len(sites)
        if self._training.batching is not Batching.NEVER and learners[0].exchanges_prototypes:
            embedded = run_or_fallback(
                lambda: embed_sites(learners, self._training.batching),
                lambda: [None] * len(sites),
                "the pass of all sites",
                SITES_ALONE,
            )
        for site, last, features in zip(sites, losses, embedded, strict=True):
            site.finish(number, last, features)

    def _bases(self, sites: Sequence[TensorSite]) -> list[tuple[Float, list[str]]]:
        """Return the averaged parts that sites received, each with the names of the sites that share it."""
        shared: dict[int, tuple[Float, list[str]]] = {}
        for site in sites:
            averaged = site.received.averaged
            if averaged is not None and len(averaged):
                shared.setdefault(id(averaged), (averaged, []))[1].append(site.name)
        return list(shared.values())

    def _exchange_values(self, number: int, sites: Sequence[TensorSite]) -> Exchanged:
        if self._exchange is not None:
            return self._exchange.run(number, sites)
        if self._method is Method.SELF:
            for site in sites:
                site.received.guide = Targets.of(*site.values.latest())
        # No class is withheld, since nothing is averaged.
        every = np.ones((len(sites), len(self.agreement.classes)), dtype=np.bool_)
        return Exchanged(every, every[0], (), [], [])

    def _test(self, sites: Sequence[TensorSite]) -> list[Evaluation | None]:
        """Test the sites' models, and where the method predicts with it the averaged one, on their own test sets."""
        if self._training.batching is Batching.NEVER:
            return [site.predictor.evaluate() for site in sites]
        return run_or_fallback(
            lambda: self._test_together(sites),
            lambda: [site.predictor.evaluate() for site in sites],
            "the test of all sites",
            SITES_ALONE,
        )

    def _test_together(self, sites: Sequence[TensorSite]) -> list[Evaluation | None]:
        learners, guides = [site.learner for site in sites], [site.predictor.guide() for site in sites]
        trained = evaluate_sites(learners, guides, self._training.batching)
        if sites[0].predictor.aggregated is None:
            return trained
        names = [site.name for site in sites]
        self._models.begin(names)
        try:
            for averaged, members in self._bases(sites):
                self._models.load(members, averaged)
            aggregated = evaluate_sites(learners, guides, self._training.batching)
        finally:  # training resumes from the trained part, not from the model that predicts
            self._models.undo()
        return [
            None if after is None or before is None else with_trained(after, before)
            for after, before in zip(aggregated, trained, strict=True)
        ]

    def _report(
        self,
        number: int,
        site: TensorSite,
        received: Bool | None,
        tested: Evaluation | None,
        seconds: Mapping[str, float],
        sites: int,
    ) -> None:
        """Store a site's figures of a round of so many sites; ``received`` is None if it sat out."""
        sits_out = received is None
        if sits_out:
            site.sit_out()
        values = site.values.require_last()
        figures = site_round(
            number,
            1,
            sites,
            () if received is None else self._names(values.held_classes() & ~received),
            tested,
            dict.fromkeys(seconds, 0.0) if sits_out else seconds,
            inference=self.agreement.inference,
            shortened=None if sits_out else values.shortened_share,
        )
        succeeded = sits_out or values.losses is not None
        self.pool.record_round(site.name, figures.model_copy(update={"trained": succeeded}))

    def _names(self, classes: Bool) -> tuple[str, ...]:
        """Return the names of classes (K,)."""
        return tuple(self.agreement.classes[k] for k in np.flatnonzero(classes))

    # Bytes

    def _round_start(self, number: int, sites: Sequence[TensorSite]) -> RoundFacts:
        """Return what the participants are told and state at the start of a round."""
        holds = [stated_classes(self.agreement, number, site.values.held_classes()) for site in sites]
        groups = self._exchange.groups if self._exchange is not None and number else ()
        has_base = any(site.received.averaged is not None for site in sites)
        return RoundFacts(tuple(site.name for site in sites), np.stack(holds), groups, has_base)

    def _log_messages(self, number: int, messages: Iterable[Message]) -> None:
        for name, phase, size, up in messages:
            self._log.put_payload(name, PhaseKey(self.agreement.run, number, 1, phase), size, up=up)


def run_control(
    agreement: Agreement,
    control: Method,
    data: Mapping[str, SiteData],
    *,
    training: SiteTraining = ONE_BY_ONE,
    testing: SiteTesting = EVERY_ROUND,
    state: Path | None = None,
    on_completed: Callable[[TensorFederation, int], None] = lambda run, number: None,
) -> RunOutcome:
    """Run the same models, data and schedule without a federation, and return each site's results by round.

    ``self`` aligns and predicts as the agreement's method does, with prototypes clipped to the same bounds. The other
    arguments are those of :class:`TensorFederation`. Raises ``ValueError`` for a method that is no control.
    """
    if control not in CONTROLS:
        raise ValueError(f"{control} is no control")
    with TensorFederation(
        agreement,
        data,
        method=control,
        training=training,
        testing=testing,
        state=state,
        on_completed=on_completed,
    ) as run:
        run.run()
        return run.end()
