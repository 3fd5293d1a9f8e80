"""The coordinator's handler: transport-neutral, used alike by the gRPC service and by simulation.

Each call checks, steps the round machine, makes the new state durable and only then returns. Calls come from one
thread at a time. Requests to sites are functions of what the store holds, so a restart changes none of them.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from datetime import UTC, datetime

from crypto.errors import CryptoError
from crypto.pki import TrustAnchor
from crypto.protection import Payload
from crypto.roster import Member, Roster, Statement, assemble_roster, verify_statement
from protoseal.config import Agreement
from protoseal.terms import cohort_of, limits_of
from protoseal_wire import codec
from protoseal_wire.messages import (
    PROTOCOL_VERSION,
    ActiveList,
    DownloadRequest,
    Finished,
    JoinReply,
    JoinRequest,
    PhaseKey,
    Stopped,
    Task,
    TaskRequest,
    UploadHeader,
    Wait,
    Work,
)
from secure_server import errors, rounds
from secure_server.aggregate import Aggregator
from secure_server.answers import AnswerCheck
from secure_server.requests import Requests
from secure_server.rounds import Rules, Stage, State
from secure_server.store import Store

_log = logging.getLogger("protoseal.coordinator")
_GRACE_SECONDS = 30.0


@dataclass(frozen=True)
class CoordinatorRound:
    """A completed round as the coordinator knows it. Seconds count from the start of this process at the earliest."""

    round: int
    attempt: int
    sites: tuple[str, ...]
    withheld: tuple[str, ...]
    aggregate_seconds: float
    total_seconds: float


class Coordinator:
    """One run's coordinator. :class:`secure_server.servicer.Handler` is the contract of the public calls."""

    def __init__(
        self,
        *,
        agreement: Agreement,
        rules: Rules,
        trust: TrustAnchor,
        store: Store,
        aggregator: Aggregator,
        background: Executor | None = None,
        clock: Callable[[], float] = time.monotonic,
        poll_seconds: float = 20.0,
        on_round: Callable[[CoordinatorRound], None] = lambda completed: None,
    ) -> None:
        """``background`` runs the aggregation; without one it runs inside the call that completed the uploads.

        ``clock`` is not the time of day, which may be set while a phase is open. A restart begins anew with it:
        the phase then gets its full time again.
        """
        self._agreement, self._rules, self._trust, self._store = agreement, rules, trust, store
        self._aggregator, self._background, self._clock = aggregator, background, clock
        self._poll_seconds, self._on_round = poll_seconds, on_round
        self._limits = limits_of(agreement)
        self._requests = Requests(store, self._limits)
        self._check = AnswerCheck(agreement, self._requests, aggregator, self._limits)
        self._callbacks: list[Callable[[], None]] = []
        self._job: Future[dict[str, Payload]] | None = None
        self._told: set[str] = set()
        self._roster: Roster | None = None
        self._ended_at: float | None = None
        self._round_began = self._compute_began = self._compute_seconds = 0.0
        stored = store.load()
        self._state = stored or rounds.start(rules, clock())
        if stored:
            _log.info("resuming at %s of round %d", stored.stage.name, stored.round)
            self._step(rounds.Resumed())
            self._keep_keys()
            if self._state.stage is Stage.FINISHED:  # it ended, but perhaps not every site has been told
                self._ended_at = clock()
            if self._state.stage is Stage.COMPUTING and self._job is None:
                self._start_job()

    @property
    def state(self) -> State:
        """Where the run is."""
        return self._state

    @property
    def finished(self) -> bool:
        """The run has ended, and every member was told or the time for that has passed."""
        if self._ended_at is None:
            return False
        return (
            self._told >= self._state.joined - self._state.absent
            or self._clock() - self._ended_at > _GRACE_SECONDS
        )

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called whenever tasks may have changed."""
        self._callbacks.append(callback)

    # The five calls of a site

    def join(self, site: str, request: JoinRequest) -> JoinReply:
        """Admit a site of the roster that holds the same agreement; the same statement again is harmless."""
        self._check_caller(site, request.protocol, request.run)
        if request.agreement_hash != self._agreement.hash():
            raise errors.WrongAgreement(
                f"{site} holds agreement {request.agreement_hash.hex()[:16]}, this run's is "
                f"{self._agreement.hash().hex()[:16]}: use the same agreement file (classes and their order, d, "
                "preprocessing, method)"
            )
        member = self._verified(site, request.statement)
        self._step(rounds.Joined(site), statement=(site, codec.encode_statement(request.statement)))
        _log.info("%s joined (certificate %s)", site, member.fingerprint[:16])
        return JoinReply(PROTOCOL_VERSION, self._poll_seconds)

    def next_task(self, site: str, request: TaskRequest) -> Task:
        """What the site is to do now; :class:`Wait` when that is nothing."""
        self._check_caller(site, request.protocol, request.run)
        rounds.check_joined(self._rules, self._state, site)
        self._step(rounds.Polled(site))
        if self._state.stage is Stage.FINISHED:
            self._told.add(site)
            return Finished(self._state.round)
        if self._state.stage is Stage.STOPPED:
            self._told.add(site)
            return Stopped(self._state.reason)
        key = rounds.task_for(self._rules, self._state, site)
        if key is None:
            return Wait()
        content = self._requests.content(self._state, key, site)
        left = max(0.0, self._state.deadline - self._clock())
        return Work(key, len(content), hashlib.sha256(content).digest(), left)

    def download(self, site: str, request: DownloadRequest) -> bytes:
        """The request that the site's current task announced."""
        rounds.check_joined(self._rules, self._state, site)
        if request.key != rounds.task_for(self._rules, self._state, site):
            raise errors.WrongPhase(f"{_name(request.key)} is not {site}'s task; ask for the next one")
        return self._requests.content(self._state, request.key, site)

    def check_upload(self, site: str, header: UploadHeader) -> None:
        """Refuse an upload by its header: too large for its phase, or for a phase that is not the site's."""
        rounds.check_joined(self._rules, self._state, site)
        limit = self._limits.answer_bytes(header.key.phase)
        if header.size > limit:
            raise errors.TooLarge(
                f"{_name(header.key)}: {header.size} bytes announced, at most {limit} taken"
            )
        if self._store.upload_hash(header.key, site) is None:
            rounds.check_expected(self._rules, self._state, site, header.key)

    def upload(self, site: str, header: UploadHeader, content: bytes) -> None:
        """Take an answer. The same bytes again are harmless; other bytes are refused for good."""
        stored = self._store.upload_hash(header.key, site)
        if stored is not None:
            if stored != hashlib.sha256(content).digest():
                raise errors.Conflict(f"{site} has already answered {_name(header.key)} with other content")
            return
        rounds.check_expected(self._rules, self._state, site, header.key)
        self._check.check(self._state, self.roster(), header.key, site, content)
        self._step(rounds.Answered(site, header.key), upload=(header.key, site, content))

    def leave(self, site: str) -> None:
        """The site takes no further part until it joins again."""
        rounds.check_on_roster(self._rules, site)
        self._step(rounds.Left(site))
        _log.info("%s left", site)

    def tick(self) -> None:
        """Let deadlines pass and take in a finished aggregation. To be called a few times a second."""
        if self._job is not None and self._job.done():
            job, self._job = self._job, None
            self._take_results(job)
        self._step(rounds.Tick())

    # Inside

    def roster(self) -> Roster:
        """The members of the run with their keys, as every site verifies them.

        As of joining: a certificate that ends during the run is refused at its owner's next call, not here.
        """
        if self._roster is None or tuple(self._roster.members) != self._state.members:
            self._roster = assemble_roster(
                self._requests.roster(self._state).statements,
                trust=self._trust,
                run=self._agreement.run,
                agreement_hash=self._agreement.hash(),
                at=self._store.last_join(),
            )
        return self._roster

    def _step(
        self,
        event: rounds.Event,
        *,
        statement: tuple[str, bytes] | None = None,
        upload: tuple[PhaseKey, str, bytes] | None = None,
        results: Mapping[str, bytes] | None = None,
    ) -> None:
        """Step the machine, store the outcome with what caused it, then act on it."""
        before = self._state
        after = rounds.step(self._rules, before, event, self._clock())
        if after == before and statement is None and upload is None and results is None:
            return
        self._store.save(after, statement=statement, upload=upload, results=results)
        self._state = after
        self._after(before, after)

    def _after(self, before: State, after: State) -> None:
        if after.stage is not before.stage or after.attempt != before.attempt:
            _log.info("%s: round %d, attempt %d", after.stage.name, after.round, after.attempt)
        if before.stage is Stage.RESULT and after.stage is not Stage.RESULT:
            self._report(before)
        if after.round > before.round:
            self._store.prune(after.round)
            self._round_began = time.perf_counter()
        if after.stage in (Stage.FINISHED, Stage.STOPPED) and self._ended_at is None:
            self._ended_at = self._clock()
            _log.log(
                logging.INFO if after.stage is Stage.FINISHED else logging.ERROR,
                "the run is over: %s",
                after.reason or "finished",
            )
        if after.verified != before.verified:
            self._keep_keys()
        if after.stage is Stage.COMPUTING and self._job is None:
            self._start_job()
        for callback in self._callbacks:
            callback()

    def _report(self, completed: State) -> None:
        active = self._requests.active_list(completed)
        counts = cohort_of(active, self._agreement).counts
        self._on_round(
            CoordinatorRound(
                round=completed.round,
                attempt=completed.attempt,
                sites=completed.participants,
                withheld=tuple(
                    name for name, holders in zip(self._agreement.classes, counts, strict=True) if not holders
                ),
                aggregate_seconds=self._compute_seconds,
                total_seconds=time.perf_counter() - self._round_began,
            )
        )

    def _keep_keys(self) -> None:
        """Lay the group's evaluation keys where the protection looks for them, once their maker sent them."""
        if self._state.members and self._state.maker in self._state.verified:
            keys = self._requests.group_keys(self._state)
            if keys is not None:
                self._aggregator.keep_keys(keys.evaluation_keys)

    def _start_job(self) -> None:
        self._compute_began = time.perf_counter()
        key = self._state.values_key
        active = self._requests.active_list(self._state)
        payloads = {
            site: codec.decode_payload(self._stored(key, site), self._limits)
            for site in self._state.participants
        }
        if self._background is None:
            job: Future[dict[str, Payload]] = Future()
            self._run_inline(job, payloads, active)
            self._take_results(job)
        else:
            self._job = self._background.submit(self._aggregator.combine, payloads, active)

    def _run_inline(
        self, job: Future[dict[str, Payload]], payloads: Mapping[str, Payload], active: ActiveList
    ) -> None:
        try:
            job.set_result(self._aggregator.combine(payloads, active))
        except Exception as error:  # the same road as a background job's failure
            job.set_exception(error)

    def _take_results(self, job: Future[dict[str, Payload]]) -> None:
        error = job.exception()
        if error is not None:
            _log.error("aggregation failed", exc_info=error)
            self._step(rounds.ComputeFailed(f"aggregation failed: {error}"))
            return
        self._compute_seconds = time.perf_counter() - self._compute_began
        self._step(
            rounds.Computed(),
            results={site: codec.encode_payload(payload) for site, payload in job.result().items()},
        )

    def _stored(self, key: PhaseKey, site: str) -> bytes:
        content = self._store.upload(key, site)
        if content is None:
            raise RuntimeError(f"the store lost {site}'s answer to {_name(key)}")
        return content

    def _verified(self, site: str, statement: Statement) -> Member:
        if statement.site != site:
            raise errors.WrongIdentity(f"{site} presents a statement of {statement.site}")
        try:
            return verify_statement(
                self._trust, statement, self._agreement.run, self._agreement.hash(), datetime.now(UTC)
            )
        except CryptoError as error:
            raise errors.BadPayload(f"{site}'s statement does not verify: {error}") from error

    def _check_caller(self, site: str, protocol: int, run: str) -> None:
        if protocol != PROTOCOL_VERSION:
            raise errors.WrongProtocol(
                f"{site} speaks protocol {protocol}, this coordinator {PROTOCOL_VERSION}: install the same release"
            )
        if run != self._agreement.run:
            raise errors.WrongAgreement(f"this coordinator serves run {self._agreement.run}, not {run}")
        rounds.check_on_roster(self._rules, site)


def _name(key: PhaseKey) -> str:
    return f"{key.phase.name} of round {key.round}, attempt {key.attempt}"
