"""A coordinator that stops, in good order or not: started again it goes on, and nobody submits anything by hand."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.e2e.federations import check_saved, simulated, small_agreement, small_sites
from tests.support.processes import Federation, frozen


def test_coordinator_stopped_and_killed_gives_the_same_result(tmp_path: Path) -> None:
    agreement, sites = small_agreement(rounds=2), small_sites(3)
    with Federation(tmp_path / "run", agreement, sites) as federation:
        federation.hold("site-1", 2)
        coordinator, running = federation.start_coordinator(), federation.start_sites()

        federation.wait_for_held("site-1")  # round 1 is complete, round 2 has nothing of site-1's yet
        coordinator.send(signal.SIGTERM)
        assert coordinator.exit_code() != 0  # the run is not over
        assert not federation.address_file.exists()
        coordinator = federation.start_coordinator()
        assert "resuming at PRESENCE of round 2" in coordinator.log()

        running["site-3"].wait_for_log("uploaded PRESENCE of round 2")
        with frozen(running["site-3"]):  # so that the round cannot be computed yet
            federation.release("site-1")
            running["site-1"].wait_for_log("uploaded VALUES of round 2")
            coordinator.kill()
            coordinator = federation.start_coordinator()
        assert "resuming at VALUES of round 2" in coordinator.log()

        assert [each.exit_code() for each in (*running.values(), coordinator)] == [0, 0, 0, 0]
        check_saved(federation, simulated(agreement, sites, tmp_path / "undisturbed"))
