"""A run that every site has left or fallen silent in: it waits for one of them, says so, and stops with a reason."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from protoseal.simulation.local_federation import LocalFederation
from protoseal_wire.messages import LeaveRequest
from secure_server.coordinator import Coordinator
from secure_server.round_log import WaitLog
from secure_server.rounds.machine import Joined, Left, Polled, Resumed, Tick
from secure_server.rounds.state import RoundStage
from tests.secure_server.rounds.round_player import RULES, SITES, Player, in_round
from tests.secure_server.scripted_sites import Clock
from tests.secure_server.test_coordinator import Scene
from tests.support.small import small_agreement, small_data

EMPTY = 15.0
LIMITED = replace(RULES, empty_seconds=EMPTY)
LOG = "protoseal.coordinator"


def left(player: Player, *sites: str) -> None:
    player.do(*(Left(site) for site in sites))


def in_set_up() -> Player:
    player = Player(LIMITED)
    player.join(*SITES)
    return player


def in_values() -> Player:
    player = in_round(LIMITED)
    player.answer(*SITES)
    return player


@pytest.mark.parametrize("begin", [in_set_up, lambda: in_round(LIMITED), in_values])
def test_empty_run_stops_in_time_and_resumes(begin: object) -> None:
    assert callable(begin)
    player: Player = begin()
    before = player.state
    left(player, *SITES)
    assert not player.state.over, "they may be started again"
    player.wait(EMPTY - 1)
    assert not player.state.over
    player.wait(1)
    assert player.stage is RoundStage.STOPPED
    assert (player.state.is_empty, player.state.members) == (True, SITES)
    assert player.state.reason
    player.do(Resumed())
    assert (player.state.over, player.state.round, player.state.reason) == (False, before.round, "")
    player.wait(EMPTY)
    assert not player.state.over, "everybody has the phase's full time to come back"


@pytest.mark.parametrize("word", [Joined, Polled])
def test_empty_run_call_of_a_member_keeps_it_alive(word: type[Joined | Polled]) -> None:
    player = in_round(LIMITED)
    left(player, *SITES[1:])
    player.wait(EMPTY)
    assert not player.state.over, "one is there"
    left(player, SITES[0])
    player.do(Joined(SITES[0]), word(SITES[0]))
    player.wait(EMPTY)
    assert (player.stage, player.state.empty_until) == (RoundStage.PRESENCE, None)


def test_empty_run_silence_counts_from_the_missed_deadline() -> None:
    player = in_round(LIMITED)
    player.to_deadline()
    assert (player.stage, player.state.attempt) == (RoundStage.PRESENCE, 2)
    player.wait(EMPTY)
    assert player.stage is RoundStage.STOPPED
    assert player.state.failures == 1, "not for the failed attempts"


def test_empty_run_clock_set_back_does_not_prolong_it_but_restart_does() -> None:
    player = in_round(LIMITED)
    left(player, *SITES)
    player.wait(EMPTY - 1)
    player.do(Resumed())
    player.wait(EMPTY - 1)
    assert not player.state.over
    player.now -= 1e6
    player.do(Tick())
    player.wait(EMPTY)
    assert player.stage is RoundStage.STOPPED


def test_empty_run_without_limit_waits_for_deadlines() -> None:
    player = in_round()
    left(player, *SITES)
    player.wait(player.state.deadline - player.now - 1)
    assert player.state.empty_until is None
    assert not player.state.over


class TestCoordinator:
    """The operator's log and the end of the coordinator's process."""

    @pytest.fixture
    def scene(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
        rules_of = Scene.rules_of
        monkeypatch.setattr(Scene, "rules_of", lambda scene: replace(rules_of(scene), empty_seconds=EMPTY))
        agreement = small_agreement(rounds=2)
        with LocalFederation(agreement, small_data(agreement)) as federation:
            yield Scene(federation, tmp_path / "keys", Clock())

    @pytest.fixture
    def coordinator(self, scene: Scene, caplog: pytest.LogCaptureFixture) -> Iterator[Coordinator]:
        with caplog.at_level(logging.INFO, LOG):
            yield scene.coordinator()

    def test_empty_run_log_names_sites_at_once_and_each_minute(
        self, scene: Scene, coordinator: Coordinator, caplog: pytest.LogCaptureFixture
    ) -> None:
        names = sorted(site.name for site in scene.federation.sites)
        said = _Said(caplog)
        coordinator.tick()
        assert said.new() == [f"waiting for sites to join: missing {', '.join(names)} (deadline in 60 s)"]
        scene.clock.now += 18
        scene.federation.sites[0].join()
        (line,) = said.new()
        assert scene.federation.sites[0].name not in line
        assert "(deadline in 42 s)" in line
        scene.join()
        scene.go_to(RoundStage.PRESENCE)
        assert (
            said.new()[-1]
            == f"waiting for PRESENCE of round 1: missing {', '.join(names)} (deadline in 60 s)"
        )

    def test_coordinator_empty_run_ends_with_a_reason(
        self, scene: Scene, coordinator: Coordinator, caplog: pytest.LogCaptureFixture
    ) -> None:
        said = _Said(caplog)
        scene.join()
        scene.go_to(RoundStage.PRESENCE)
        for site in scene.federation.sites:
            coordinator.leave(site.name, LeaveRequest(coordinator.state.session(site.name)))
        assert "(the run stops in 15 s)" in said.new()[-1]
        scene.clock.now += EMPTY
        coordinator.tick()
        assert coordinator.finished, "there is nobody to be told"
        assert coordinator.state.reason in caplog.text
        scene.coordinator()
        scene.join()
        scene.go_to(RoundStage.FINISHED)


class _Said:
    """The lines about waiting, each once."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog, self._read = caplog, 0

    def new(self) -> list[str]:
        lines = [each.getMessage() for each in self._caplog.records if "waiting for" in each.getMessage()]
        new, self._read = lines[self._read :], len(lines)
        return new


def test_wait_log_repeats_after_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    player, said = in_round(), _Said(caplog)
    with caplog.at_level(logging.INFO, LOG):
        waits = WaitLog(RULES)
        for now in (0.0, 59.0, 60.0, 61.0, 120.0):
            waits.note(player.state, now)
    assert len(said.new()) == 3
