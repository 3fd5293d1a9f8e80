"""Participants of a round after values were requested, recipients of its result, and runs without any result."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agreement.registry.round_plan import MASKED_SUM as STEPS
from protoseal_wire.messages import Phase
from secure_server.errors import WrongPhase
from secure_server.rounds import machine
from secure_server.rounds.machine import Answered, Computed, Left, Planned, Resumed
from secure_server.rounds.rules import Rules
from secure_server.rounds.state import Quorum, RoundStage, State
from tests.secure_server.rounds.round_player import ALL, GROUPED, LEFT, RIGHT, THREE_OF_EACH, GroupPlayer

FIVE = (*LEFT, "eve")
FIVE_AND_FOUR = replace(GROUPED, roster=(*FIVE, *RIGHT), min_sites=2)
FOUR_OF_FIVE = tuple(Quorum(phase, frozenset(FIVE), 4) for phase in STEPS)


class TestAfterValuesWereAsked:
    """Attempts after a site sent masked values: the site answers them only with a quorum of those listed with it."""

    def begun(self, rules: Rules = FIVE_AND_FOUR, right: tuple[str, ...] = RIGHT) -> GroupPlayer:
        """Return a player in VALUES of both groups, five and four."""
        player = GroupPlayer(replace(rules, roster=(*FIVE, *right)), tuple(filter(None, (FIVE, right))))
        rest = tuple(quorum for quorum in THREE_OF_EACH if right and "eli" in quorum.sites)
        player.begin(rules.roster if right else FIVE, (*FOUR_OF_FIVE, *rest))
        player.go_to(RoundStage.VALUES)
        return player

    def failed_in(self, stage: RoundStage, player: GroupPlayer) -> None:
        """Two of the five leave."""
        player.go_to(stage)
        player.do(Left("ada"), Left("bea"))
        assert (player.stage, player.state.attempt) == (RoundStage.PRESENCE, 2)

    @pytest.mark.parametrize("stage", [RoundStage.VALUES, RoundStage.SURVIVORS])
    def test_commitment_group_with_too_few_earlier_members_sits_out(self, stage: RoundStage) -> None:
        player = self.begun()
        self.failed_in(stage, player)
        player.answer("cid", "dot", "eve", *RIGHT)
        assert (player.stage, player.state.participants) == (RoundStage.PLANNING, RIGHT), (
            "three would have been enough"
        )

    def test_commitment_before_values_does_not_exist(self) -> None:
        player = GroupPlayer(FIVE_AND_FOUR, (FIVE, RIGHT))
        player.begin(FIVE_AND_FOUR.roster, FOUR_OF_FIVE)
        self.failed_in(RoundStage.SHARES, player)
        player.answer("cid", "dot", "eve", *RIGHT)
        assert player.state.participants == tuple(sorted(("cid", "dot", "eve", *RIGHT)))

    def test_commitment_quorum_of_earlier_members_suffices(self) -> None:
        player = self.begun()
        player.go_to(RoundStage.SURVIVORS)
        player.do(Left("eli"), Left("fay"))
        player.do(Left("ada"))
        player.answer("bea", "cid", "dot", "eve", "gus", "hal")
        assert (player.stage, player.state.participants) == (
            RoundStage.PLANNING,
            ("bea", "cid", "dot", "eve"),
        )

    def test_commitment_of_every_attempt_counts(self) -> None:
        """Four of five, then three of those four: enough of the second list, too few of the first."""
        player = self.begun()
        player.go_to(RoundStage.SURVIVORS)
        player.do(*(Left(site) for site in ("ada", "eli", "fay")))
        player.answer("bea", "cid", "dot", "eve", "gus", "hal")
        four = frozenset(("bea", "cid", "dot", "eve"))
        player.do(Planned(tuple(Quorum(phase, four, 3) for phase in STEPS)))
        player.go_to(RoundStage.SURVIVORS)
        assert [each.least for each in player.state.unmask_commitments] == [4, 3, 3]
        player.do(Left("bea"), Left("cid"))
        player.join("ada", "bea")
        player.answer(*(site for site in ("ada", "bea", "dot", "eve") if player.task(site)))
        assert player.state.participants != ("ada", "bea", "dot")

    def test_commitment_no_able_group_abandons_round_at_deadline(self) -> None:
        player = self.begun(right=())
        self.failed_in(RoundStage.VALUES, player)
        before = player.state
        player.answer("cid", "dot", "eve")
        assert player.stage is RoundStage.PRESENCE, "the two may still come back"
        player.to_deadline()
        assert (player.stage, player.state.round, player.state.attempt) == (RoundStage.PRESENCE, 2, 1)
        assert (player.state.failures, player.state.unmask_commitments) == (before.failures + 1, ())
        assert machine.abandons(before, player.state)
        assert player.state.reason == (
            "round 1, attempt 2: too few of the sites that were asked for values before are present; missing: ada, "
            "bea; the round is abandoned, without a result"
        )
        player.answer("cid", "dot", "eve")
        assert player.state.participants == ("cid", "dot", "eve"), "in a new round nobody has sent anything"

    def test_commitment_returning_sites_save_the_round(self) -> None:
        player = self.begun(right=())
        self.failed_in(RoundStage.VALUES, player)
        player.join("ada")
        player.answer("ada", "cid", "dot", "eve")
        assert (player.stage, player.state.round) == (RoundStage.PLANNING, 1)

    def test_commitment_too_few_for_any_round_repeats_it(self) -> None:
        player = self.begun(right=())
        self.failed_in(RoundStage.VALUES, player)
        player.answer("dot", "eve")
        player.to_deadline()
        assert (player.stage, player.state.round, player.state.attempt) == (RoundStage.PRESENCE, 1, 3)

    def test_commitment_survives_restart(self) -> None:
        player = self.begun()
        self.failed_in(RoundStage.VALUES, player)
        player.state = State.from_json(player.state.to_json())
        player.do(Resumed())
        player.answer("cid", "dot", "eve", *RIGHT)
        assert player.state.participants == RIGHT

    def test_one_step_round_has_no_commitment(self) -> None:
        player = GroupPlayer(replace(FIVE_AND_FOUR, round_steps=(Phase.VALUES,)), (FIVE, RIGHT))
        player.begin(FIVE_AND_FOUR.roster, ())
        self.failed_in(RoundStage.VALUES, player)
        player.answer("cid", "dot", "eve", *RIGHT)
        assert player.state.participants == tuple(sorted(("cid", "dot", "eve", *RIGHT)))


class TestAGroupWithoutAResult:
    def computed(self) -> GroupPlayer:
        player = GroupPlayer()
        player.begin()
        player.go_to(RoundStage.COMPUTING)
        player.do(Computed(excluded=frozenset(LEFT)))
        return player

    def test_group_without_result_is_not_asked_for_it(self) -> None:
        player = self.computed()
        assert [player.phase(site) for site in ALL] == [None] * 4 + [Phase.RESULT] * 4
        with pytest.raises(WrongPhase):
            player.do(Answered("ada", player.state.result_key))
        player.answer(*RIGHT)
        assert (player.stage, player.state.round, player.state.excluded_from_result) == (
            RoundStage.PRESENCE,
            2,
            (),
        )
        assert [player.phase(site) for site in ALL] == [Phase.PRESENCE] * 8

    def test_group_without_result_does_not_abandon_round(self) -> None:
        player = self.computed()
        before = player.state
        player.answer(*RIGHT)
        assert not machine.abandons(before, player.state)
        assert (player.state.last_result, player.state.failures) == (1, 0)

    @pytest.mark.parametrize("lacking", [ALL, ("eve",)])
    def test_group_without_result_must_be_some_of_the_participants(self, lacking: tuple[str, ...]) -> None:
        player = GroupPlayer()
        player.begin()
        player.go_to(RoundStage.COMPUTING)
        with pytest.raises(ValueError, match="participants"):
            player.do(Computed(excluded=frozenset(lacking)))
