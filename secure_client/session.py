"""Session of a site in a run, independent of transport: it answers one request at a time.

Order of a round: PRESENCE (train; state the held classes and the base of the training), the steps in which values are
protected and sent, RESULT (take the base of the next round). The agreement determines the steps, the values sent and
the effect of a result; see :mod:`secure_client.protocol.phase_order`, :mod:`secure_client.exchanges` and
:mod:`secure_client.protocol`. A site that misses a result continues from its last base. Values leave only as a half of
the agreed protection made them (:mod:`secure_client.protocol.sent_values`).

No answer depends on a decryption (Li and Micciancio, eprint 2020/1533): the acknowledgement of RESULT has the same
bytes for every outcome, and values are protected afresh in each attempt. The caller decides when an answer leaves
(:mod:`secure_client.protocol.answer_delays`). Neither a decryption nor an error of model or training ends the
session, and data do only if they can no longer be read: docs/explanation/session-ends.md lists the reasons that do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import numpy as np

from agreement import Agreement
from agreement.derived.cohorts import stated_classes
from agreement.derived.payload_shapes import limits_of, result_shape
from agreement.registry.round_plan import ExchangeKind
from agreement.storage.anchor_record import AnchorRecord
from protoseal_wire import codec
from protoseal_wire.class_presence import sign_presence
from protoseal_wire.codec import CodecError
from protoseal_wire.messages import (
    PROTOCOL_VERSION,
    Acknowledgement,
    JoinReply,
    JoinRequest,
    Phase,
    PhaseKey,
    Work,
)
from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
from secure_client.errors import Violation
from secure_client.exchanges.clusters import ClusterExchange
from secure_client.exchanges.exchange import ExchangeParts, ResultSummary, SiteExchange
from secure_client.exchanges.peer_sums import PeerSumExchange
from secure_client.exchanges.peers import PeerExchange
from secure_client.exchanges.sums import SumExchange
from secure_client.output.site_log import SiteRound, loss_figures, site_round
from secure_client.privacy.ledger_anchors import OwnAnchor, PeerAnchors
from secure_client.privacy.releases import ExactReleases
from secure_client.protocol.journal import Journal
from secure_client.protocol.participants import Participants
from secure_client.protocol.phase_order import PhaseOrder
from secure_client.protocol.secure_aggregation import SecureAggregation
from secure_client.protocol.sent_values import check_released, encode_answer, keep_values
from secure_client.protocol.setup import Party, Setup

_EXCHANGES: Mapping[ExchangeKind, Callable[[ExchangeParts], SiteExchange]] = {
    ExchangeKind.PEERS: PeerExchange,
    ExchangeKind.SUMS: SumExchange,
    ExchangeKind.PEER_SUMS: PeerSumExchange,
    ExchangeKind.CLUSTERS: ClusterExchange,
}


class Session:
    """A site's protocol state. Everything that must survive a crash is in the journal."""

    def __init__(
        self,
        agreement: Agreement,
        party: Party,
        learner: CheckpointedLearner,
        journal: Journal,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        on_round: Callable[[SiteRound], None] = lambda record: None,
        on_answer: Callable[[PhaseKey], None] = lambda key: None,
        tests_in: Callable[[int], bool] = lambda round_number: True,
        peers: AnchorRecord | None = None,
        exact: ExactReleases | None = None,
    ) -> None:
        """Set up the session. ``on_round`` is called with each round's figures, which stay at this site.

        ``tests_in`` selects the rounds in which the model is tested, if the site has test samples. ``peers`` is the
        record of peers' privacy ledgers over all runs. ``exact`` is the ledger of a site that keeps one, in a run
        without noise.

        ``on_round`` is called before the outcome is durable, and therefore again if the site was killed just
        afterwards. ``on_answer`` is called in the transaction that stores an answer.
        """
        self._agreement = agreement
        self._learner = learner
        self._journal = journal
        self._exact = exact
        self._kept_releases = None if learner.releases is None else learner.releases.kept
        self._spending = learner.releases or exact
        ledger = None if self._spending is None else self._spending.ledger
        self._anchor = OwnAnchor(agreement, party.name, ledger, journal, peers)
        # Before the set-up makes a key: peers sign over a roster with that key, so none of their statements is older
        # than the anchors that are copied here.
        anchors = PeerAnchors(agreement, party.name, journal, peers)
        self._setup = Setup(agreement, party, journal, now)
        self._party = self._setup.party
        self._order = PhaseOrder(agreement, journal)
        self._participants = Participants(agreement, self._party, self._setup, journal, anchors)
        masks = SecureAggregation(agreement, self._party, self._setup, journal)
        parts = ExchangeParts(
            agreement, self._party.name, learner, journal, self._setup, self._participants, masks
        )
        self._exchange: SiteExchange = _EXCHANGES[agreement.plan.exchange](parts)
        self._summary = ResultSummary(0, np.zeros(len(agreement.classes), dtype=np.bool_))
        self._limits = limits_of(agreement)
        self._on_round = on_round
        self._on_answer = on_answer
        self._tests_in = tests_in
        self._seconds = {"train": 0.0, "protect": 0.0}

    @property
    def site(self) -> str:
        """The site's name."""
        return self._party.name

    def join_request(self) -> JoinRequest:
        """Return the join request: the site's statement, the ledger's last entry, and the last attempt left."""
        return JoinRequest(
            PROTOCOL_VERSION,
            self._agreement.run,
            self._agreement.hash(),
            self._setup.statement,
            self._anchor.now,
            self._journal.left(),
        )

    def take_welcome(self, reply: JoinReply) -> None:
        """Raise unless the ledger has the entry that the coordinator recorded; call this before any other task.

        :class:`privacy.errors.RolledBackError` or :class:`Violation`, see :meth:`OwnAnchor.check_reported`.
        """
        self._anchor.check_reported(reply.anchor)

    def answer(self, key: PhaseKey, request: bytes) -> bytes:
        """Answer a phase once; the same request gets the same bytes again, also after a restart.

        Raises :class:`Violation`, without an answer, if the protocol does not allow the request now or its content does
        not verify.
        """
        # Before the journal is asked, which knows rounds and attempts of one run.
        self._order.check_run(key)
        stored = self._journal.answer(key, request)
        if stored is not None:
            return stored
        self._setup.check_not_over()
        self._order.check(key)
        # One transaction stores the answer and all effects of the request: after a crash, either all are stored or
        # none. It ends before the answer leaves. A site that sent first and then lost its memory of the answer would
        # give a second one over the same values, and the difference of the two could open them.
        with self._journal.transaction():
            answer = self._answer_new(key, request)
            if key.phase is Phase.RESULT:
                self._report_round(key)
            self._journal.record(key, request, answer)
            self._on_answer(key)
        return answer

    def end(self) -> None:
        """Leave the last attempt: erase the attempt's secrets, and the values sent in earlier rounds.

        A run that stopped, or that this site left, can be resumed with another attempt.
        """
        with self._journal.transaction():
            self._exchange.end()
        self._forget_earlier_rounds()

    def finish(self) -> None:
        """Finish the run: erase every secret of the run at this site, and the values sent in earlier rounds."""
        with self._journal.transaction():
            self._setup.finish()
        self._forget_earlier_rounds()

    def check_size(self, work: Work) -> None:
        """Raise :class:`Violation` for a request larger than its phase can need, before it is downloaded."""
        limit = self._limits.request_bytes(work.key.phase)
        if work.size > limit:
            raise Violation(
                f"{work.key.phase.name}: the coordinator announced a request of {work.size} bytes, more than "
                f"the limit of {limit}"
            )

    def _answer_new(self, key: PhaseKey, request: bytes) -> bytes:
        try:
            match key.phase:
                case Phase.ROSTER:
                    return self._setup.answer_roster(key.attempt, request)
                case Phase.SECRET:
                    return self._setup.answer_secret(key.attempt, request)
                case Phase.PRESENCE:
                    return self._answer_presence(key, request)
                case Phase.RESULT:
                    return self._answer_result(key, request)
                case _:
                    return self._answer_step(key, request)
        except CodecError as error:
            raise Violation(f"{key.phase.name} of round {key.round} does not decode: {error}") from error

    def _answer_step(self, key: PhaseKey, request: bytes) -> bytes:
        self._journal.forget_contents(key.round)
        trained = self._learner.values.last
        released = None if trained is None else trained.released
        check_released(self._agreement, released)
        with self._timing("protect"):
            answer = self._exchange.step(key, request)
            encoded = encode_answer(self._agreement, key, answer)
            # A term with a share of noise is exact but for that share: none is kept.
            if self._kept_releases is not None and not (key.round and self._agreement.distributed_noise):
                keep_values(
                    self._kept_releases,
                    self._agreement,
                    key,
                    released,
                    self._participants.requested_rows,
                    answer,
                    encoded,
                )
            return encoded

    def _answer_presence(self, key: PhaseKey, request: bytes) -> bytes:
        start = codec.decode_round_start(request, self._limits, result_shape(self._agreement))
        # Every attempt brings vectors of the model's length, so that repeated attempts would fill the disk. The last
        # round's stay until this round's take their place in the file, so that the place is written once, and a sum to
        # catch up with is checked against their list.
        self._journal.forget_contents(key.round - 1)
        self._journal.forget_attempts(key)
        self._exchange.start(key, start)
        # Before training, which may be paid for: a request that is refused after a payment could be repeated until the
        # privacy budget is spent.
        roster = self._setup.roster()
        self._seconds = {"train": 0.0, "protect": 0.0}
        with self._timing("train"):
            self._learner.train_round(key.round)
        trained = self._learner.values.require_last()
        check_released(self._agreement, trained.released)
        if self._exact is not None:
            self._exact.declare()  # the classes are the first exact values to leave the site
        stated = self._exchange.presence(key)
        holds = stated_classes(self._agreement, key.round, self._learner.values.held_classes())
        if self._kept_releases is not None:
            self._kept_releases.keep_sent(key, trained.released, holds)
        # Last, so that the anchor covers the payments that training and a share of noise made.
        anchor = self._anchor.show(key.round)
        statement = sign_presence(
            self._party.credentials,
            key,
            roster.hash,
            holds,
            base=stated.base,
            keys=stated.keys,
            anchor=anchor,
        )
        return codec.encode_presence(statement)

    def _answer_result(self, key: PhaseKey, request: bytes) -> bytes:
        with self._timing("protect"):
            self._summary = self._exchange.result(key, request)
        self._journal.forget_contents(key.round)
        return codec.encode_acknowledgement(Acknowledgement())

    def _report_round(self, key: PhaseKey) -> None:
        learner, trained = self._learner, self._learner.values.require_last()
        withheld = trained.held_classes() & ~self._summary.classes
        names = tuple(self._agreement.classes[k] for k in np.flatnonzero(withheld))
        tested = learner.predictor.evaluate() if self._tests_in(key.round) else None
        figures: dict[str, Any] = {"trained": trained.losses is not None, "unreadable": learner.unreadable}
        if self._agreement.privacy is None:  # with noise, exact losses stay in the journal
            figures |= loss_figures(trained.losses, learner.values.label_entropy)
        if self._spending is not None:
            spent = self._spending.spent_budget()
            figures |= {"epsilon": spent.epsilon, "delta": spent.delta, "guaranteed": spent.guaranteed}
        record = site_round(
            key.round,
            key.attempt,
            self._summary.sites,
            names,
            tested,
            self._seconds,
            inference=self._agreement.inference,
            shortened=trained.shortened_share,
        )
        self._on_round(record.model_copy(update=figures))

    def _forget_earlier_rounds(self) -> None:
        begun = self._journal.latest(Phase.PRESENCE)
        # Apart from the secrets: this writes as much as it drops, which a full disk may refuse.
        with self._journal.transaction(truncates=True):
            self._journal.forget_contents(0 if begun is None else begun.round)

    @contextmanager
    def _timing(self, part: str) -> Iterator[None]:
        """Add the seconds spent inside to a part of the round's time, also after an error."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[part] += time.perf_counter() - start
