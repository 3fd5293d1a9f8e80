"""A site that costs a round an attempt is not asked again in it: spite and bad luck of a few stop nobody else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from agreement.registry.round_plan import MASKED_SUM as STEPS
from protoseal_wire.messages import Phase
from secure_server.errors import WrongPhase
from secure_server.rounds import transitions
from secure_server.rounds.machine import Answered, Computed, ComputeFailed, Left, Planned, Polled, Resumed
from secure_server.rounds.rules import Rules
from secure_server.rounds.state import Quorum, RoundStage, State
from tests.secure_server.rounds.checked_run import InvariantError
from tests.secure_server.rounds.round_player import GROUPED, LEFT, RULES, SITES, GroupPlayer, Player, in_round
from tests.secure_server.rounds.simulated_run import SpitefulRun

OTHERS = ("ada", "bea", "cid")


def keeps_nobody_out(rules: Rules, state: State, lost: object) -> frozenset[str]:
    """Replace the machine's rule by one that learns nothing from the failed attempt."""
    return state.benched


def lose_values(player: Player) -> None:
    """All state presence; dot's values are late, and it polls again as soon as they are."""
    player.answer(*SITES)
    player.answer(*OTHERS)
    player.to_deadline()
    if player.stage is not RoundStage.STOPPED:
        player.do(Polled("dot"))


def leave_after_presence(player: Player) -> None:
    player.answer(*SITES)
    player.do(Left("dot"))
    if player.stage is not RoundStage.STOPPED:
        player.join("dot")


@pytest.mark.parametrize("spite", [lose_values, leave_after_presence])
class TestOneSite:
    def test_benched_site_costs_one_attempt_and_returns_next_round(
        self, spite: Callable[[Player], None]
    ) -> None:
        player = in_round()
        for number in (1, 2):
            spite(player)
            assert (player.stage, player.state.attempt) == (RoundStage.PRESENCE, 2)
            assert player.state.benched == {"dot"}
            assert player.state.absent == frozenset(), "it is there again"
            assert player.task("dot") is None
            with pytest.raises(WrongPhase):
                player.do(Answered("dot", player.state.presence_key))
            player.answer(*OTHERS)
            assert (player.stage, player.state.participants) == (RoundStage.VALUES, OTHERS), (
                "nobody waits for it"
            )
            player.answer(*OTHERS)
            player.do(Computed())
            player.answer(*OTHERS)
            assert player.state.benched == frozenset()
            assert player.stage is (RoundStage.PRESENCE if number == 1 else RoundStage.FINISHED)

    def test_site_that_drops_values_without_benching_stops_run(
        self, spite: Callable[[Player], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transitions, "_bench", keeps_nobody_out)
        player = in_round()
        for _ in range(RULES.max_attempts):
            spite(player)
        assert (player.stage, player.state.round) == (RoundStage.STOPPED, 1)


def test_benched_sites_more_than_attempts_stop_nothing() -> None:
    spiteful = ("dot", "eli", "fay", "gus")
    roster = tuple(sorted({*SITES, *spiteful}))
    player = in_round(replace(RULES, roster=roster))
    for site in spiteful:
        player.answer(*(each for each in roster if player.task(each)))
        player.do(Left(site))
    assert len(spiteful) > RULES.max_attempts
    assert (player.stage, player.state.failures) == (RoundStage.PRESENCE, 0)
    player.answer(*OTHERS)
    assert (player.stage, player.state.participants) == (RoundStage.VALUES, OTHERS)


def test_benching_too_few_others_asks_again_at_once() -> None:
    player = in_round(replace(RULES, min_sites=4))
    lose_values(player)
    assert player.state.benched == frozenset()
    player.answer(*SITES)
    assert (player.stage, player.state.participants) == (RoundStage.VALUES, SITES)


def test_benched_sites_are_asked_again_if_too_few_remain() -> None:
    player = in_round()
    player.answer(*SITES)
    player.answer("ada", "bea")
    player.to_deadline()
    assert (player.state.attempt, player.state.benched) == (2, frozenset())


def test_benched_site_is_asked_again_if_others_are_absent() -> None:
    player = in_round()
    lose_values(player)
    player.answer("ada", "bea")
    player.to_deadline()
    assert (player.stage, player.state.attempt, player.state.benched) == (RoundStage.PRESENCE, 3, frozenset())
    player.answer("ada", "bea", "dot")
    assert (player.stage, player.state.participants) == (RoundStage.VALUES, ("ada", "bea", "dot"))


def test_benched_site_is_asked_again_after_resume() -> None:
    player = in_round()
    lose_values(player)
    player.do(Resumed())
    assert (player.state.benched, player.state.attempt) == (frozenset(), 2)
    player.answer(*SITES)
    assert player.state.participants == SITES


def test_failed_aggregation_benches_nobody() -> None:
    player = in_round()
    lose_values(player)
    player.answer(*OTHERS)
    player.answer(*OTHERS)
    player.do(ComputeFailed())
    assert player.state.benched == {"dot"}, "as before"


def test_stored_state_keeps_benched_and_refuses_it_as_participant() -> None:
    player = in_round()
    lose_values(player)
    assert State.from_json(player.state.to_json()) == player.state
    with pytest.raises(ValueError, match="participant"):
        replace(player.state, participants=("cid", "dot"))
    with pytest.raises(ValueError, match="members"):
        replace(player.state, benched=frozenset({"eve"}))


def run_spiteful(count: int = 200) -> Counter[str]:
    total: Counter[str] = Counter()
    for seed in range(count):
        run = SpitefulRun(seed)
        try:
            run.run()
        except InvariantError as violation:
            violation.add_note(f"seed {seed}")
            raise
        total += run.seen
    return total


class TestManySpitefulSites:
    def test_spiteful_sites_stop_no_run_with_enough_good_ones(self) -> None:
        seen = run_spiteful()
        assert seen["spite"] > 200
        assert seen["failed attempt"] > 100

    def test_spiteful_sites_without_benching_stop_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(transitions, "_bench", keeps_nobody_out)
        with pytest.raises(InvariantError, match="enough sites are good"):
            run_spiteful()


@pytest.mark.parametrize("step", STEPS)
def test_site_silent_in_masked_step_costs_others_no_result(step: Phase) -> None:
    """Two of five, in the same step of each round: without them, three are as many as a group needs."""
    five = (*LEFT, "eve")
    rules = replace(GROUPED, roster=five, min_sites=3, rounds=6)
    player, silent = GroupPlayer(rules, (five,)), {"ada", "bea"}
    computed = 0
    while not player.state.over:
        if player.stage is RoundStage.PLANNING:
            player.do(Planned(_quorums(player.state.participants)))
        elif player.stage is RoundStage.COMPUTING:
            player.do(Computed())
            computed += 1
        elif not _answer(player, five, lambda site, phase: phase is step and site in silent):
            player.to_deadline()
    assert player.stage is RoundStage.FINISHED
    assert computed >= 3
    assert player.state.last_result == 6


def _quorums(participants: tuple[str, ...]) -> tuple[Quorum, ...]:
    least = 2 * len(participants) // 3 + 1
    return tuple(Quorum(phase, frozenset(participants), least) for phase in STEPS)


def _answer(player: GroupPlayer, sites: tuple[str, ...], silent: Callable[[str, Phase], bool]) -> bool:
    """Answer for the sites that are not silent, and return True if any of them had something to answer."""
    answered = False
    for site in sites:
        player.do(Polled(site))
        phase = player.phase(site)
        if phase is not None and not silent(site, phase):
            player.answer(site)
            answered = True
    return answered
