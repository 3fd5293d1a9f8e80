"""Start of a run: joining, the roster, the group secret; and the rules and the state as values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protoseal_wire.messages import Phase, PhaseKey
from secure_server.errors import JoinClosed, NotOnRoster
from secure_server.rounds import machine
from secure_server.rounds.machine import Answered, Computed, Event, Joined, Left, Polled, Resumed
from secure_server.rounds.state import RoundStage
from secure_server.rounds.task_assignment import ready_sites
from tests.secure_server.rounds.round_player import RULES, SITES, Player, in_round, without_secret

ROSTER, SECRET = PhaseKey("r1", 0, 1, Phase.ROSTER), PhaseKey("r1", 0, 1, Phase.SECRET)


class TestJoining:
    def test_joining_ends_when_all_of_the_roster_joined(self) -> None:
        player = Player()
        player.join("dot", "bea", "ada")
        assert (player.stage, player.state.members) == (RoundStage.JOINING, ())
        player.join("cid")
        assert (player.stage, player.state.members, player.state.maker) == (RoundStage.SETUP, SITES, "ada")

    def test_joining_deadline_with_enough_begins_set_up(self) -> None:
        player = Player()
        player.join("dot", "bea", "cid")
        player.wait(99)
        assert player.stage is RoundStage.JOINING
        player.wait(1)
        assert (player.stage, player.state.members) == (RoundStage.SETUP, ("bea", "cid", "dot"))

    def test_joining_too_few_stops_and_names_missing(self) -> None:
        player = Player()
        player.join("dot", "bea")
        player.to_deadline()
        assert player.stage is RoundStage.STOPPED
        assert player.state.reason == "2 of at least 3 sites joined in time; missing: ada, cid"

    def test_joining_resume_continues_with_those_who_joined(self) -> None:
        player = Player()
        player.join("dot", "bea")
        player.to_deadline()
        player.join("cid")
        assert player.stage is RoundStage.STOPPED
        player.do(Resumed())
        assert (player.stage, player.state.joined) == (RoundStage.JOINING, frozenset({"bea", "cid", "dot"}))
        player.to_deadline()
        assert player.state.members == ("bea", "cid", "dot")

    def test_joining_site_that_left_does_not_count(self) -> None:
        player = Player()
        player.join("ada", "bea", "cid")
        player.do(Left("cid"))
        player.to_deadline()
        assert player.stage is RoundStage.STOPPED

    def test_join_site_outside_roster_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        player = Player()
        for event in (Joined("eve"), Polled("eve"), Answered("eve", ROSTER)):
            with pytest.raises(NotOnRoster, match="eve"):
                player.do(event)
        monkeypatch.setattr(machine, "check_on_roster", lambda *_: None)
        player.join("eve")
        assert "eve" in player.state.joined, "it would have got in, without the check"

    def test_join_new_site_after_set_up_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        player = Player()
        player.join("ada", "bea", "cid")
        player.to_deadline()
        player.answer("ada", "bea", "cid", "bea", "cid")
        assert player.stage is RoundStage.PRESENCE
        with pytest.raises(JoinClosed, match="dot"):
            player.join("dot")
        monkeypatch.setattr(machine, "check_may_join", lambda *_: None)
        player.join("dot")
        assert "dot" in player.state.joined, "it would have got in, without the check"

    def test_join_again_ends_absence(self) -> None:
        player = in_round()
        player.do(Left("ada"))
        assert player.state.absent == {"ada"}
        assert player.task("ada") is None
        player.join("ada")
        assert (player.state.absent, player.phase("ada")) == (frozenset(), Phase.PRESENCE)


class TestSetup:
    def test_setup_secrets_follow_the_makers_keys(self) -> None:
        player = Player()
        player.join(*SITES)
        assert [player.task(site) for site in SITES] == [ROSTER] * 4
        player.answer("bea")
        assert player.task("bea") is None, "there is no secret before the maker's answer"
        player.answer("ada")
        assert [player.task(site) for site in SITES] == [None, SECRET, ROSTER, ROSTER]
        player.answer("bea", "cid", "cid", "dot")
        assert player.stage is RoundStage.SETUP
        player.answer("dot")
        assert (player.stage, player.state.round, player.state.attempt) == (RoundStage.PRESENCE, 1, 1)

    def test_setup_without_secret_asks_roster_only(self) -> None:
        player = Player(without_secret())
        player.join(*SITES)
        player.answer("dot", "cid", "bea")
        assert (player.stage, player.task("bea")) == (RoundStage.SETUP, None)
        player.answer("ada")
        assert player.stage is RoundStage.PRESENCE

    def test_setup_deadline_with_enough_late_site_catches_up(self) -> None:
        player = Player()
        player.set_up("ada", "bea", "cid")
        player.wait(19.9)
        assert player.stage is RoundStage.SETUP
        player.wait(0.2)
        assert (player.stage, player.state.absent) == (RoundStage.PRESENCE, frozenset({"dot"}))
        player.answer("ada", "bea", "cid")
        player.answer("ada", "bea")
        player.answer("dot", "dot")
        assert ready_sites(RULES, player.state) == set(SITES)
        assert player.task("dot") is None, "it is no participant of this attempt"
        player.answer("cid")
        player.do(Computed())
        player.answer("ada", "bea", "cid")
        player.answer(*SITES)
        assert (player.state.round, player.state.participants) == (2, SITES)

    def test_setup_catching_up_during_presence_takes_part(self) -> None:
        player = Player()
        player.set_up("ada", "bea", "cid")
        player.to_deadline()
        player.answer("ada", "bea", "dot", "dot", "dot", "cid")
        assert player.state.participants == SITES

    def test_setup_does_not_wait_for_sites_that_left(self) -> None:
        player = Player()
        player.set_up("ada", "bea", "cid")
        player.do(Left("dot"))
        assert player.stage is RoundStage.PRESENCE

    def test_setup_too_few_stops_and_names_missing(self) -> None:
        player = Player()
        player.set_up("ada", "bea")
        player.answer("cid")
        player.to_deadline()
        assert player.stage is RoundStage.STOPPED
        assert player.state.reason == "2 of at least 3 sites finished the set-up in time; missing: cid, dot"
        player.do(Resumed())
        assert (player.stage, player.phase("cid")) == (RoundStage.SETUP, Phase.SECRET)
        player.answer("cid")
        player.to_deadline()
        assert (player.stage, player.state.round) == (RoundStage.PRESENCE, 1)


class TestSilentMaker:
    def test_silent_maker_is_replaced(self) -> None:
        player = Player()
        player.join(*SITES)
        player.answer("bea", "cid", "dot")
        player.to_deadline()
        assert (player.stage, player.state.setup_attempt, player.state.maker) == (RoundStage.SETUP, 2, "bea")
        assert player.state.members == ("bea", "cid", "dot")
        assert player.task("dot") == PhaseKey("r1", 0, 2, Phase.ROSTER), "another roster is another step"
        player.answer("bea", "cid", "dot", "cid", "dot")
        assert (player.stage, player.state.failures) == (RoundStage.PRESENCE, 0)
        for event in (Joined("ada"), Polled("ada")):
            with pytest.raises(JoinClosed):
                player.do(event)

    @pytest.mark.parametrize("event", [Joined("ada"), Polled("ada")], ids=["joins", "polls"])
    def test_silent_maker_returning_during_set_up_is_admitted(self, event: Event) -> None:
        """The first of four sites starts slowly and the third is gone: the other three are the run."""
        player = Player()
        player.join(*SITES)
        player.answer("bea", "cid", "dot")
        player.to_deadline()
        player.answer("bea", "dot")
        player.do(event)
        assert (player.state.setup_attempt, player.state.members, player.state.maker) == (3, SITES, "ada")
        player.answer("ada", "bea", "dot", "bea", "dot")
        player.to_deadline()
        assert (player.stage, player.state.absent) == (RoundStage.PRESENCE, frozenset({"cid"}))

    def test_silent_maker_joining_repeatedly_does_not_stop_run(self) -> None:
        player = Player()
        player.join(*SITES)
        for _ in range(RULES.max_attempts - 1):
            player.join("ada")
            player.answer("bea", "cid", "dot")
            player.to_deadline()
        with pytest.raises(JoinClosed):
            player.join("ada")
        player.answer("bea", "cid", "dot", "cid", "dot")
        assert (player.stage, player.state.members) == (RoundStage.PRESENCE, SITES[1:])

    def test_silent_maker_is_admitted_by_resumed_run(self) -> None:
        player = Player()
        player.join(*SITES)
        player.answer("bea", "cid", "dot")
        player.to_deadline()
        player.answer("bea", "dot")
        player.to_deadline()
        assert player.stage is RoundStage.STOPPED
        player.do(Resumed())
        player.join("ada")
        player.answer("ada", "bea", "dot", "bea", "dot")
        player.to_deadline()
        assert (player.stage, player.state.round) == (RoundStage.PRESENCE, 1)

    def test_silent_maker_next_maker_has_answered(self) -> None:
        roster = (*SITES, "eli")
        player = Player(replace(RULES, roster=roster))
        player.join(*roster)
        player.answer("cid", "dot", "eli")
        player.to_deadline()
        assert player.state.members == ("cid", "dot", "eli")

    def test_silent_maker_without_secret_does_not_matter(self) -> None:
        player = Player(without_secret())
        player.join(*SITES)
        player.answer("bea", "cid", "dot")
        player.to_deadline()
        assert (player.stage, player.state.members) == (RoundStage.PRESENCE, SITES)

    @pytest.mark.parametrize(("answering", "attempts"), [(("cid", "dot"), 3), (("bea", "cid", "dot"), 1)])
    def test_silent_maker_too_few_sites_or_attempts_stops_run(
        self, answering: tuple[str, ...], attempts: int
    ) -> None:
        player = Player(replace(RULES, max_attempts=attempts))
        player.join(*SITES)
        player.answer(*answering)
        player.to_deadline()
        assert (player.stage, player.state.reason) == (
            RoundStage.STOPPED,
            "ada did not make the group's keys in time",
        )
        assert player.state.members == SITES, "the state is intact"
        player.do(Resumed())
        player.answer("ada")
        assert player.phase("cid") is Phase.SECRET


class TestRules:
    @pytest.mark.parametrize("min_sites", [1, 5])
    def test_rules_fewer_sites_than_min_sites_are_refused(self, min_sites: int) -> None:
        with pytest.raises(ValueError, match="min_sites"):
            replace(RULES, min_sites=min_sites)

    def test_rules_set_up_time_includes_secrets_if_needed(self) -> None:
        assert RULES.seconds(RoundStage.SETUP) == 20
        assert without_secret().seconds(RoundStage.SETUP) == 10
