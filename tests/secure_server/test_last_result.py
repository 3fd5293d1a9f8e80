"""The last round's result stays to be fetched after the end, by those it is for and by nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agreement import Protection
from protoseal_wire.messages import Finished, Phase, UploadHeader, Work
from secure_server.errors import WrongPhase
from secure_server.rounds.state import Stage
from tests.secure_server.conftest import Identities
from tests.secure_server.exchanges.fedpc_play import SECONDS, Play, playing
from tests.secure_server.scripted_sites import fedpc_agreement

LATE, PEER, ROUNDS = "d", "c", 2


@pytest.fixture(params=[Protection.PLAIN, Protection.MASKED], ids=str)
def ended(request: pytest.FixtureRequest, identities: Identities, tmp_path: Path) -> Iterator[Play]:
    """A run that a site left between its last values and their result."""
    with playing(fedpc_agreement(request.param), *identities, tmp_path) as play:
        play.join()
        play.go_to(Stage.RESULT, ROUNDS)
        play.go_to(Stage.FINISHED, without=[LATE])
        yield play


def is_over(play: Play) -> bool:
    return play.coordinator.finished


def test_a_late_site_gets_what_its_group_was_given(ended: Play) -> None:
    assert ended.result(LATE, ROUNDS) is None
    assert isinstance(ended.sites[LATE].step(), Work)
    assert isinstance(ended.sites[LATE].step(), Finished)
    assert ended.result(LATE, ROUNDS) == ended.result(PEER, ROUNDS)


def test_a_site_that_has_it_or_sat_out_is_told_the_end(identities: Identities, tmp_path: Path) -> None:
    with playing(fedpc_agreement(Protection.PLAIN), *identities, tmp_path) as play:
        play.join()
        play.go_to(Stage.PRESENCE, ROUNDS)
        play.go_to(Stage.FINISHED, without=[LATE])
        for site in (LATE, PEER):
            assert isinstance(play.sites[site].step(), Finished)
        key = play.state.result_key
        header = UploadHeader(key, 1, bytes(32))
        with pytest.raises(WrongPhase):
            play.coordinator.check_upload(LATE, header)


def test_a_coordinator_that_is_started_again_waits_for_those_who_lack_it(ended: Play) -> None:
    ended.restart()
    ended.clock.now += SECONDS - 1.0
    assert not is_over(ended)
    ended.sites[LATE].step()
    assert not is_over(ended)  # it has not been told the end
    ended.sites[LATE].step()
    assert is_over(ended)
    assert ended.state.key(Phase.RESULT).round == ROUNDS

    ended.restart()
    ended.clock.now += 31.0  # nobody lacks anything any more, and nobody came
    assert is_over(ended)


def test_it_does_not_wait_for_ever(ended: Play) -> None:
    ended.restart()
    ended.clock.now += SECONDS + 1.0
    assert is_over(ended)
