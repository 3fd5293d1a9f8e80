"""Check: what a site is told before it joins, and that asking leaves everything as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agreement import Protection
from agreement.schema.differences import agreed_fields, differing_fields
from protoseal_wire.messages import PROTOCOL_VERSION, CheckReply, CheckRequest, Listing, RunStage
from secure_server.errors import WrongProtocol
from secure_server.rounds.state import Stage
from tests.secure_server.conftest import Identities
from tests.secure_server.exchanges.fedpc_play import Play, playing
from tests.secure_server.scripted_sites import fedpc_agreement

STAGES = {
    Stage.JOINING: (RunStage.JOINING, 0, True),
    Stage.SETUP: (RunStage.UNDER_WAY, 0, True),
    Stage.PRESENCE: (RunStage.UNDER_WAY, 0, False),
    Stage.RESULT: (RunStage.UNDER_WAY, 1, False),
    Stage.FINISHED: (RunStage.FINISHED, 2, False),
}
"""The stage, the round, and whether a site that has not joined still may."""
LATE = "a"


@pytest.fixture
def play(identities: Identities, tmp_path: Path) -> Iterator[Play]:
    """A run that a listed site has not joined yet."""
    with playing(fedpc_agreement(Protection.PLAIN), *identities, tmp_path) as begun:
        for name, site in begun.sites.items():
            if name != LATE:
                site.join()
        yield begun


def asked(play: Play, site: str) -> CheckReply:
    return play.coordinator.check(site, CheckRequest(PROTOCOL_VERSION))


def listing(play: Play, site: str) -> Listing:
    told = asked(play, site).listing
    assert told is not None
    return told


def test_each_stage_is_told_and_neither_store_nor_run_changes(play: Play, tmp_path: Path) -> None:
    for stage, (told, number, may_join) in STAGES.items():
        if stage is not Stage.JOINING:
            play.go_to(stage, without=[LATE])
        files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        state = play.state
        play.clock.now += (
            10 * 3600.0
        )  # a deadline that has passed is for the next tick to notice, not for Check
        for site in play.sites:
            seen = listing(play, site)
            assert (seen.stage, seen.round) == (told, number)
            assert seen.may_join is (may_join or site != LATE)
        asked(play, "stranger")
        play.clock.now -= 10 * 3600.0
        assert files == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        assert play.state is state


def test_a_site_that_is_not_listed_learns_the_name_of_the_run_alone(play: Play) -> None:
    assert asked(play, "stranger") == CheckReply(PROTOCOL_VERSION, play.agreement.run, None)


def test_the_fields_that_differ_are_named_with_both_values(play: Play) -> None:
    told = listing(play, "b")
    assert told.agreement_hash == play.agreement.hash()
    assert {each.path: each.text for each in told.fields} == agreed_fields(play.agreement.to_json())
    assert differing_fields(play.agreement, told.fields) == []
    training = play.agreement.training.model_copy(update={"lr": 0.125})
    other = play.agreement.model_copy(update={"rounds": 7, "training": training, "classes": ("x", "y", "z")})
    assert [line.partition(":")[0] for line in differing_fields(other, told.fields)] == [
        "classes",
        "rounds",
        "training.lr",
    ]
    assert "rounds: here 7, at the coordinator 2" in differing_fields(other, told.fields)


def test_another_version_is_refused(play: Play) -> None:
    with pytest.raises(WrongProtocol):
        play.coordinator.check("b", CheckRequest(PROTOCOL_VERSION + 1))
