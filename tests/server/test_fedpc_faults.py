"""FedPC's rounds at a coordinator that is killed, and with sites that come and go: an exact result or none."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from protoseal.config import Protection
from protoseal_wire.messages import LeaveRequest, Phase
from secure_server.coordinator import Coordinator
from secure_server.errors import CoordinatorError
from secure_server.run_state import Stage, State
from tests.server.conftest import Identities
from tests.server.fedpc_play import Play, check_results, expected, playing
from tests.server.round_player import survivors_of
from tests.server.scripted_sites import FAR, NEAR, fedpc_agreement

ALL = (*NEAR, *FAR)
STAGES = [
    (0, Stage.PRESENCE),
    (0, Stage.VALUES),
    *(
        (number, stage)
        for number in (1, 2)
        for stage in (
            Stage.PRESENCE,
            Stage.SHARES,
            Stage.VALUES,
            Stage.SURVIVORS,
            Stage.UNMASK,
            Stage.RESULT,
        )
    ),
]


@pytest.fixture
def play(identities: Identities, tmp_path: Path) -> Iterator[Play]:
    with playing(fedpc_agreement(Protection.MASKED), *identities, tmp_path) as begun:
        begun.join()
        yield begun


def test_restarts_in_every_step_change_nothing(play: Play) -> None:
    """A restart before, between and after the answers to each step; sites notice a request that changed."""
    for number, stage in STAGES:
        play.go_to(stage, number)
        for names in (ALL[:3], ALL[3:]):
            downloads_again(play)
            play.restart()
            downloads_again(play)
            play.step(*names)
    play.go_to(Stage.FINISHED)
    for number in (1, 2):
        check_results(play, number, expected(play.agreement, number, ALL), ALL)
    assert {each.round: each.attempt for each in play.rounds} == {1: 1, 2: 1}


def downloads_again(play: Play) -> None:
    """Whoever has something to do asks for it once more."""
    for site in play.sites.values():
        for key in [key for key in site.asked if key == play.state.asked_key]:
            try:
                site.download(key)
            except CoordinatorError:
                assert site.name in play.state.answered


def killed_before(stage: Stage, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies when it has stored a state of this stage, before it does its own part in it."""

    own_part = Coordinator._do_own_part

    def dies(self: Coordinator) -> None:
        if self.state.stage is stage:
            raise KeyboardInterrupt
        own_part(self)

    monkeypatch.setattr(Coordinator, "_do_own_part", dies)
    with pytest.raises(KeyboardInterrupt):
        play.go_to(Stage.STOPPED)
    monkeypatch.undo()
    assert play.state.stage is stage


@pytest.mark.parametrize("stage", [Stage.PLANNING, Stage.COMPUTING])
def test_its_own_part_is_done_by_a_coordinator_that_is_started_again(
    play: Play, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    play.go_to(Stage.PRESENCE, 1)
    killed_before(stage, play, monkeypatch)
    play.restart()
    assert play.state.stage is (Stage.SHARES if stage is Stage.PLANNING else Stage.RESULT)
    play.go_to(Stage.FINISHED)
    check_results(play, 1, expected(play.agreement, 1, ALL), ALL)


def test_a_run_stopped_by_abandoned_rounds_goes_on_with_the_next(
    identities: Identities, tmp_path: Path
) -> None:
    with playing(fedpc_agreement(Protection.MASKED, rounds=3), *identities, tmp_path, max_attempts=1) as play:
        play.join()
        play.go_to(Stage.UNMASK, 2)
        play.go_to(Stage.STOPPED, without=("b", "c"))
        assert (play.state.round, play.state.attempt) == (3, 1)
        play.restart()
        assert (play.state.stage, play.state.round, play.state.attempt) == (Stage.PRESENCE, 3, 2)
        play.go_to(Stage.FINISHED)
        check_results(play, 1, expected(play.agreement, 1, ALL), ALL)
        check_results(play, 2, {}, ())
        check_results(play, 3, expected(play.agreement, 3, ALL), ALL)
        start = play.sites["a"].starts[-1]
        assert (start.base, start.catch_up) == (play.sites["w"].starts[-2].base, None) or start.base


def test_a_group_catches_up_over_an_abandoned_round_and_one_it_sat_out(
    identities: Identities, tmp_path: Path
) -> None:
    with playing(fedpc_agreement(Protection.MASKED, rounds=4), *identities, tmp_path) as play:
        play.join()
        play.go_to(Stage.RESULT, 1)
        play.go_to(Stage.PRESENCE, 2, without=("a",))
        missed = play.sites["b"].base
        play.go_to(Stage.UNMASK, 2)
        play.go_to(Stage.PRESENCE, 3, without=("b", "c"))
        play.go_to(Stage.PRESENCE, 4, without=NEAR)
        assert play.rounds[-1].groups == (FAR,)
        play.go_to(Stage.FINISHED)
        start = play.sites["a"].starts[-1]
        assert start.base == missed
        assert all(play.sites[name].starts[-1].base == missed for name in NEAR)
        assert play.sites["b"].starts[-1].catch_up is None
        check_results(play, 4, expected(play.agreement, 4, ALL), ALL)


# Whole runs at random


class Storm:
    """A run in which sites vanish, come back, lose acknowledgements, and the coordinator is killed."""

    def __init__(self, play: Play, seed: int) -> None:
        self.play, self.seen = play, Counter[str]()
        self.rng = random.Random(seed)  # noqa: S311 (a test's choices, to be repeated from the seed)
        self.away: dict[str, int] = {}
        self.summed: dict[int, tuple[State, tuple[str, ...]]] = {}
        self.unmasked: dict[int, int] = {}

    def run(self) -> None:
        self.play.join()
        self.play.go_to(Stage.PRESENCE, 1)
        for _ in range(400):
            if self.play.state.over:
                break
            self.turn()
        for number, (state, members) in self.summed.items():
            results = expected(self.play.agreement, number, members, there=state.participants)
            got = [name for name in ALL if self.play.result(name, number)]
            assert set(state.participants) & set(got), "computed for nobody"
            check_results(self.play, number, results, got)
            self.seen["result"] += 1
        self.seen["abandoned"] += sum(each.abandoned for each in self.play.rounds)
        given = {number for site in self.play.sites.values() for number in site.results}
        assert given <= set(self.summed), "a result of no computed round"

    def turn(self) -> None:
        """Each site that is there does something, or time passes when none of them can."""
        before = self.play.state
        for name in self.rng.sample(ALL, len(ALL)):
            if self.rng.random() < (0.06 if name in "dz" else 0.006):
                self.away[name] = self.rng.randint(1, 2)
            if not self.away.get(name):
                self.visit(name)
        if self.rng.random() < 0.1:
            self.seen[f"restart in {self.play.state.stage}"] += 1
            self.play.restart()
        if self.play.state == before:
            self.play.late()
            self.note()
            self.away = {name: left - 1 for name, left in self.away.items()}

    def visit(self, name: str) -> None:
        if self.rng.random() < 0.01:
            coordinator = self.play.coordinator
            coordinator.leave(name, LeaveRequest(name, coordinator.state.session(name)))
            self.play.sites[name].join()
        self.play.step(name)
        self.note()

    def note(self) -> None:
        """What the ledger keeps: who is in a sum, and that nothing follows UNMASK in its round but the end."""
        state = self.play.state
        if state.stage is Stage.UNMASK:
            self.unmasked.setdefault(state.round, state.attempt)
        if state.round in self.unmasked and not state.over:
            assert state.attempt == self.unmasked[state.round], "another attempt after UNMASK"
        if state.stage is Stage.RESULT and state.round not in self.summed:
            members = survivors_of(state, Phase.VALUES)
            self.summed[state.round] = state, members
            self.seen["drop-out"] += len(members) < len(state.participants)


@pytest.mark.full
def test_storms(identities: Identities, tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for seed in range(12):
        agreement = fedpc_agreement(Protection.MASKED, rounds=3)
        with playing(agreement, *identities, tmp_path / str(seed), max_attempts=6) as play:
            storm = Storm(play, seed)
            storm.run()
            seen += storm.seen
    assert seen["result"] >= 20
    assert seen["drop-out"] >= 3
    assert seen["abandoned"] >= 1
    assert sum(count for what, count in seen.items() if what.startswith("restart")) >= 20
