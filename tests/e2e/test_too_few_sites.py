"""Runs that cannot go on end with a reason on both sides, within their deadlines, and can be taken up again."""

from __future__ import annotations

from pathlib import Path

import pytest

from protoseal.commands.server import RunAbandoned
from protoseal_wire import codec
from protoseal_wire.messages import LeaveRequest
from secure_server.storage.store import Store
from tests.e2e.federations import check_saved, simulated, small_agreement, small_sites
from tests.e2e.kill_schedules import A_DAY
from tests.secure_server.service.harness import dialling
from tests.support.processes import PATIENCE, Federation, Running

pytestmark = pytest.mark.full


def test_a_run_short_of_sites_or_without_a_coordinator_stops_and_can_be_continued(tmp_path: Path) -> None:
    agreement, sites = small_agreement(rounds=3), small_sites(3)
    with Federation(
        tmp_path / "run",
        agreement,
        sites,
        max_attempts=1,
        retry_seconds=5.0,
        stopped_clock=True,
    ) as federation:
        _lose_a_site_in_round_2(federation)
        _lose_the_coordinator_in_round_3(federation)
        _have_everybody_leave(federation)
        coordinator, running = federation.start_coordinator(), federation.start_sites()
        assert [each.exit_code() for each in (*running.values(), coordinator)] == [0, 0, 0, 0]
        check_saved(federation, simulated(agreement, sites, tmp_path / "undisturbed"))


def _lose_a_site_in_round_2(federation: Federation) -> None:
    federation.hold("site-2", 2)
    coordinator, running = federation.start_coordinator(), federation.start_sites()
    victim = running.pop("site-1")
    victim.wait_for_log("uploaded PRESENCE of round 2")
    victim.kill()
    federation.release("site-2")
    for each in running.values():
        each.wait_for_log("uploaded VALUES of round 2")
    federation.let_pass(A_DAY)
    for each in (*running.values(), coordinator):
        assert each.exit_code() != 0
        assert "round 2, attempt 1: no values from site-1" in _last_line(each)


def _lose_the_coordinator_in_round_3(federation: Federation) -> None:
    federation.hold("site-1", 3)
    coordinator, running = federation.start_coordinator(), federation.start_sites()
    assert "resuming at STOPPED of round 2" in coordinator.log()
    federation.wait_for_held("site-1")
    coordinator.kill()
    federation.release("site-1")
    for each in running.values():
        assert each.exit_code() != 0
        assert "the coordinator cannot be reached" in _last_line(each)


def _have_everybody_leave(federation: Federation) -> None:
    path, agreed = federation.root / "coordinator" / "state" / "coordinator.sqlite", federation.agreement
    with Store.open(path, agreed.run, agreed.hash()) as store:
        state = store.load()
    assert state is not None
    coordinator = federation.start_coordinator()
    for name in federation.names:
        leave = codec.encode_leave(LeaveRequest(state.session(name)))
        with dialling(federation.port, federation.trust, federation.credentials(name)) as stub:
            stub.Leave(leave, timeout=PATIENCE)
    coordinator.wait_for_log("the run stops in 900 s")
    federation.let_pass(901.0)
    assert coordinator.exit_code() == RunAbandoned.exit_code
    assert "round 3: every site left or fell silent" in _last_line(coordinator)


def _last_line(running: Running) -> str:
    return running.log().strip().splitlines()[-1]
