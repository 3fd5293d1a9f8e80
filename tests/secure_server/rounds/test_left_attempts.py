"""Sites that come back and say that they left the attempt: they erased its secrets, and are asked for nothing of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agreement.registry.round_plan import MASKED_SUM as STEPS
from protoseal_wire.messages import Phase
from secure_server.errors import WrongPhase
from secure_server.rounds.machine import Answered, Joined, Left, Planned, Resumed
from secure_server.rounds.state import Quorum, RoundStage, State
from tests.secure_server.rounds.round_player import GROUPED, LEFT, RULES, SITES, GroupPlayer, Player, in_round

OTHERS = LEFT[:3]


def one_group(min_sites: int = 3) -> GroupPlayer:
    """Return a player at the PRESENCE of round 1, in which three of the four sites suffice."""
    return GroupPlayer(replace(GROUPED, roster=LEFT, min_sites=min_sites), groups=(LEFT,))


def come_back(player: Player, site: str) -> None:
    player.do(Joined(site, player.state.presence_key))


def plan(player: Player) -> None:
    there = player.state.participants
    player.do(Planned(tuple(Quorum(phase, frozenset(there), 3) for phase in STEPS)))


@pytest.mark.parametrize("heard", [True, False], ids=["it said so", "nobody heard"])
@pytest.mark.parametrize("answered", [True, False], ids=["answered", "not taken"])
def test_left_attempt_site_takes_no_part_in_it(heard: bool, answered: bool) -> None:
    player = one_group()
    if answered:
        player.answer("dot")
    if heard:
        player.do(Left("dot"))
    come_back(player, "dot")
    player.state = State.from_json(player.state.to_json())
    assert player.task("dot") is None
    if not answered:
        with pytest.raises(WrongPhase):
            player.do(Answered("dot", player.state.presence_key))
    player.answer(*OTHERS)
    assert (player.stage, player.state.participants) == (RoundStage.PLANNING, OTHERS), "nobody waits for it"
    plan(player)
    player.go_to(RoundStage.RESULT)
    assert player.task("dot") is None
    player.answer(*OTHERS)
    assert (player.state.round, player.phase("dot")) == (2, Phase.PRESENCE)


def test_return_with_secrets_stays_in_attempt() -> None:
    player = one_group()
    player.answer("dot")
    player.do(Left("dot"), Joined("dot"))
    player.answer(*OTHERS)
    assert player.state.participants == LEFT
    plan(player)
    player.do(Joined("dot", replace(player.state.presence_key, round=0)))
    assert player.phase("dot") is Phase.SHARES, "another attempt is none of this one's business"


def test_left_attempt_needed_site_begins_another_at_once() -> None:
    player = one_group(min_sites=4)
    player.answer("dot")
    come_back(player, "dot")
    player.answer(*OTHERS)
    assert (player.stage, player.state.attempt, player.state.left) == (RoundStage.PRESENCE, 2, frozenset())
    player.answer(*LEFT)
    assert player.state.participants == LEFT


def test_left_attempt_waits_for_others_that_may_return() -> None:
    player = one_group()
    player.do(Left("ada"))
    player.answer("dot")
    come_back(player, "dot")
    player.answer("bea", "cid")
    assert (player.stage, player.state.attempt) == (RoundStage.PRESENCE, 1)
    player.to_deadline()
    assert (player.state.attempt, player.phase("dot")) == (2, Phase.PRESENCE)


def test_left_attempt_round_is_not_abandoned_if_next_could_succeed() -> None:
    """The values that were asked in the first attempt keep any two of the group from another."""
    player = one_group(min_sites=2)
    player.rules = replace(player.rules, min_group_size=lambda members: 2)
    player.begin(LEFT, tuple(Quorum(phase, frozenset(LEFT), 3) for phase in STEPS))
    player.go_to(RoundStage.VALUES)
    player.do(Left("ada"), Left("bea"))
    assert player.state.attempt == 2
    player.answer("dot")
    come_back(player, "dot")
    player.join("bea")
    player.answer("bea", "cid")
    player.to_deadline()
    assert (player.state.round, player.state.attempt) == (1, 3)


def test_left_attempt_during_set_up_means_nothing() -> None:
    player = Player()
    for site in SITES:
        come_back(player, site)
    assert (player.stage, player.state.left) == (RoundStage.SETUP, frozenset())


def test_left_attempt_resumed_run_asks_everyone() -> None:
    player = in_round(replace(RULES, empty_seconds=15.0))
    come_back(player, "dot")
    player.do(*(Left(site) for site in SITES))
    player.wait(15.0)
    assert player.stage is RoundStage.STOPPED
    player.do(Resumed())
    player.join(*SITES)
    assert {player.phase(site) for site in SITES} == {Phase.PRESENCE}
