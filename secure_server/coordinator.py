"""The coordinator's handler: transport-neutral, used alike by the gRPC service and by simulation.

Each call checks, steps the round machine, makes the new state durable and only then returns. Calls come from one
thread at a time. Requests to sites are functions of the store's content, so a restart changes no request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import replace

from agreement import Agreement
from agreement.derived.payload_shapes import limits_of
from agreement.storage.anchor_record import AnchorRecord
from crypto.pki import TrustAnchor
from crypto.roster import Roster
from protoseal_wire import codec
from protoseal_wire.messages import (
    PROTOCOL_VERSION,
    CheckReply,
    CheckRequest,
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
from secure_server import errors
from secure_server.aggregator import Aggregator, EncodedOutcome, encode_outcome
from secure_server.exchanges.exchange import Attempt
from secure_server.ledger_anchors import LedgerAnchors
from secure_server.membership import MembershipChecks, check_reply
from secure_server.phase_requests import PhaseRequests
from secure_server.round_log import (
    CoordinatorRound,
    RoundReports,
    WaitLog,
    is_reported,
    log_failures,
    log_progress,
)
from secure_server.rounds import machine
from secure_server.rounds.rules import Rules
from secure_server.rounds.state import RoundStage, State
from secure_server.rounds.task_assignment import (
    check_expected,
    check_joined,
    check_on_roster,
    check_protocol,
    late_sites,
    task_for,
)
from secure_server.store import Store
from secure_server.upload_checks import AnswerCheck

__all__ = ["Coordinator", "CoordinatorRound"]

_log = logging.getLogger("protoseal.coordinator")
_HASH_ANSWER_BYTES = 512
"""Upper bound of an answer to ROSTER from a site that makes no group keys: a hash and its framing."""


class Coordinator:
    """Handler of one run. :class:`secure_server.service.servicer.Handler` is the contract of the public calls."""

    def __init__(
        self,
        *,
        agreement: Agreement,
        rules: Rules,
        trust: TrustAnchor,
        store: Store,
        aggregator: Aggregator,
        anchors: AnchorRecord | None = None,
        background: Executor | None = None,
        clock: Callable[[], float] = time.monotonic,
        poll_seconds: float = 20.0,
        on_round: Callable[[CoordinatorRound], None] = lambda completed: None,
    ) -> None:
        """Take ``background`` to run the aggregation; without one it runs inside the call that completed the uploads.

        ``clock`` is not the time of day, which may be set while a phase is open. A restart starts the clock anew, so
        the open phase gets its full time again. Errors that ``on_round`` raises are logged and stop nothing.
        ``anchors`` are those of the sites' privacy ledgers, over all runs.
        """
        self._agreement = agreement
        self._rules = rules
        self._store = store
        self._aggregator = aggregator
        self._background = background
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._reports = RoundReports(agreement, on_round)
        self._limits = limits_of(agreement, len(rules.roster))
        self._members = MembershipChecks(
            agreement, trust, store, self._limits, rules.seconds(RoundStage.SETUP)
        )
        self._requests = PhaseRequests(agreement, store, self._members, aggregator)
        self._anchors = LedgerAnchors(agreement, anchors)
        self._check = AnswerCheck(agreement, self._requests, aggregator, self._anchors, self._limits)
        self._callbacks: list[Callable[[], None]] = []
        self._job: Future[Done] | None = None
        self._ending = ShutdownWait(clock, rules.seconds(RoundStage.RESULT))
        self._waits = WaitLog(rules)
        stored = store.load()
        self._state = stored or machine.start(rules, clock())
        if stored:
            _log.info("resuming at %s of round %d", stored.stage.name, stored.round)
            self._write_group_keys()  # a resumed computation reads the keys
            self._step(machine.Resumed())
            self._recompute_plan()
            if self._state.over:  # some sites may not have been notified yet
                self._ending.resume(self._state)
            self._start_pending_work()

    @property
    def state(self) -> State:
        """Current state of the run."""
        return self._state

    @property
    def finished(self) -> bool:
        """True once the run has ended and every member was notified or the time for that has passed."""
        return self._ending.is_over(self._state)

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Register ``callback``, which is called whenever tasks may have changed."""
        self._callbacks.append(callback)

    # Calls of sites

    def check(self, site: str, request: CheckRequest) -> CheckReply:
        """Return the facts that a site compares before it joins. Neither the run nor its store changes."""
        check_protocol(site, request.protocol)
        return check_reply(self._agreement, self._rules, self._state, site)

    def join(self, site: str, request: JoinRequest) -> JoinReply:
        """Admit a site of the roster that holds the same agreement. Idempotent for the same statement."""
        self._check_caller(site, request.protocol, request.run)
        if request.agreement_hash != self._agreement.hash():
            raise errors.WrongAgreement(
                f"{site} has agreement {request.agreement_hash.hex()[:16]}, this run has "
                f"{self._agreement.hash().hex()[:16]}: use the same agreement file; `protoseal "
                "client check` names the fields that differ"
            )
        member = self._members.check_joining(site, request.statement, self._state)
        kept_anchor = self._anchors.report_to_joining(site, request.anchor)
        event = machine.Joined(site, request.left)
        self._step(event, statement=(site, codec.encode_statement(request.statement)))
        _log.info("%s joined (certificate %s)", site, member.fingerprint[:16])
        return JoinReply(PROTOCOL_VERSION, self._poll_seconds, self._state.session(site), kept_anchor)

    def next_task(self, site: str, request: TaskRequest) -> Task:
        """Return the site's current task, or :class:`Wait` if there is none."""
        self._check_caller(site, request.protocol, request.run)
        check_joined(self._rules, self._state, site)
        self._step(machine.Polled(site))
        key = task_for(self._rules, self._state, site)
        if key is None:
            return self._end_or_wait(site)
        content = self._requests.content(self._state, key, site)
        left = max(0.0, self._state.deadline - self._clock())
        return Work(key, len(content), codec.content_hash(content), left)

    def _end_or_wait(self, site: str) -> Finished | Stopped | Wait:
        if not self._state.over:
            return Wait()
        self._ending.note_notified(site)
        finished = self._state.stage is RoundStage.FINISHED
        return Finished(self._state.round) if finished else Stopped(self._state.reason)

    def download(self, site: str, request: DownloadRequest) -> bytes:
        """Return the request that the site's current task announced."""
        check_joined(self._rules, self._state, site)
        if request.key != task_for(self._rules, self._state, site):
            raise errors.WrongPhase(
                f"{_name(request.key)} is not the current task of {site}: ask for the next task"
            )
        return self._requests.content(self._state, request.key, site)

    def check_upload(self, site: str, header: UploadHeader) -> None:
        """Refuse an upload by its header: for a phase that is not the site's, or too large for its phase.

        The phase comes first: a site whose phase is over asks for the next task, a site whose answer is too large
        stops. An answer that was accepted is never too large: the maker of an earlier set-up attempt sends its group
        keys again if the reply was lost.
        """
        check_joined(self._rules, self._state, site)
        stored, phase = self._store.upload_hash(header.key, site), header.key.phase
        if stored is None:
            check_expected(self._rules, self._state, site, header.key)
        is_accepted = stored == header.sha256
        limit = self._limits.answer_bytes(phase) if is_accepted else self._max_answer_bytes(site, phase)
        if header.size > limit:
            raise errors.UploadTooLarge(
                f"{_name(header.key)}: {header.size} bytes announced; at most {limit} are accepted"
            )

    def upload(self, site: str, header: UploadHeader, content: bytes) -> None:
        """Store an answer. Idempotent for the same bytes; other bytes for the same key are refused permanently."""
        stored = self._store.upload_hash(header.key, site)
        if stored is not None:
            if stored != codec.content_hash(content):
                raise errors.Conflict(f"{site} has already answered {_name(header.key)} with other content")
            return
        check_expected(self._rules, self._state, site, header.key)
        self._check.check(self._state, self.roster(), header.key, site, content)
        self._step(machine.Answered(site, header.key), upload=(header.key, site, content))

    def leave(self, site: str, request: LeaveRequest) -> None:
        """Take the site out until it joins again.

        A Leave that names an earlier Join is late and is ignored.
        """
        check_on_roster(self._rules, site)
        if request.session != self._state.session(site):
            _log.info("ignored a late Leave of %s: the site has joined again since", site)
            return
        self._step(machine.Left(site))
        _log.info("%s left", site)

    def tick(self) -> None:
        """Apply deadlines and collect a finished aggregation. Call this a few times a second."""
        if self._job is not None and self._job.done():
            job, self._job = self._job, None
            self._finish_job(job)
        self._step(machine.Tick())
        self._waits.note(self._state, self._clock())

    # Transitions

    def roster(self) -> Roster:
        """Return the members of the run with their keys, as every site verifies them."""
        return self._members.roster(self._state)

    def _step(
        self,
        event: machine.Event,
        *,
        statement: tuple[str, bytes] | None = None,
        upload: tuple[PhaseKey, str, bytes] | None = None,
        results: Mapping[str, bytes] | None = None,
        sums: Mapping[str, bytes] | None = None,
    ) -> None:
        """Step the machine, store the outcome with its cause, then act on the outcome."""
        before, after = self._state, self._next_state(event)
        if after == before and statement is None and upload is None and results is None:
            return
        if is_reported(before, after):
            # Report before storing: a coordinator killed in between reports the round twice, never not at all.
            self._reports.report(before, self._requests.attempt, abandoned=machine.abandons(before, after))
        # Durable first, acknowledged afterwards: a site that got a reply may erase what it sent.
        self._store.save(after, statement=statement, upload=upload, results=results, sums=sums)
        self._state = after
        self._follow_up(before, after)

    def _next_state(self, event: machine.Event) -> State:
        """Return the state after ``event``. No site whose certificate ends before the set-up does becomes a member.

        Every other site would refuse the whole roster because of that member. The site can join a run that begins
        later.
        """
        now = self._clock()
        after = machine.step(self._rules, self._state, event, now)
        before = self._state
        # Membership checks a joining site during its call; its statement is not stored yet.
        joining = (set(after.members) & before.joined) - set(before.members)
        lapsed = self._members.find_lapsed(joining) if joining else frozenset()
        if not lapsed:
            return after
        _log.warning(
            "certificates end before the set-up would; left out of the run: %s", ", ".join(sorted(lapsed))
        )
        staying = replace(before, joined=before.joined - lapsed, absent=before.absent - lapsed)
        return machine.step(self._rules, staying, event, now)

    def _follow_up(self, before: State, after: State) -> None:
        """Run the follow-ups of a step, those that the run depends on first."""
        log_progress(self._agreement, before, after)
        self._waits.note(after, self._clock())
        if after.over:
            self._ending.begin(after)
        if after.verified != before.verified:
            self._write_group_keys()
        if after.stage not in (RoundStage.PLANNING, RoundStage.COMPUTING):
            self._drop_job()
        if after.round > before.round:
            self._reports.begin_round()
            self._store.prune(after.round)
        self._start_pending_work()
        for callback in self._callbacks:
            callback()

    def _start_pending_work(self) -> None:
        """Do the coordinator's own part of the stage. After a restart this is repeated, with the same outcome."""
        if self._state.stage is RoundStage.PLANNING and not self._state.survivors:
            self._step(self._aggregator.plan(self._requests.attempt(self._state)))
        elif self._state.stage is RoundStage.PLANNING and self._job is None:
            self._start_job(self._aggregator.plan)
        elif self._state.stage is RoundStage.COMPUTING and self._job is None:
            self._start_job(self._compute)

    def _recompute_plan(self) -> None:
        """Recompute, after a restart and before the first call, the contents of requests of the steps under way."""
        step_under_way = self._state.asked_key is not None and self._state.stage is not RoundStage.RESULT
        if self._state.survivors and step_under_way:
            self._aggregator.plan(self._requests.attempt(self._state))

    def _write_group_keys(self) -> None:
        """Write the uploaded evaluation keys of the group to the file that the protection reads."""
        if self._state.members and self._state.maker in self._state.verified:
            keys = self._requests.group_keys(self._state)
            if keys is not None:
                self._aggregator.write_group_keys(keys.evaluation_keys)

    def _start_job(self, work: Job) -> None:
        self._reports.begin_aggregation()
        attempt = self._requests.attempt(self._state)
        if self._background is None:
            self._finish_job(self._run_inline(work, attempt))
        else:
            self._job = self._background.submit(self._run_in_background, work, attempt.with_last_sums())

    def _compute(self, attempt: Attempt) -> EncodedOutcome:
        return encode_outcome(self._aggregator.combine(attempt))

    def _run_in_background(self, work: Job, attempt: Attempt) -> Done:
        """Run a job in another thread.

        The job reads uploads one at a time, because all of them at once may exceed the memory.
        """
        with self._store.reader() as reader:
            return work(attempt.read_by(reader.answer))

    def _drop_job(self) -> None:
        """Drop a job that exceeded its time; no attempt uses the job's outcome."""
        if self._job is not None:
            self._job.cancel()
            self._job = None

    def _run_inline(self, work: Job, attempt: Attempt) -> Future[Done]:
        job: Future[Done] = Future()
        try:
            job.set_result(work(attempt))
        except Exception as error:  # handled like the failure of a background job
            job.set_exception(error)
        return job

    def _finish_job(self, job: Future[Done]) -> None:
        error = job.exception()
        if error is not None:
            _log.error(
                "round %d, attempt %d: aggregation failed",
                self._state.round,
                self._state.attempt,
                exc_info=error,
            )  # sites learn only that the aggregation failed
            self._step(machine.ComputeFailed())
            return
        self._reports.end_aggregation()
        done = job.result()
        if isinstance(done, machine.Planned):
            self._step(done)
        else:
            self._store_results(done)

    def _store_results(self, done: EncodedOutcome) -> None:
        log_failures(self._state, done.failures)
        if done.failures and not done.results:
            self._step(machine.ComputeFailed())
            return
        excluded = frozenset(site for failure in done.failures for site in failure.group)
        self._step(machine.Computed(done.groups, excluded), results=done.results or None, sums=done.sums)

    def _max_answer_bytes(self, site: str, phase: Phase) -> int:
        """Return the most bytes of the site's answer. Only the maker of group keys answers ROSTER at length."""
        makes_keys = self._rules.needs_secret and site in self._state.members[:1]
        if phase is Phase.ROSTER and not makes_keys:
            return _HASH_ANSWER_BYTES
        return self._limits.answer_bytes(phase)

    def _check_caller(self, site: str, protocol: int, run: str) -> None:
        check_protocol(site, protocol)
        if run != self._agreement.run:
            raise errors.WrongAgreement(f"this coordinator serves run {self._agreement.run}, not {run}")
        check_on_roster(self._rules, site)


Done = machine.Planned | EncodedOutcome
Job = Callable[[Attempt], Done]
"""Computation that the coordinator makes for an attempt and that may take long."""


def _name(key: PhaseKey) -> str:
    return f"{key.phase.name} of round {key.round}, attempt {key.attempt}"


_GRACE_SECONDS = 30.0


class ShutdownWait:
    """Wait of the coordinator after a run, by its ``clock``, until every site was notified or the time has passed.

    A coordinator that is started again after the end waits ``late_seconds`` for sites that have not fetched the last
    result.
    """

    def __init__(self, clock: Callable[[], float], late_seconds: float) -> None:
        self._clock = clock
        self._late_seconds = late_seconds
        self._began: float | None = None
        self._notified: set[str] = set()
        self._awaited: frozenset[str] = frozenset()

    def begin(self, ended: State) -> None:
        """Start the wait at the end of the run. Idempotent."""
        if self._began is None:
            self._began = self._clock()
            level = logging.INFO if ended.stage is RoundStage.FINISHED else logging.ERROR
            _log.log(level, "the run is over: %s", ended.reason or "finished")

    def resume(self, ended: State) -> None:
        """Start the wait of a coordinator that was started again after the end of the run."""
        self._began = self._clock()
        self._awaited = late_sites(ended)
        if ended.stage is RoundStage.FINISHED:
            _log.info("run %s is complete after %d rounds", ended.run, ended.round)
        else:
            _log.error("run %s is over: %s", ended.run, ended.reason)
        if self._awaited:
            late = ", ".join(sorted(self._awaited))
            _log.info("waiting %.0f s for %s to fetch the last result", self._wait_seconds, late)
        else:
            _log.info("answering calls of sites for %.0f s", self._wait_seconds)

    def note_notified(self, site: str) -> None:
        """Note that the site was notified of the end."""
        self._notified.add(site)

    def is_over(self, state: State) -> bool:
        """Return True if nobody needs the coordinator any more."""
        if self._began is None:
            return False
        if self._notified >= (state.joined - state.absent) | self._awaited:
            return True
        return self._clock() - self._began > self._wait_seconds

    @property
    def _wait_seconds(self) -> float:
        """Return the wait in seconds. A late site that was notified needs no more time than the others."""
        late = self._awaited - self._notified
        return max(_GRACE_SECONDS, self._late_seconds) if late else _GRACE_SECONDS
