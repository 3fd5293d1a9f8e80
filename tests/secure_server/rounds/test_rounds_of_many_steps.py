"""Rounds of many steps, and the clustering before them: quorums, drop-outs, groups, abandoned rounds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agreement import MaskingSection
from agreement.registry.round_plan import MASKED_SUM as STEPS
from protoseal_wire.messages import Phase, PhaseKey
from secure_server.errors import WrongPhase
from secure_server.rounds import machine
from secure_server.rounds.machine import (
    Answered,
    Computed,
    ComputeFailed,
    Event,
    Joined,
    Left,
    Planned,
    Polled,
    Resumed,
    Tick,
)
from secure_server.rounds.rules import Rules
from secure_server.rounds.state import Groups, Quorum, RoundStage, State
from tests.secure_server.rounds.round_player import (
    ALL,
    GROUPED,
    LEFT,
    RIGHT,
    THREE_OF_EACH,
    GroupPlayer,
    Player,
    survivors_of,
    without,
)


def masked_rules(masking: MaskingSection) -> Rules:
    """Return rules under which a group has three members, or as many more as resist colluders."""
    return replace(
        GROUPED,
        masking=masking,
        min_group_size=lambda members: max(3, masking.fewest_resisting(members)),
    )


def test_clustering_is_round_0_without_result() -> None:
    player = Player(GROUPED)
    player.set_up(*ALL)
    assert player.task("ada") == PhaseKey("r1", 0, 1, Phase.PRESENCE)
    player.answer(*ALL)
    assert player.task("ada") == PhaseKey("r1", 0, 1, Phase.VALUES)
    player.answer(*ALL)
    assert player.stage is RoundStage.COMPUTING
    player.do(Computed((LEFT, RIGHT)))
    assert (player.stage, player.state.round, player.state.attempt) == (RoundStage.PRESENCE, 1, 1)
    assert player.state.groups == (LEFT, RIGHT)


def test_round_of_many_steps_asks_them_in_order() -> None:
    player = GroupPlayer()
    player.answer(*ALL)
    assert (player.stage, [player.task(site) for site in ALL]) == (RoundStage.PLANNING, [None] * 8)
    player.do(Planned(THREE_OF_EACH))
    for phase in STEPS:
        assert [player.task(site) for site in ALL] == [PhaseKey("r1", 1, 1, phase)] * 8
        player.answer(*ALL)
    assert player.stage is RoundStage.COMPUTING
    assert [survivors_of(player.state, phase) for phase in STEPS] == [ALL] * 4
    player.do(Computed())
    player.answer(*ALL)
    assert (player.stage, player.state.round) == (RoundStage.PRESENCE, 2)
    assert (player.state.participants, player.state.survivors, player.state.quorums) == ((), (), ())


class TestClustering:
    def at_its_end(self) -> Player:
        player = Player(GROUPED)
        player.set_up(*ALL)
        player.answer(*ALL)
        player.answer(*ALL)
        return player

    def test_clustering_resume_repeats_clustering_not_set_up(self) -> None:
        player = self.at_its_end()
        for _ in range(GROUPED.max_attempts):
            while player.stage is not RoundStage.COMPUTING:
                player.answer(*ALL)
            player.do(ComputeFailed())
        assert player.stage is RoundStage.STOPPED
        player.do(Resumed())
        assert player.task("ada") == PhaseKey("r1", 0, 4, Phase.PRESENCE)

    def test_clustering_success_forgets_benched_sites(self) -> None:
        player = Player(GROUPED)
        player.set_up(*ALL)
        player.answer(*ALL)
        player.do(Left("dot"))
        assert player.state.benched == {"dot"}
        player.answer(*without("dot"))
        player.answer(*without("dot"))
        player.do(Computed((LEFT, RIGHT)))
        assert player.state.benched == frozenset()

    def test_clustering_must_set_groups_and_other_rounds_must_not(self) -> None:
        with pytest.raises(ValueError, match="groups"):
            self.at_its_end().do(Computed())
        player = GroupPlayer()
        player.begin()
        player.go_to(RoundStage.COMPUTING)
        with pytest.raises(ValueError, match="round 1"):
            player.do(Computed((ALL,)))

    @pytest.mark.parametrize(
        "groups",
        [(LEFT,), (LEFT, LEFT, RIGHT), (RIGHT, LEFT), (tuple(reversed(LEFT)), RIGHT), ((), LEFT, RIGHT)],
    )
    def test_clustering_groups_must_be_sorted_partition(self, groups: Groups) -> None:
        with pytest.raises(ValueError, match=r"partition|sorted"):
            self.at_its_end().do(Computed(groups))


class TestGroups:
    def test_groups_too_small_group_sits_out(self) -> None:
        player = GroupPlayer()
        player.answer("ada", "bea", *RIGHT)
        player.to_deadline()
        assert (player.stage, player.state.participants) == (RoundStage.PLANNING, RIGHT)
        player.do(Planned())
        assert [player.phase(site) for site in ("ada", "eli")] == [None, Phase.SHARES]

    def test_groups_none_large_enough_waits(self) -> None:
        """Four are there, as many as a round needs and more, but no three of one group."""
        player = GroupPlayer()
        player.do(*(Left(site) for site in ("cid", "dot", "gus", "hal")))
        player.answer("ada", "bea", "eli", "fay")
        player.wait(40)
        assert (player.stage, player.state.attempt) == (RoundStage.PRESENCE, 1)
        player.join("cid")
        player.answer("cid")
        assert (player.stage, player.state.participants) == (RoundStage.PLANNING, ("ada", "bea", "cid"))

    def test_groups_too_small_at_deadline_fail_attempt(self) -> None:
        player = GroupPlayer()
        player.answer("ada", "bea", "eli", "fay")
        player.to_deadline()
        assert (player.stage, player.state.attempt, player.state.failures) == (RoundStage.PRESENCE, 2, 1)
        assert player.state.reason == "round 1, attempt 1: no presence from cid, dot, gus, hal"

    @pytest.mark.parametrize(("colluding", "goes_on"), [(0.125, True), (0.25, False)])
    def test_groups_large_run_size_resists_colluders(self, colluding: float, goes_on: bool) -> None:
        """Two of eight take five, so that not one site is asked for shares; one of eight three."""
        masking = MaskingSection(complete_up_to=7, max_colluding=colluding)
        player = GroupPlayer(masked_rules(masking), groups=(ALL,))
        player.answer(*LEFT)
        player.to_deadline()
        if goes_on:
            assert (player.stage, player.state.participants) == (RoundStage.PLANNING, LEFT)
            return
        assert (player.stage, player.state.attempt, player.state.failures) == (RoundStage.PRESENCE, 2, 1)
        assert not player.state.participants
        player.answer(*LEFT, RIGHT[0])
        assert (player.stage, player.state.participants) == (RoundStage.PLANNING, (*LEFT, RIGHT[0]))

    def test_groups_complete_graphs_ignore_colluders(self) -> None:
        masking = MaskingSection(complete_up_to=8, max_colluding=0.25)
        player = GroupPlayer(masked_rules(masking), groups=(ALL,))
        player.answer(*LEFT[:3])
        player.to_deadline()
        assert (player.stage, player.state.participants) == (RoundStage.PLANNING, LEFT[:3])

    def test_groups_benching_leaves_a_group(self) -> None:
        player = GroupPlayer(replace(GROUPED, roster=LEFT), groups=(LEFT,))
        player.begin(LEFT, (Quorum(Phase.SHARES, frozenset(LEFT), 3),))
        player.do(Left("ada"), Left("bea"))
        assert player.state.attempt == 2
        assert player.state.benched == frozenset()
        assert player.state.absent == {"ada", "bea"}


class TestPlanning:
    def test_planning_asks_no_site_and_happens_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        player = GroupPlayer()
        with pytest.raises(WrongPhase, match=r"plan"):
            player.do(Planned())
        player.begin()
        with pytest.raises(WrongPhase, match=r"plan"):
            player.do(Planned())
        player.answer(*ALL)
        monkeypatch.setattr(machine, "check_planning", lambda *_: None)
        player.do(Planned())
        assert player.state.quorums == (), "planned in the middle of a step, without the check"

    def test_planning_late_fails_attempt(self) -> None:
        player = GroupPlayer()
        player.answer(*ALL)
        player.to_deadline()
        assert (player.stage, player.state.attempt) == (RoundStage.PRESENCE, 2)

    def test_planning_quorum_of_other_sites_is_refused(self) -> None:
        player = GroupPlayer()
        player.answer(*LEFT)
        player.to_deadline()
        with pytest.raises(ValueError, match="quorum"):
            player.do(Planned(THREE_OF_EACH))

    @pytest.mark.parametrize("least", [0, 5])
    def test_quorum_impossible_count_is_refused(self, least: int) -> None:
        with pytest.raises(ValueError, match="quorum"):
            Quorum(Phase.VALUES, frozenset(LEFT), least)


@pytest.mark.parametrize(
    "stage", [RoundStage.SHARES, RoundStage.VALUES, RoundStage.SURVIVORS, RoundStage.UNMASK]
)
class TestDropOuts:
    def test_drop_out_is_waited_for_until_deadline(self, stage: RoundStage) -> None:
        player = GroupPlayer()
        player.begin()
        player.go_to(stage)
        player.answer(*without("dot"))
        player.wait(19)
        assert player.stage is stage
        player.wait(2)
        assert player.stage is not stage
        assert player.state.survivors[-1].sites == without("dot")
        assert player.state.failures == 0
        assert player.state.absent == {"dot"}

    def test_drop_out_that_left_is_not_waited_for(self, stage: RoundStage) -> None:
        player = GroupPlayer()
        player.begin()
        player.go_to(stage)
        player.do(Left("dot"))
        assert player.stage is stage
        player.answer(*without("dot"))
        assert player.stage is not stage
        assert player.state.survivors[-1].sites == without("dot")

    def test_drop_out_is_asked_for_result_only(self, stage: RoundStage) -> None:
        player = GroupPlayer()
        player.begin()
        player.go_to(stage)
        player.answer(*without("dot"))
        player.to_deadline()
        player.do(Polled("dot"))
        while player.stage is not RoundStage.COMPUTING:
            assert player.task("dot") is None
            with pytest.raises(WrongPhase):
                player.do(Answered("dot", player.state.key(Phase(STEPS[-1]))))
            player.answer(*player.state.step_sites)
        player.do(Computed())
        assert player.phase("dot") is Phase.RESULT

    def test_drop_out_that_returns_is_asked_for_result_only(self, stage: RoundStage) -> None:
        """A site that leaves erases what the steps need. Nobody hears that dot leaves. The clock stands still."""
        player = GroupPlayer()
        player.begin()
        player.go_to(stage)
        player.answer("hal")  # and dot has not
        player.do(Left("hal"))
        player.do(*(Joined(site, player.state.presence_key) for site in ("dot", "hal")))
        player.state = State.from_json(player.state.to_json())
        while player.stage is not RoundStage.COMPUTING:
            assert player.task("dot") is player.task("hal") is None
            with pytest.raises(WrongPhase):
                player.do(Answered("dot", player.state.key(Phase(STEPS[-1]))))
            awaited = [site for site in player.state.step_sites if player.task(site)]
            assert awaited, "it waits for nobody else"
            player.answer(*awaited)
        player.do(Computed())
        assert [player.phase(site) for site in ("dot", "hal")] == [Phase.RESULT] * 2
        player.answer(*ALL)
        assert (player.state.round, player.phase("dot")) == (2, Phase.PRESENCE)

    def test_drop_out_breaking_quorum_by_leaving_fails_attempt_at_once(self, stage: RoundStage) -> None:
        player = GroupPlayer()
        player.begin()
        player.go_to(stage)
        player.do(Left("cid"), Left("dot"), Left("eli"))
        assert player.stage is RoundStage.PRESENCE
        assert player.state.benched == {"cid", "dot"}, "the other group could have gone on"


def test_site_that_left_an_attempt_is_asked_in_the_next() -> None:
    """One of four is gone for good, another fails once: the three that are left go on, without waiting."""
    player = GroupPlayer(replace(GROUPED, roster=LEFT), groups=(LEFT,))
    player.begin(LEFT, tuple(Quorum(phase, frozenset(LEFT), 3) for phase in STEPS))
    player.do(Left("ada"), Left("dot"), Joined("dot"))
    assert (player.stage, player.state.attempt, player.state.left) == (RoundStage.PRESENCE, 2, frozenset())
    player.answer(*LEFT[1:])
    player.do(Planned(tuple(Quorum(phase, frozenset(LEFT[1:]), 3) for phase in STEPS)))
    player.go_to(RoundStage.RESULT)
    assert player.state.participants == LEFT[1:]


class TestAfterUnmaskWasAsked:
    def abandoned(self, rules: Rules = GROUPED) -> GroupPlayer:
        player = GroupPlayer(rules)
        player.begin()
        player.go_to(RoundStage.UNMASK)
        player.answer(*without("cid", "dot"))
        player.to_deadline()
        return player

    def test_unmask_failure_abandons_round(self) -> None:
        player = self.abandoned()
        assert (player.stage, player.state.round, player.state.attempt) == (RoundStage.PRESENCE, 2, 1)
        assert player.state.failures == 1
        assert player.state.reason.endswith("the round is abandoned, without a result")

    def test_unmask_failure_benches_sites_for_next_round(self) -> None:
        player = self.abandoned()
        player.do(Polled("cid"), Polled("dot"))
        assert [player.task(site) for site in ("cid", "dot")] == [None, None]
        player.answer(*without("cid", "dot"))
        assert (player.stage, player.state.participants) == (RoundStage.PLANNING, RIGHT)

    @pytest.mark.parametrize("event", [ComputeFailed(), Tick()])
    def test_unmask_failed_computation_abandons_round(self, event: Event) -> None:
        player = GroupPlayer()
        player.begin()
        player.go_to(RoundStage.COMPUTING)
        before = player.state
        player.now = player.state.deadline
        player.do(event)
        assert machine.abandons(before, player.state)
        assert (player.stage, player.state.round, player.state.benched) == (
            RoundStage.PRESENCE,
            2,
            frozenset(),
        )

    def test_failure_before_unmask_repeats_round(self) -> None:
        player = GroupPlayer()
        player.begin()
        player.go_to(RoundStage.SURVIVORS)
        before = player.state
        player.answer(*without("cid", "dot"))
        player.to_deadline()
        assert not machine.abandons(before, player.state)
        assert (player.stage, player.state.round, player.state.attempt) == (RoundStage.PRESENCE, 1, 2)

    @pytest.mark.parametrize(("complete_up_to", "over"), [(4, False), (3, True), (None, False)])
    def test_survivors_large_group_failure_abandons_round(
        self, complete_up_to: int | None, over: bool
    ) -> None:
        """The eight sites form groups of four."""
        masking = MaskingSection(complete_up_to=complete_up_to) if complete_up_to else None
        player = GroupPlayer(replace(GROUPED, masking=masking))
        player.begin()
        player.go_to(RoundStage.SURVIVORS)
        before = player.state
        player.answer(*without("cid", "dot"))
        player.to_deadline()
        assert machine.abandons(before, player.state) == over
        assert (player.stage, player.state.round) == (RoundStage.PRESENCE, 2 if over else 1)

    def test_values_large_group_failure_repeats_round(self) -> None:
        player = GroupPlayer(replace(GROUPED, masking=MaskingSection(complete_up_to=3)))
        player.begin()
        player.go_to(RoundStage.SHARES)
        player.answer(*without("cid", "dot"))
        player.to_deadline()
        assert (player.stage, player.state.round, player.state.attempt) == (RoundStage.PRESENCE, 1, 2)

    def test_abandoned_last_round_finishes_run_with_earlier_result(self) -> None:
        player = GroupPlayer()
        player.begin()
        player.go_to(RoundStage.RESULT)
        player.answer(*ALL)
        player.begin()
        player.go_to(RoundStage.UNMASK)
        before = player.state
        player.answer(*without("cid", "dot"))
        player.to_deadline()
        assert (player.stage, player.state.round, player.state.last_result) == (RoundStage.FINISHED, 2, 1)
        assert machine.abandons(before, player.state)

    def test_run_without_any_result_stops(self) -> None:
        player = self.abandoned(replace(GROUPED, rounds=1))
        assert player.stage is RoundStage.STOPPED
        assert player.state.reason == (
            "no round of the run had a result; the last failure: round 1, attempt 1: no released shares from cid, dot; "
            "the round is abandoned, without a result"
        )

    def test_run_without_any_result_cannot_be_resumed(self) -> None:
        player = self.abandoned(replace(GROUPED, rounds=1))
        ended = player.state
        player.do(Resumed(), Tick(), *(Polled(site) for site in without("cid", "dot")))
        assert player.state == ended
        assert not any(player.task(site) for site in ALL)
        assert State.from_json(ended.to_json()) == ended

    def test_abandoned_rounds_up_to_max_attempts_stop_run(self) -> None:
        player = self.abandoned(replace(GROUPED, rounds=3, max_attempts=1))
        assert player.stage is RoundStage.STOPPED
        player.do(Resumed())
        assert player.task("ada") == PhaseKey("r1", 2, 2, Phase.PRESENCE)
        assert player.state.groups == (LEFT, RIGHT)

    def test_success_resets_abandoned_rounds(self) -> None:
        player = self.abandoned()
        player.begin(without("cid", "dot"), tuple(each for each in THREE_OF_EACH if "eli" in each.sites))
        player.go_to(RoundStage.RESULT)
        player.answer(*RIGHT)
        assert (player.stage, player.state.failures) == (RoundStage.FINISHED, 0)

    def test_abandoning_needs_that_it_was_asked(self) -> None:
        player = GroupPlayer()
        before = replace(player.state, stage=RoundStage.COMPUTING, round=0)
        assert not machine.abandons(before, player.state), "the clustering's end"
