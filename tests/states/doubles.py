"""Weakened doubles: for each promise the product with one line changed, which a walk has to find.

Some change more than one line, since what one line forgets another refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import secure_client.protocol.journal
import secure_client.protocol.secure_aggregation as site_masks
import secure_server.coordinator
import secure_server.rounds.machine
from crypto.pairwise import shares as pairwise_release
from crypto.pairwise.shares import ReleasedShare
from privacy.ledger.budget_account import Account
from protoseal_files import append_only_file
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
from secure_client.checkpoints.received_results import ReceivedResults
from secure_client.errors import Violation
from secure_client.privacy.releases import ExactReleases, Releases
from secure_client.protocol.journal import Journal
from secure_client.protocol.phase_order import PhaseOrder
from secure_client.protocol.secure_aggregation import SecureAggregation
from secure_server.aggregator import Aggregator
from secure_server.rounds import task_assignment, transitions
from secure_server.rounds.machine import Planned
from secure_server.rounds.state import RoundStage, State
from secure_server.store import Store
from tests.states.interleaving import no_lock
from tests.states.invariants import Promise


@dataclass(frozen=True)
class Double:
    """Weakening of the product, the promises that it breaks, and the federation in which it shows soon."""

    weakened: Callable[[], AbstractContextManager[object]]
    breaks: tuple[Promise, ...]
    federation: str
    first: int = 0
    """The number of the first plan of seed 1 that shows it; those before it only take time."""


@contextmanager
def _forgets_its_answers() -> Iterator[None]:
    """The journal does not know what was answered, and takes another answer."""
    once = secure_client.protocol.journal._RECORD_ONCE.replace("INSERT", "INSERT OR REPLACE")
    with ExitStack() as patches:
        patches.enter_context(patch.object(Journal, "answer", lambda self, key, request: None))
        patches.enter_context(patch.object(secure_client.protocol.journal, "_RECORD_ONCE", once))
        patches.enter_context(patch.object(PhaseOrder, "check", lambda self, key: None))
        yield


@contextmanager
def _seals_twice() -> Iterator[None]:
    """A site knows neither what it answered nor what it trained, and seals another vector under the same masks."""
    with _forgets_its_answers(), patch.object(CheckpointedLearner, "_save_model", lambda self: None):
        yield


def _releases_another_kind() -> AbstractContextManager[object]:
    """A site gives of the last survivor the share that is for drop-outs."""
    release = pairwise_release.release

    def wrong(binding: Any, site: str, sharers: Any, survivors: Any, held: Any) -> tuple[ReleasedShare, ...]:
        told = survivors if site == survivors[-1] else survivors[:-1]
        return release(binding, site, sharers, told, held)

    return patch.object(site_masks, "release", wrong)


def _draws_before_it_pays() -> AbstractContextManager[object]:
    """A site's share of the noise is drawn first, and paid for then."""
    draw_share = Releases.draw_share

    def wrong(self: Releases, round_number: int) -> Any:
        share = self._query.draw(len(self._agreement.classes), self._agreement.dim)
        draw_share(self, round_number)
        return share

    return patch.object(Releases, "draw_share", wrong)


def _pays_nothing() -> AbstractContextManager[object]:
    """A site draws its share of the noise and pays for none."""

    def wrong(self: Releases, round_number: int) -> Any:
        return self._query.draw(len(self._agreement.classes), self._agreement.dim)

    return patch.object(Releases, "draw_share", wrong)


def _pays_twice() -> AbstractContextManager[object]:
    """A site pays for its share of the noise two times."""
    draw_share = Releases.draw_share

    def wrong(self: Releases, round_number: int) -> Any:
        draw_share(self, round_number)
        return draw_share(self, round_number)

    return patch.object(Releases, "draw_share", wrong)


@contextmanager
def _takes_any_attempt() -> Iterator[None]:
    """The coordinator compares phases, and not rounds and attempts."""
    check = task_assignment.check_expected

    def wrong(rules: Any, state: State, site: str, key: Any) -> None:
        check(
            rules, state, site, replace(key, round=state.round, attempt=state.attempt) if key.round else key
        )

    with (
        patch.object(secure_server.coordinator, "check_expected", wrong),
        patch.object(secure_server.rounds.machine, "check_expected", wrong),
    ):
        yield


def _forgets_survivors() -> AbstractContextManager[object]:
    """The step that was over last is open again after a restart of the coordinator."""
    load = Store.load

    def wrong(self: Store) -> State | None:
        state = load(self)
        if state is None or not state.survivors or state.over:
            return state
        return replace(state, survivors=state.survivors[:-1])

    return patch.object(Store, "load", wrong)


def _keeps_no_result() -> AbstractContextManager[object]:
    """A site's base is in memory alone."""
    take = ReceivedResults._take

    def wrong(self: ReceivedResults, round_number: int, taken: Any) -> None:
        with patch.object(self._journal, "put"):
            take(self, round_number, taken)

    return patch.object(ReceivedResults, "_take", wrong)


def _keeps_no_targets() -> AbstractContextManager[object]:
    """A site's targets of a combination of peers are in memory alone."""
    take = ReceivedResults.take_targets

    def wrong(self: ReceivedResults, *taken: Any) -> None:
        with patch.object(self._journal, "put"):
            take(self, *taken)

    return patch.object(ReceivedResults, "take_targets", wrong)


def _forgets_uploads() -> AbstractContextManager[object]:
    """The coordinator acknowledges the receipt of a result and stores its state without it."""
    save = Store.save

    def wrong(self: Store, state: State, **caused: Any) -> None:
        upload = caused.get("upload")
        lost = upload is not None and upload[0].phase is Phase.RESULT
        save(self, state, **({**caused, "upload": None} if lost else caused))

    return patch.object(Store, "save", wrong)


def _leaves_masks_in() -> AbstractContextManager[object]:
    """The coordinator does not take away the masks that survivors have with drop-outs."""
    return patch("crypto.pairwise.unmask.pair_keys", lambda *told: {})


def _needs_one_fewer() -> AbstractContextManager[object]:
    """The coordinator asks two of four sites on, where three are the fewest."""
    plan = Aggregator.plan

    def wrong(self: Aggregator, attempt: Any) -> Planned:
        return Planned(tuple(replace(each, least=each.least - 1) for each in plan(self, attempt).quorums))

    return patch.object(Aggregator, "plan", wrong)


@contextmanager
def _opens_too_few() -> Iterator[None]:
    """Both halves go on with two sites of four: nobody counts survivors, or who holds a class."""
    with ExitStack() as patches:
        patches.enter_context(_needs_one_fewer())
        for check in ("_check_enough", "_check_class_holders"):
            patches.enter_context(patch.object(SecureAggregation, check, lambda *told: None))
        patches.enter_context(patch("crypto.pairwise.attempt.threshold", lambda members: 2))
        yield


def _refuses_a_second_attempt() -> AbstractContextManager[object]:
    """A site takes no part in another attempt of a round."""
    check = PhaseOrder._check_presence

    def wrong(self: PhaseOrder, key: PhaseKey) -> None:
        check(self, key)
        last = self._journal.latest(Phase.PRESENCE)
        if last is not None and key.round == last.round:
            raise Violation(f"round {key.round} was begun before")

    return patch.object(PhaseOrder, "_check_presence", wrong)


def _forgets_late_sites() -> AbstractContextManager[object]:
    """A site that lacks the last result is told that the run has finished."""
    return patch.object(task_assignment, "late_sites", lambda state: frozenset())


def _waits_for_all() -> AbstractContextManager[object]:
    """The coordinator waits for every site's presence, past the deadline too."""
    settled = transitions._settle_presence

    def wrong(rules: Any, state: State, now: float, *, late: bool) -> State:
        return settled(rules, state, now, late=False)

    return patch.dict(transitions._SETTLE, {RoundStage.PRESENCE: wrong})


def _repeats_signed_rounds() -> AbstractContextManager[object]:
    """The coordinator attempts a round of a sparse graph again after survivors were signed."""
    return patch.object(transitions, "_survivors_are_final", lambda rules, state: False)


def _trains_unpaid() -> AbstractContextManager[object]:
    """Training by DP-SGD is not paid for."""
    return patch.object(Releases, "pay_for_training", lambda self, number: None)


def _hides_exact_values() -> AbstractContextManager[object]:
    """The ledger is not told that exact values leave."""
    return patch.object(ExactReleases, "declare", lambda self: None)


def _overlooks_lost_lines() -> AbstractContextManager[object]:
    """A site does not hold its ledger to what it has shown of it."""
    return patch.object(Account, "check_anchor", lambda self, anchor: None)


def _locks_nothing() -> AbstractContextManager[object]:
    """Runs write to their ledger whoever else does."""
    return patch.object(append_only_file, "_lock", no_lock)


DOUBLES: Mapping[str, Double] = {
    "forgets its answers": Double(_forgets_its_answers, (Promise.ONE_ANSWER,), "fedavg", 22),
    "seals twice": Double(_seals_twice, (Promise.ONE_VECTOR,), "fedavg", 433),
    "releases another kind": Double(_releases_another_kind, (Promise.ONE_KIND,), "fedavg"),
    "draws before it pays": Double(_draws_before_it_pays, (Promise.PAID_FIRST,), "shared-noise"),
    "pays nothing": Double(_pays_nothing, (Promise.PAID_FIRST,), "shared-noise"),
    "pays twice": Double(_pays_twice, (Promise.PAID_ONCE,), "shared-noise"),
    "takes any attempt": Double(_takes_any_attempt, (Promise.CURRENT,), "fedavg", 145),
    "forgets survivors": Double(_forgets_survivors, (Promise.NO_REFUSAL, Promise.ONE_SUM), "fedavg"),
    "keeps no result": Double(_keeps_no_result, (Promise.KEPT,), "plain"),
    "keeps no targets": Double(_keeps_no_targets, (Promise.KEPT,), "rotated", 5),
    "forgets uploads": Double(_forgets_uploads, (Promise.KEPT,), "plain"),
    "leaves masks in": Double(_leaves_masks_in, (Promise.RIGHT_SUM,), "fedavg", 33),
    "asks too few on": Double(_needs_one_fewer, (Promise.NO_REFUSAL,), "fedavg"),
    "refuses a second attempt": Double(_refuses_a_second_attempt, (Promise.RULES,), "fedavg"),
    "opens too few": Double(_opens_too_few, (Promise.ENOUGH,), "fedavg", 89),
    "forgets late sites": Double(_forgets_late_sites, (Promise.SAME_RESULT,), "plain", 11),
    "waits for all": Double(_waits_for_all, (Promise.ENDS,), "plain", 41),
    "repeats signed rounds": Double(_repeats_signed_rounds, (Promise.NO_REFUSAL,), "sparse", 19),
    "trains unpaid": Double(_trains_unpaid, (Promise.PAID_FIRST,), "dp-sgd"),
    "hides exact values": Double(_hides_exact_values, (Promise.PAID_FIRST,), "exact"),
    "overlooks lost lines": Double(_overlooks_lost_lines, (Promise.NOTICED,), "shared-noise", 875),
    "locks nothing": Double(_locks_nothing, (Promise.NO_REFUSAL, Promise.KEPT), "two-runs"),
}
"""Doubles by the fault of each."""
