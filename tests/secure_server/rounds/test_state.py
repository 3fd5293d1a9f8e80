"""A run's stored state: it comes back equal, and an altered one is refused."""

from __future__ import annotations

import json

import pytest

from protoseal_wire.messages import Phase
from secure_server.rounds import machine
from secure_server.rounds.state import RoundStage, State, Survivors
from tests.secure_server.rounds.round_player import LEFT, RIGHT, RULES, SITES, GroupPlayer, in_round, without


class TestState:
    def in_values(self) -> State:
        player = GroupPlayer()
        player.begin()
        player.answer(*without("dot"))
        player.to_deadline()
        return player.state

    def test_from_json_grouped_state_comes_back_equal(self) -> None:
        state = self.in_values()
        assert State.from_json(state.to_json()) == state

    @pytest.mark.parametrize(
        "change",
        [
            {"groups": [["ada"]]},
            {"groups": [list(RIGHT), list(LEFT)]},
            {"survivors": [{"phase": 6, "sites": ["eve"]}]},
            {"survivors": [{"phase": 6, "sites": ["bea", "ada"]}]},
            {"survivors": [{"phase": 6, "sites": ["ada"]}, {"phase": 4, "sites": ["ada", "bea"]}]},
            {"survivors": [{"phase": 6}]},
            {"quorums": [{"phase": 6, "sites": ["eve"], "least": 1}]},
            {"quorums": [{"phase": 6, "sites": ["ada"], "least": 2}]},
            {"quorums": [{"phase": 99, "sites": ["ada"], "least": 1}]},
            {"quorums": [{"phase": 6, "sites": ["ada"], "least": "1"}]},
            {"begun": 1},
            {"without": ["eve"]},
            {"without": ["bea", "ada"]},
            {"committed": [{"phase": 8, "sites": ["eve"], "least": 1}]},
            {"last_result": 2},
        ],
    )
    def test_from_json_altered_steps_are_refused(self, change: dict[str, object]) -> None:
        content = json.loads(self.in_values().to_json())
        with pytest.raises(ValueError, match="validation error"):
            State.from_json(json.dumps(content | change))

    def test_to_json_fields_have_the_names_of_stores_on_disk(self) -> None:
        assert {"keyed", "begun", "without", "committed"} <= json.loads(self.in_values().to_json()).keys()

    def test_survivors_are_of_completed_steps(self) -> None:
        assert self.in_values().survivors == (Survivors(Phase.SHARES, without("dot")),)

    def test_quorums_one_step_round_needs_none(self) -> None:
        player = in_round()
        player.answer(*SITES)
        assert (player.stage, player.state.quorums) == (RoundStage.VALUES, ())


class TestStateAsText:
    def full(self) -> State:
        player = in_round()
        player.answer("ada", "bea", "cid")
        player.to_deadline()
        player.answer("ada")
        return player.state

    def test_from_json_state_comes_back_equal(self) -> None:
        for state in (self.full(), machine.start(RULES, 0.0)):
            assert State.from_json(state.to_json()) == state

    @pytest.mark.parametrize(
        "change",
        [
            {"unknown": 1},
            {"stage": "pausing"},
            {"round": "1"},
            {"round": -1},
            {"attempt": 0},
            {"deadline": None},
            {"members": ["bea", "ada", "cid", "dot"]},
            {"members": ["ada", "ada", "bea", "cid", "dot"]},
            {"participants": ["cid", "ada"]},
            {"verified": ["ada"]},
            {"keyed": ["eve"]},
            {"absent": ["eve"]},
            {"answered": ["eve"]},
        ],
    )
    def test_from_json_altered_state_is_refused(self, change: dict[str, object]) -> None:
        content = json.loads(self.full().to_json())
        assert State.from_json(json.dumps(content)) == self.full()
        with pytest.raises(ValueError, match=r"validation error|unexpected"):
            State.from_json(json.dumps(content | change))

    def test_from_json_missing_field_is_refused(self) -> None:
        content = json.loads(self.full().to_json())
        del content["deadline"]
        with pytest.raises(ValueError, match="deadline"):
            State.from_json(json.dumps(content))

    @pytest.mark.parametrize("text", ["", "{", "null", "[]", '"x"'])
    def test_from_json_other_text_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="validation error"):
            State.from_json(text)
