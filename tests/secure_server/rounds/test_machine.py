"""Each rule of a round: who is asked what, when a phase ends and what follows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protoseal_wire.messages import Phase, PhaseKey
from secure_server.errors import NotJoined, WrongPhase
from secure_server.rounds import machine
from secure_server.rounds.machine import (
    Answered,
    Computed,
    ComputeFailed,
    Joined,
    Left,
    Polled,
    Resumed,
    Tick,
)
from secure_server.rounds.state import RoundStage, State
from tests.secure_server.rounds.round_player import RULES, SITES, START, in_round


def test_round_asks_presence_then_values_then_gives_results() -> None:
    player = in_round()
    assert [player.task(site) for site in SITES] == [PhaseKey("r1", 1, 1, Phase.PRESENCE)] * 4
    player.answer(*SITES)
    assert player.state.participants == SITES
    assert [player.task(site) for site in SITES] == [PhaseKey("r1", 1, 1, Phase.VALUES)] * 4
    player.answer(*SITES)
    assert player.stage is RoundStage.COMPUTING
    assert [player.task(site) for site in SITES] == [None] * 4
    player.do(Computed())
    assert [player.task(site) for site in SITES] == [PhaseKey("r1", 1, 1, Phase.RESULT)] * 4
    player.answer(*SITES)
    assert [player.task(site) for site in SITES] == [PhaseKey("r1", 2, 1, Phase.PRESENCE)] * 4


def test_run_finishes_after_last_round() -> None:
    player = in_round()
    for _ in range(RULES.rounds):
        player.compute()
        player.answer(*SITES)
    assert player.stage is RoundStage.FINISHED
    assert (player.state.round, player.state.reason) == (2, "")
    player.do(Polled("ada"), Left("bea"), Joined("bea"), Resumed())
    player.wait(1e9)
    assert player.stage is RoundStage.FINISHED
    assert player.task("ada") is None


def test_deadline_is_full_time_of_its_phase() -> None:
    player = in_round()
    assert player.state.deadline == START + 50
    player.now += 7
    player.answer(*SITES)
    assert player.state.deadline == START + 7 + 20


class TestPresence:
    def test_presence_deadline_continues_without_missing(self) -> None:
        player = in_round()
        player.answer("ada", "bea", "dot")
        player.wait(49.9)
        assert player.stage is RoundStage.PRESENCE
        player.wait(0.2)
        assert (player.stage, player.state.participants) == (RoundStage.VALUES, ("ada", "bea", "dot"))
        assert player.state.absent == {"cid"}
        assert player.task("cid") is None

    def test_presence_absent_site_is_not_waited_for(self) -> None:
        player = in_round()
        player.answer("ada", "bea", "dot")
        player.to_deadline()
        player.answer("ada", "bea", "dot")
        player.do(Computed())
        player.answer("ada", "bea", "dot")
        player.answer("ada", "bea", "dot")
        assert (player.state.round, player.stage) == (2, RoundStage.VALUES)

    def test_presence_absent_site_may_return(self) -> None:
        player = in_round()
        player.state = replace(player.state, absent=frozenset({"cid"}))
        player.do(Polled("cid"))
        assert player.state.absent == frozenset()
        player.answer("ada", "bea", "dot")
        assert player.stage is RoundStage.PRESENCE, "it is back, so it is waited for"
        player.answer("cid")
        assert player.state.participants == SITES

    def test_presence_too_few_repeats_with_new_attempt(self) -> None:
        player = in_round()
        player.answer("ada", "bea")
        player.to_deadline()
        assert (player.stage, player.state.attempt, player.state.failures) == (RoundStage.PRESENCE, 2, 1)
        assert player.state.absent == {"cid", "dot"}
        assert player.task("ada") == PhaseKey("r1", 1, 2, Phase.PRESENCE)
        assert player.state.reason == "round 1, attempt 1: no presence from cid, dot"

    def test_presence_too_few_waits_until_deadline(self) -> None:
        player = in_round()
        player.do(Left("cid"), Left("dot"))
        player.answer("ada", "bea")
        player.wait(40)
        assert (player.stage, player.state.attempt) == (RoundStage.PRESENCE, 1)
        player.join("dot")
        player.answer("dot")
        assert (player.stage, player.state.participants) == (RoundStage.VALUES, ("ada", "bea", "dot"))

    def test_presence_answered_and_left_takes_no_part(self) -> None:
        player = in_round()
        player.answer("ada", "bea", "cid")
        player.do(Left("cid"))
        player.answer("dot")
        assert player.state.participants == ("ada", "bea", "dot")

    def test_presence_answered_left_and_returned_takes_part(self) -> None:
        player = in_round()
        player.answer("ada", "bea", "cid")
        player.do(Left("cid"), Joined("cid"))
        player.answer("dot")
        assert player.state.participants == SITES


class TestValues:
    def test_values_missing_repeats_round_with_fresh_statements(self) -> None:
        player = in_round()
        player.answer(*SITES)
        player.answer("ada", "bea", "cid")
        player.to_deadline()
        assert (player.stage, player.state.attempt, player.state.participants) == (RoundStage.PRESENCE, 2, ())
        assert player.state.absent == {"dot"}
        player.answer("ada", "bea", "cid")
        assert (player.stage, player.state.participants) == (RoundStage.VALUES, ("ada", "bea", "cid"))

    def test_values_participant_left_is_missing_at_once(self) -> None:
        player = in_round()
        player.answer(*SITES)
        player.do(Left("dot"))
        assert (player.stage, player.state.attempt) == (RoundStage.PRESENCE, 2)
        assert player.state.absent == {"dot"}, "the others were given no time, so they are not absent"

    def test_values_participant_may_leave_after_answering(self) -> None:
        player = in_round()
        player.answer(*SITES)
        player.answer("dot")
        player.do(Left("dot"))
        player.answer("ada", "bea", "cid")
        assert player.stage is RoundStage.COMPUTING

    def test_values_asked_of_participants_only(self) -> None:
        player = in_round()
        player.answer("ada", "bea", "cid")
        player.to_deadline()
        player.do(Polled("dot"))
        assert player.task("dot") is None
        with pytest.raises(WrongPhase, match=r"dot"):
            player.do(Answered("dot", player.state.key(Phase.VALUES)))


class TestResult:
    def test_result_deadline_ends_round_without_missing(self) -> None:
        player = in_round()
        player.compute()
        player.answer("ada", "bea", "cid")
        player.to_deadline()
        assert (player.state.round, player.state.attempt, player.stage) == (2, 1, RoundStage.PRESENCE)
        assert player.state.absent == {"dot"}

    def test_result_given_even_if_all_have_left(self) -> None:
        """Results are stored under the key of the state that :class:`Computed` leads to."""
        player = in_round()
        player.answer(*SITES)
        player.answer(*SITES)
        player.do(*(Left(site) for site in SITES), Computed())
        assert (player.stage, player.state.round) == (RoundStage.RESULT, 1)
        player.do(Tick())
        assert (player.stage, player.state.round) == (RoundStage.PRESENCE, 2)

    def test_result_resets_failures(self) -> None:
        player = in_round()
        player.to_deadline()
        player.do(*(Polled(site) for site in SITES))
        player.compute()
        assert player.state.failures == 1
        player.answer(*SITES)
        assert (player.state.failures, player.state.attempt, player.state.reason) == (0, 1, "")


class TestComputing:
    def test_compute_failure_repeats_round(self) -> None:
        player = in_round()
        player.answer(*SITES)
        player.answer(*SITES)
        player.do(ComputeFailed())
        assert (player.stage, player.state.attempt) == (RoundStage.PRESENCE, 2)
        assert player.state.reason == (
            "round 1, attempt 1: the aggregation failed; see the coordinator's log"
        )
        assert player.state.absent == frozenset()

    def test_compute_late_fails_attempt_without_blame(self) -> None:
        player = in_round()
        player.answer(*SITES)
        player.answer(*SITES)
        player.wait(10 * 20 - 0.1)
        assert player.stage is RoundStage.COMPUTING
        player.wait(0.2)
        assert (player.stage, player.state.attempt) == (RoundStage.PRESENCE, 2)
        assert player.state.reason == "round 1, attempt 1: the aggregation took too long"
        assert (player.state.absent, player.state.benched) == (frozenset(), frozenset())
        with pytest.raises(WrongPhase):
            player.do(Computed())

    def test_compute_second_result_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        player = in_round()
        player.compute()
        with pytest.raises(WrongPhase):
            player.do(Computed())
        with pytest.raises(WrongPhase):
            player.do(ComputeFailed())
        monkeypatch.setattr(machine, "check_computing", lambda *_: None)
        player.do(ComputeFailed())
        player.compute()
        assert player.state.result_key == PhaseKey("r1", 1, 2, Phase.RESULT), (
            "a second result, without the check"
        )


class TestStopping:
    def stopped(self) -> State:
        player = in_round()
        for _ in range(RULES.max_attempts):
            assert player.stage is RoundStage.PRESENCE
            player.answer("ada")
            player.to_deadline()
        return player.state

    def test_stop_after_max_attempts_keeps_state(self) -> None:
        state = self.stopped()
        assert state.stage is RoundStage.STOPPED
        assert (state.round, state.attempt, state.failures) == (1, 3, 3)
        assert state.reason == "round 1, attempt 3: no presence from bea, cid, dot"
        assert state.verified == set(SITES)

    def test_stopped_run_changes_only_when_resumed(self) -> None:
        player = in_round()
        player.state = self.stopped()
        player.do(Polled("ada"), Tick())
        player.wait(1e9)
        assert player.stage is RoundStage.STOPPED
        assert player.task("ada") is None

    def test_resume_stopped_run_repeats_round_with_everyone(self) -> None:
        player = in_round()
        player.state = self.stopped()
        player.now += 1e6
        player.do(Resumed())
        assert (player.stage, player.state.round, player.state.attempt) == (RoundStage.PRESENCE, 1, 4)
        assert (player.state.failures, player.state.absent) == (0, frozenset())
        assert player.state.deadline == player.now + 50
        player.answer("ada", "bea", "cid")
        assert player.stage is RoundStage.PRESENCE
        player.answer("dot")
        assert player.state.participants == SITES


@pytest.mark.parametrize("answers", [0, 1, 2, 3])
def test_resume_running_phase_gets_full_time_again(answers: int) -> None:
    player = in_round()
    player.answer(*SITES[:answers])
    before = player.state
    player.now += 45
    player.do(Resumed())
    assert player.state == replace(before, deadline=player.now + 50)


class TestWrongAnswers:
    @pytest.mark.parametrize(
        "key",
        [
            PhaseKey("r1", 2, 1, Phase.PRESENCE),
            PhaseKey("r1", 1, 2, Phase.PRESENCE),
            PhaseKey("r1", 1, 1, Phase.VALUES),
            PhaseKey("r1", 1, 1, Phase.RESULT),
            PhaseKey("r1", 0, 2, Phase.ROSTER),
            PhaseKey("other", 1, 1, Phase.PRESENCE),
            PhaseKey("other", 0, 1, Phase.ROSTER),
        ],
    )
    def test_answer_not_asked_for_is_refused(self, key: PhaseKey) -> None:
        player = in_round()
        current = "which is PRESENCE of round 1, attempt 1, run r1"
        with pytest.raises(WrongPhase, match=current):
            player.do(Answered("ada", key))

    def test_answer_of_other_attempt_without_the_check_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        player = in_round()
        monkeypatch.setattr(machine, "check_expected", lambda *_: None)
        player.do(Answered("ada", PhaseKey("r1", 1, 2, Phase.PRESENCE)))
        assert player.state.answered == {"ada"}

    def test_answer_of_earlier_attempt_is_refused(self) -> None:
        player = in_round()
        old = player.task("ada")
        assert old is not None
        player.to_deadline()
        with pytest.raises(WrongPhase):
            player.do(Answered("ada", old))

    def test_answer_again_changes_nothing(self) -> None:
        player = in_round()
        keys = [player.state.roster_key, player.state.secret_key, player.state.presence_key]
        player.answer(*SITES)
        keys.append(player.state.key(Phase.VALUES))
        player.answer(*SITES)
        for key in keys:
            before = player.state
            player.do(Answered("bea", key))
            assert player.state == before

    def test_answer_of_site_that_has_not_joined_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        player = in_round()
        player.do(Left("ada"))
        for event in (Polled("ada"), Answered("ada", player.state.presence_key)):
            with pytest.raises(NotJoined, match=r"join"):
                player.do(event)
        monkeypatch.setattr(machine, "check_joined", lambda *_: None)
        player.do(Polled("ada"))
        assert "ada" not in player.state.absent, (
            "a straggling poll would have brought it back, without the check"
        )


def test_answer_after_deadline_counts_until_an_event_ends_the_phase() -> None:
    player = in_round()
    player.answer("ada", "bea", "cid")
    player.now += 60
    player.answer("dot")
    assert player.state.participants == SITES


def test_clock_set_back_does_not_prolong_phase() -> None:
    player = in_round()
    player.now -= 1e6
    player.wait(0)
    assert player.state.deadline == player.now + 50
    player.answer("ada", "bea", "cid")
    player.wait(50)
    assert player.stage is RoundStage.VALUES


def test_clock_set_forward_costs_one_attempt_at_most() -> None:
    player = in_round()
    player.wait(1e6)
    assert (player.stage, player.state.failures) == (RoundStage.PRESENCE, 1)
    player.wait(1)
    assert player.state.failures == 1
