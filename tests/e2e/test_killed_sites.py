"""Sites that die in the middle of a round: back again, it is as if nothing had been; gone, the others end without."""

from __future__ import annotations

from pathlib import Path

import pytest

from secure_server.app import read_rounds
from tests.e2e.federations import check_saved, simulated, small_agreement, small_sites
from tests.e2e.killings import A_DAY
from tests.support.processes import Federation, frozen

pytestmark = pytest.mark.full


def test_a_site_killed_at_each_step_of_a_round_and_started_again_changes_nothing(tmp_path: Path) -> None:
    agreement, sites = small_agreement(rounds=3), small_sites(3)
    with Federation(tmp_path / "run", agreement, sites) as federation:
        federation.hold("site-1", 1)
        federation.hold("site-2", 2)
        coordinator, running = federation.start_coordinator(), federation.start_sites()

        federation.wait_for_held("site-1")
        running["site-1"].kill()  # in training
        federation.release("site-1")
        victim = federation.start_site("site-1")

        victim.wait_for_log("handed in PRESENCE of round 2")
        victim.kill()  # after it said that it takes part
        federation.hold("site-2", 3)
        victim = federation.start_site("site-1")

        running["site-3"].wait_for_log("handed in PRESENCE of round 3")
        with frozen(running["site-3"]):  # so that the round cannot be computed yet
            federation.release("site-2")
            victim.wait_for_log("handed in VALUES of round 3")
            victim.kill()  # after its upload
        running["site-1"] = federation.start_site("site-1")

        assert [each.exit_code() for each in (*running.values(), coordinator)] == [0, 0, 0, 0]
        check_saved(federation, simulated(agreement, sites, tmp_path / "undisturbed"))
        rounds = read_rounds(tmp_path / "run" / "coordinator" / "state" / "rounds.jsonl")
        assert [(each.round, each.attempt) for each in rounds] == [(1, 1), (2, 1), (3, 1)]


def test_a_site_that_stays_away_is_left_out_once_its_deadline_has_passed(tmp_path: Path) -> None:
    agreement, sites = small_agreement(rounds=2), small_sites(4)
    with Federation(tmp_path / "run", agreement, sites, stopped_clock=True) as federation:
        federation.hold("site-2", 1)
        coordinator, running = federation.start_coordinator(), federation.start_sites()
        victim = running.pop("site-1")
        victim.wait_for_log("handed in PRESENCE of round 1")
        victim.kill()
        federation.release("site-2")
        for each in running.values():
            each.wait_for_log("handed in VALUES of round 1")
        federation.let_pass(A_DAY)

        assert [each.exit_code() for each in (*running.values(), coordinator)] == [0, 0, 0, 0]
        check_saved(federation, simulated(agreement, sites[1:], tmp_path / "without"))
        rounds = read_rounds(tmp_path / "run" / "coordinator" / "state" / "rounds.jsonl")
        assert [(each.attempt, each.sites) for each in rounds] == [
            (2, ("site-2", "site-3", "site-4")),
            (1, ("site-2", "site-3", "site-4")),
        ]
