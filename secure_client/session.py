"""One site's half of a run, free of transport: a request goes in, an answer comes out.

Order of a round: PRESENCE (train, say which classes are held), VALUES (protect and send the prototypes), RESULT
(take the personalised prototypes, which are the targets of the next round's training). A site that misses a
result keeps the targets it has.

Nothing that follows from a decryption is ever in an answer (Li and Micciancio, eprint 2020/1533): RESULT is
acknowledged in the same words whatever came out, and VALUES are fresh encryptions of freshly trained prototypes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import numpy as np

from algorithms.pfpl.aggregation import personalise
from crypto.ckks.site import CkksSite
from crypto.errors import CryptoError, ImplausibleError
from crypto.plain import PlainSite
from crypto.protection import Cohort, Combination, Payload, Rows, SiteHalf
from protoseal.config import Agreement
from protoseal.files import SiteRound
from protoseal.terms import cohort_of, limits_of
from protoseal_wire import codec
from protoseal_wire.codec import CodecError
from protoseal_wire.messages import PROTOCOL_VERSION, Acknowledgement, JoinRequest, Phase, PhaseKey, Work
from protoseal_wire.presence import sign_presence, verify_active_list
from secure_client.errors import Violation
from secure_client.journal import Journal
from secure_client.learner import Evaluation
from secure_client.setup import Party, Setup
from secure_client.trainee import Trainee

_log = logging.getLogger("protoseal.site")


class Session:
    """A site's protocol state. Everything that must survive a crash is in the journal."""

    def __init__(
        self,
        agreement: Agreement,
        party: Party,
        trainee: Trainee,
        journal: Journal,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        on_round: Callable[[SiteRound], None] = lambda record: None,
    ) -> None:
        """``on_round`` is told of each round's outcome at this site; it stays at the site."""
        self._agreement, self._party, self._trainee, self._journal = agreement, party, trainee, journal
        self._setup = Setup(agreement, party, journal, now)
        self._limits = limits_of(agreement)
        self._on_round = on_round
        self._seconds = {"train": 0.0, "protect": 0.0}

    @property
    def site(self) -> str:
        """The site's name."""
        return self._party.name

    def join_request(self) -> JoinRequest:
        """The same bytes at every start of this site in this run."""
        return JoinRequest(
            PROTOCOL_VERSION, self._agreement.run, self.site, self._agreement.hash(), self._setup.statement
        )

    def answer(self, key: PhaseKey, request: bytes) -> bytes:
        """Answer a phase, once: the same request gets the same bytes again, after a restart too.

        Raises :class:`Violation`, and answers nothing, when the request is one that the protocol does not allow
        here, or its content does not verify.
        """
        self._check_run(key)
        stored = self._journal.answer(key, request)
        if stored is not None:
            return stored
        self._check_order(key)
        # With what follows from the request: a crash leaves either all of it or a phase not yet answered.
        with self._journal.transaction():
            answer = self._decoded(key, request)
            self._journal.record(key, request, answer)
        if key.phase is Phase.RESULT:
            self._report(key)
        return answer

    def check_size(self, work: Work) -> None:
        """Raise :class:`Violation` for a request larger than its phase can need, before it is downloaded."""
        limit = self._limits.request_bytes(work.key.phase)
        if work.size > limit:
            raise Violation(
                f"{work.key.phase.name}: a request of {work.size} bytes, at most {limit} are expected"
            )

    def _decoded(self, key: PhaseKey, request: bytes) -> bytes:
        try:
            return self._work(key, request)
        except CodecError as error:
            raise Violation(f"{key.phase.name} of round {key.round} does not decode: {error}") from error

    def _work(self, key: PhaseKey, request: bytes) -> bytes:
        match key.phase:
            case Phase.ROSTER:
                return self._setup.answer_roster(request)
            case Phase.SECRET:
                return self._setup.answer_secret(request)
            case Phase.PRESENCE:
                codec.decode_round_start(request, self._limits)
                return self._presence(key)
            case Phase.VALUES:
                return self._values(key, request)
            case Phase.RESULT:
                return self._result(key, request)

    # The rules of order, one check each

    def _check_order(self, key: PhaseKey) -> None:
        match key.phase:
            case Phase.ROSTER | Phase.SECRET:
                self._check_set_up_round(key)
                self._check_no_round_begun(key)
                self._check_set_up_attempt(key)
            case Phase.PRESENCE:
                self._check_agreed_round(key)
                self._check_fresh(key)
                self._check_one_result_each_round(key)
            case Phase.VALUES | Phase.RESULT:
                self._check_attempt_open(key)
                self._check_step_before(key)

    def _check_run(self, key: PhaseKey) -> None:
        if key.run != self._agreement.run:
            raise Violation(f"asked for run {key.run}, this site takes part in {self._agreement.run}")

    def _check_set_up_round(self, key: PhaseKey) -> None:
        if key.round != 0:
            raise Violation(f"{key.phase.name} belongs to round 0, not {key.round}")

    def _check_no_round_begun(self, key: PhaseKey) -> None:
        # A new roster means a new group secret; under it, the rounds already run could be run again.
        if self._journal.latest(Phase.PRESENCE) is not None:
            raise Violation(f"{key.phase.name} (attempt {key.attempt}) came after rounds had begun")

    def _check_set_up_attempt(self, key: PhaseKey) -> None:
        """A roster replaces only an earlier one, and a secret comes with the roster in force."""
        last = self._journal.latest(Phase.ROSTER)
        begun = last.attempt if last is not None else 0
        if key.attempt <= begun if key.phase is Phase.ROSTER else key.attempt != begun:
            raise Violation(f"{key.phase.name} of set-up attempt {key.attempt} came in attempt {begun}")

    def _check_agreed_round(self, key: PhaseKey) -> None:
        if not 1 <= key.round <= self._agreement.rounds:
            raise Violation(f"round {key.round} is not one of the agreed {self._agreement.rounds}")

    def _check_fresh(self, key: PhaseKey) -> None:
        last = self._journal.latest(Phase.PRESENCE)
        if last is not None and (key.round, key.attempt) <= (last.round, last.attempt):
            raise Violation(
                f"round {key.round}, attempt {key.attempt} is not after {last.round}, {last.attempt}"
            )

    def _check_one_result_each_round(self, key: PhaseKey) -> None:
        last = self._journal.latest(Phase.RESULT)
        if last is not None and key.round <= last.round:
            raise Violation(f"round {key.round} has had its result; another could be subtracted from it")

    def _check_attempt_open(self, key: PhaseKey) -> None:
        last = self._journal.latest(Phase.PRESENCE)
        if last is None or (last.round, last.attempt) != (key.round, key.attempt):
            raise Violation(
                f"{key.phase.name} of round {key.round}, attempt {key.attempt} is not the one begun"
            )

    def _check_step_before(self, key: PhaseKey) -> None:
        before = Phase.PRESENCE if key.phase is Phase.VALUES else Phase.VALUES
        if self._journal.request(PhaseKey(key.run, key.round, key.attempt, before)) is None:
            raise Violation(f"{key.phase.name} came before {before.name}")

    # The phases of a round

    def _presence(self, key: PhaseKey) -> bytes:
        self._seconds = {"train": 0.0, "protect": 0.0}
        with _Stopwatch(self._seconds, "train"):
            _, counts = self._trainee.trained(key.round)
        roster = self._setup.roster()
        statement = sign_presence(self._party.credentials, key, roster.hash, counts > 0)
        return codec.encode_presence(statement)

    def _values(self, key: PhaseKey, request: bytes) -> bytes:
        cohort = self._verified_cohort(key, request)
        with _Stopwatch(self._seconds, "protect"):
            payload = self._protection().protect(self._rows(key), self.site, cohort)
        return codec.encode_payload(payload)

    def _result(self, key: PhaseKey, request: bytes) -> bytes:
        cohort = self._agreed_cohort(key)
        payload = codec.decode_payload(request, self._limits)
        rows = self._rows(key)
        with _Stopwatch(self._seconds, "protect"):
            peers = self._peers(key, payload, rows, cohort)
        if peers is not None:
            targets = personalise(rows, peers, self._agreement.pfpl.alpha) * self._agreement.norm_bound
            self._trainee.take_targets(key.round, targets, cohort.holds[cohort.index(self.site)])
        self._journal.forget_contents(key.round)
        return codec.encode_acknowledgement(Acknowledgement())

    def _peers(self, key: PhaseKey, payload: Payload, rows: Rows, cohort: Cohort) -> Rows | None:
        """What peers combine to; None, which only this site's log shows, for a decryption that cannot be right."""
        try:
            return self._protection().unprotect(payload, rows, self.site, cohort)
        except ImplausibleError as error:
            _log.error(
                "the result of round %d is not used, the targets stay as they are: %s", key.round, error
            )
            return None
        except CryptoError as error:
            raise Violation(f"the result of round {key.round} is refused: {error}") from error

    def _agreed_cohort(self, key: PhaseKey) -> Cohort:
        """The cohort that this site protected its values for."""
        request = self._journal.request(PhaseKey(key.run, key.round, key.attempt, Phase.VALUES))
        return self._verified_cohort(key, request or b"")

    def _verified_cohort(self, key: PhaseKey, request: bytes) -> Cohort:
        active = codec.decode_active_list(request, self._limits)
        begun = PhaseKey(key.run, key.round, key.attempt, Phase.PRESENCE)
        try:
            verify_active_list(active, self._setup.roster(), begun)
        except CryptoError as error:
            raise Violation(f"the active list of round {key.round} is refused: {error}") from error
        self._check_enough_sites(len(active.statements))
        self._check_own_presence(begun, [codec.encode_presence(each) for each in active.statements])
        return cohort_of(active, self._agreement)

    def _check_enough_sites(self, sites: int) -> None:
        least = max(self._agreement.min_sites, self._party.min_sites)
        if sites < least:
            raise Violation(
                f"the coordinator asked for values among {sites} sites, at least {least} are agreed"
            )

    def _check_own_presence(self, begun: PhaseKey, statements: list[bytes]) -> None:
        if self._journal.stored_answer(begun) not in statements:
            raise Violation("the active list does not hold this site's own presence statement")

    def _rows(self, key: PhaseKey) -> Rows:
        """This round's prototypes in units of the norm bound: (K, d), norms at most 1."""
        rows, _ = self._trainee.trained(key.round)
        return np.asarray(rows / self._agreement.norm_bound)

    def _report(self, key: PhaseKey) -> None:
        cohort = self._agreed_cohort(key)
        withheld = self._trainee.held_classes() & ~cohort.holds[cohort.index(self.site)]
        names = tuple(self._agreement.classes[k] for k in np.flatnonzero(withheld))
        accuracy = self._trainee.evaluate()
        self._on_round(site_round(key.round, key.attempt, len(cohort.sites), names, accuracy, self._seconds))

    def _protection(self) -> SiteHalf:
        tau = self._agreement.agreement_threshold
        if self._agreement.needs_group_secret:
            weighting = Combination(self._agreement.pfpl.weighting.value)
            return CkksSite(self._setup.group_secret(), weighting, tau)
        return PlainSite()


def site_round(
    number: int,
    attempt: int,
    sites: int,
    withheld: tuple[str, ...],
    accuracy: Evaluation | None,
    seconds: Mapping[str, float],
) -> SiteRound:
    """One round's line of a site's log."""
    return SiteRound(
        round=number,
        attempt=attempt,
        sites=sites,
        withheld=withheld,
        accuracy_classifier=accuracy.accuracy_classifier if accuracy else None,
        accuracy_prototype=accuracy.accuracy_prototype if accuracy else None,
        seconds=dict(seconds),
    )


class _Stopwatch:
    """Adds the seconds spent inside to one entry of a table."""

    def __init__(self, table: dict[str, float], entry: str) -> None:
        self._table, self._entry = table, entry

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._table[self._entry] += time.perf_counter() - self._start
