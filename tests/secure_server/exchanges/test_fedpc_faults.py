"""FedPC's rounds at a coordinator that is killed, and with sites that come and go: an exact result or none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agreement import Protection
from secure_server.errors import CoordinatorError
from secure_server.rounds.state import RoundStage
from tests.secure_server.conftest import Identities
from tests.secure_server.exchanges.fedpc_play import Play, check_results, expected, playing
from tests.secure_server.scripted_sites import FAR, NEAR, fedpc_agreement

ALL = (*NEAR, *FAR)
STAGES = [
    (0, RoundStage.PRESENCE),
    (0, RoundStage.VALUES),
    *(
        (number, stage)
        for number in (1, 2)
        for stage in (
            RoundStage.PRESENCE,
            RoundStage.SHARES,
            RoundStage.VALUES,
            RoundStage.SURVIVORS,
            RoundStage.UNMASK,
            RoundStage.RESULT,
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
    play.go_to(RoundStage.FINISHED)
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


def test_a_run_stopped_by_abandoned_rounds_goes_on_with_the_next(
    identities: Identities, tmp_path: Path
) -> None:
    with playing(fedpc_agreement(Protection.MASKED, rounds=3), *identities, tmp_path, max_attempts=1) as play:
        play.join()
        play.go_to(RoundStage.UNMASK, 2)
        play.go_to(RoundStage.STOPPED, without=("b", "c"))
        assert (play.state.round, play.state.attempt) == (3, 1)
        play.restart()
        assert (play.state.stage, play.state.round, play.state.attempt) == (RoundStage.PRESENCE, 3, 2)
        play.go_to(RoundStage.FINISHED)
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
        play.go_to(RoundStage.RESULT, 1)
        play.go_to(RoundStage.PRESENCE, 2, without=("a",))
        missed = play.sites["b"].base
        play.go_to(RoundStage.UNMASK, 2)
        play.go_to(RoundStage.PRESENCE, 3, without=("b", "c"))
        play.go_to(RoundStage.PRESENCE, 4, without=NEAR)
        assert play.rounds[-1].groups == (FAR,)
        play.go_to(RoundStage.FINISHED)
        start = play.sites["a"].starts[-1]
        assert start.base == missed
        assert all(play.sites[name].starts[-1].base == missed for name in NEAR)
        assert play.sites["b"].starts[-1].catch_up is None
        check_results(play, 4, expected(play.agreement, 4, ALL), ALL)
