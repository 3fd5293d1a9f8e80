"""A site and a coordinator as processes that can be killed at any moment and started again on what their disk has."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import ExitStack, suppress
from typing import ParamSpec, Protocol, TypeVar

from agreement.storage.anchor_record import AnchorRecord
from protoseal_wire.messages import (
    PROTOCOL_VERSION,
    DownloadRequest,
    Finished,
    JoinReply,
    JoinRequest,
    LeaveRequest,
    Phase,
    PhaseKey,
    Stopped,
    Task,
    TaskRequest,
    UploadHeader,
    Wait,
    Work,
)
from secure_client.app import open_peers, rounds_received
from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
from secure_client.checkpoints.learner_factory import build_checkpointed_learner, build_learner
from secure_client.client_loop import take_part
from secure_client.errors import Unreachable
from secure_client.privacy.ledger_anchors import check_recorded
from secure_client.privacy.releases import open_exact, open_releases
from secure_client.protocol.setup import Party, open_journal
from secure_client.session import Session
from secure_server.aggregator import Aggregator
from secure_server.coordinator import Coordinator
from secure_server.rounds.rules import build_rules
from secure_server.store import Store
from tests.states.disks import Disk
from tests.states.faults import COORDINATOR
from tests.states.federations import Cast
from tests.states.interleaving import Strand

JOURNAL, STORE, KEYS = "journal.sqlite", "coordinator.sqlite", "keys.bin"
SECONDS = 10.0
"""Each deadline of a run."""
MAX_ATTEMPTS = 4
MOST_STARTS = 12
"""Number of starts after which a service is given up."""

P = ParamSpec("P")
R = TypeVar("R")


class Surroundings(Protocol):
    """World in which a party runs, as the party sees it."""

    cast: Cast

    @property
    def now(self) -> float:
        """The clock, in seconds."""
        ...

    def delivered(self, site: SiteProcess, call: Callable[[], R]) -> R | None:
        """Return the reply to a site's call through the network; None for a call that has to be tried again."""
        ...

    def answering(self, site: SiteProcess, key: PhaseKey, request: bytes) -> None:
        """A site has downloaded a request and is about to answer it."""
        ...

    def leaving(self, site: SiteProcess, key: PhaseKey, content: bytes) -> None:
        """An answer is about to leave a site."""
        ...

    def arriving(self, site: SiteProcess, key: PhaseKey) -> None:
        """An answer has arrived, and the coordinator has not looked at it."""
        ...

    def taken(self, site: SiteProcess, key: PhaseKey) -> None:
        """The coordinator has taken the answer that arrived, or had it."""
        ...

    def acknowledged(self, site: SiteProcess, key: PhaseKey) -> None:
        """A site knows that its answer was taken."""
        ...

    def opened(self, site: SiteProcess, result: int, base: bytes) -> None:
        """A site's process has read its disk: the round of its last result, and the hash of what it trains from."""
        ...

    def restored(self, store: Store) -> None:
        """The coordinator's process has read its disk."""
        ...


class Mail:
    """A site's calls, each of which may be lost on either way, be late, or come twice."""

    def __init__(self, site: SiteProcess, world: Surroundings) -> None:
        self._site, self._world, self._session = site, world, 0

    def join(self, request: JoinRequest) -> JoinReply:
        """See :class:`secure_client.client_loop.Transport`, here and below."""
        reply = self._call(lambda: self._handler.join(self._site.name, request))
        self._session = reply.session
        return reply

    def next_task(self) -> Task:
        """Wait until there is something to do."""
        run = self._world.cast.agreement.run
        asked = TaskRequest(PROTOCOL_VERSION, run)
        while True:
            task = self._call(lambda: self._handler.next_task(self._site.name, asked))
            if not isinstance(task, Wait):
                return task
            self._site.idle = True

    def download(self, work: Work) -> bytes:
        """Return the request itself."""
        asked = DownloadRequest(work.key)
        content = self._call(lambda: self._handler.download(self._site.name, asked))
        if (len(content), hashlib.sha256(content).digest()) != (work.size, work.sha256):
            raise Unreachable("the request changed between its announcement and the download")
        self._world.answering(self._site, work.key, content)
        return content

    def upload(self, key: PhaseKey, content: bytes) -> None:
        """Hand in an answer."""
        self._world.leaving(self._site, key, content)
        header = UploadHeader(key, len(content), hashlib.sha256(content).digest())

        def hand_in() -> bool:
            self._world.arriving(self._site, key)
            self._handler.check_upload(self._site.name, header)
            self._handler.upload(self._site.name, header, content)
            self._world.taken(self._site, key)
            return True

        self._call(hand_in)
        self._world.acknowledged(self._site, key)

    def leave(self) -> None:
        """Tried once."""

        def say() -> bool:
            self._handler.leave(self._site.name, LeaveRequest(self._session))
            return True

        self._site.pause()
        self._world.delivered(self._site, say)

    @property
    def _handler(self) -> Coordinator:
        return self._site.coordinator.handler

    def _call(self, call: Callable[[], R]) -> R:
        while True:
            self._site.pause()
            reply = self._world.delivered(self._site, call)
            if reply is not None:
                return reply


class SiteProcess:
    """One site: its disk, and its process where that runs."""

    def __init__(
        self, world: Surroundings, party: Party, disk: Disk, coordinator: CoordinatorProcess
    ) -> None:
        self._world, self._party, self.disk, self.coordinator = world, party, disk, coordinator
        self.name = party.name
        self.strand: Strand[Finished | Stopped] | None = None
        self.learner: CheckpointedLearner | None = None
        self.outcome: Finished | Stopped | None = None
        self.gone = self.idle = self.injured = self.disk_failed = False
        self.back_at = self.starts = self.calls = self.answers = self.deaths = self.paused_until = (
            self.away
        ) = 0
        self.result = 0
        self.last: PhaseKey | None = None

    @property
    def is_up(self) -> bool:
        """True if the process runs."""
        return self.strand is not None

    @property
    def is_given_up(self) -> bool:
        """True if the process was started so often that nobody starts it again."""
        return self.starts >= MOST_STARTS and not self.is_up

    @property
    def start_of_training(self) -> bytes:
        """Hash of the base and the targets that the site would train from; empty before the process has a model."""
        if self.learner is None:
            return b""
        guide = self.learner.received.guide
        targets = b"" if guide is None else guide.rows.numpy().tobytes()
        return hashlib.sha256(self.learner.received.base_hash + targets).digest()

    def pause(self) -> None:
        """Let others act; called from within the process."""
        if self.strand is None:
            raise RuntimeError(f"{self.name} has no process that could pause")
        self.strand.pause()

    def start(self) -> None:
        """Start the process; it does nothing yet."""
        self.starts += 1
        self.injured = self.disk_failed = self.idle = False
        self.strand = Strand(self._run)

    def step(self) -> BaseException | None:
        """Let the process run to its next call; what it died of, if it did."""
        strand, self.idle = self.strand, False
        if strand is None:
            return None
        strand.resume()
        if not strand.over:
            return None
        self.strand, self.outcome = None, strand.result
        return strand.error

    def kill(self, back_at: int) -> None:
        """SIGKILL, wherever the process is; the next one finds what is on the disk now."""
        self.disk.snapshot()
        if self.strand is not None:
            self.strand.kill()
        self.died(back_at)

    def died(self, back_at: int) -> None:
        """The process ended by a kill; it is to be started again in turn ``back_at``."""
        self.disk.die()
        self.ended(back_at)

    def ended(self, back_at: int) -> None:
        """The process ended; as before."""
        self.strand, self.back_at = None, back_at
        self.deaths += 1

    def _run(self) -> Finished | Stopped:
        """Run the site as :mod:`secure_client.app` does, without files of results."""
        world, cast = self._world, self._world.cast
        agreement, budget = cast.agreement, cast.budget(self.name, self.disk.ledger)
        with ExitStack() as stack:
            journal = stack.enter_context(
                open_journal(self.disk.folder / JOURNAL, agreement, self._party, durable=False)
            )
            if budget is not None:
                check_recorded(budget)
            learner = build_learner(
                agreement, self.name, cast.data[self.name], model=agreement.training.model, device="cpu"
            )
            self.learner = build_checkpointed_learner(
                agreement, learner, journal, open_releases(agreement, budget)
            )
            peers = None if budget is None else stack.enter_context(open_peers(budget))
            session = Session(
                agreement,
                self._party,
                self.learner,
                journal,
                peers=peers,
                tests_in=lambda number: False,
                exact=open_exact(agreement, budget),
            )
            world.opened(self, rounds_received(journal), self.start_of_training)
            if rounds_received(journal) == agreement.rounds:
                session.finish()
                outcome: Finished | Stopped = Finished(agreement.rounds)
            else:
                outcome = take_part(session, Mail(self, world))
            self.result = rounds_received(journal)
            return outcome


class Deferred(Executor):
    """The coordinator's thread for computations, which runs when the world says so."""

    def __init__(self) -> None:
        self._jobs: list[Callable[[], None]] = []

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Have it done by :meth:`run_one`."""
        future: Future[R] = Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:  # the same road as a thread's
                future.set_exception(error)

        self._jobs.append(job)
        return future

    def run_one(self) -> bool:
        """Do what was submitted first; whether there was anything."""
        if self._jobs:
            self._jobs.pop(0)()
            return True
        return False

    def forget(self) -> None:
        """The process that submitted them is dead."""
        self._jobs.clear()


class CoordinatorProcess:
    """The coordinator: its disk, and its handler where the process runs."""

    name = COORDINATOR

    def __init__(self, world: Surroundings, disk: Disk, *, background: bool) -> None:
        self._world, self.disk = world, disk
        self._stack = ExitStack()
        self._handler: Coordinator | None = None
        self.jobs = Deferred() if background else None
        self.back_at = self.deaths = 0
        self.store: Store | None = None

    @property
    def is_up(self) -> bool:
        """True if the process runs."""
        return self._handler is not None

    @property
    def handler(self) -> Coordinator:
        """The running process's; ``RuntimeError`` while there is none."""
        if self._handler is None:
            raise RuntimeError("the coordinator is down")
        return self._handler

    def start(self) -> None:
        """Start the process on what its disk has. Raises :class:`Killed` where a write of its own is a fatal one."""
        cast, world, folder = self._world.cast, self._world, self.disk.folder
        agreement = cast.agreement
        self.store = self._stack.enter_context(
            Store.open(folder / STORE, agreement.run, agreement.hash(), durable=False)
        )
        anchors = self._stack.enter_context(AnchorRecord.open(folder / "anchors.sqlite"))
        rules = build_rules(
            agreement,
            cast.sites,
            max_attempts=MAX_ATTEMPTS,
            join_seconds=SECONDS,
            phase_seconds=dict.fromkeys(Phase, SECONDS),
        )
        self._handler = Coordinator(
            agreement=agreement,
            rules=rules,
            trust=cast.trust,
            store=self.store,
            aggregator=Aggregator(agreement, folder / KEYS),
            anchors=anchors,
            clock=lambda: world.now,
            background=self.jobs,
        )
        world.restored(self.store)

    def kill(self, back_at: int) -> None:
        """SIGKILL; it is to be started again in turn ``back_at``."""
        self.disk.die()
        self._handler, self.back_at = None, back_at
        self.deaths += 1
        with suppress(Exception):
            self._stack.close()
        if self.jobs is not None:
            self.jobs.forget()
