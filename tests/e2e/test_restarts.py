"""Parties that stop and are started again: in a run, with renewed keys, short of sites, and at the end."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from crypto.errors import KeyStoreError
from crypto.pki.key_files import rewrap
from protoseal.commands.server import RunAbandoned
from protoseal_wire import codec
from protoseal_wire.messages import LeaveRequest, Phase
from secure_client.app import JOURNAL, STORAGE_KEY, open_party
from secure_client.config import load_site
from secure_client.output.site_files import MODEL, PROTOTYPES
from secure_client.output.site_log import read_site_log
from secure_client.protocol.setup import open_journal
from secure_server.store import Store
from tests.e2e.federations import check_saved, simulated, small_agreement, small_sites
from tests.e2e.killings import A_DAY
from tests.secure_server.service.harness import dialling
from tests.support.forked_processes import Nursery
from tests.support.killed_party import Point, When
from tests.support.processes import PATIENCE, Federation, Running, frozen


@pytest.mark.full
def test_coordinator_stopped_and_killed_resumes_with_the_same_result(tmp_path: Path) -> None:
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


@pytest.mark.full
def test_site_with_renewed_certificate_resumes_its_run(tmp_path: Path) -> None:
    agreement, sites = small_agreement(rounds=2), small_sites(3)
    with Federation(tmp_path / "run", agreement, sites) as federation:
        federation.hold("site-2", 1)
        coordinator, running = federation.start_coordinator(), federation.start_sites()
        running["site-1"].wait_for_log("uploaded PRESENCE of round 1")
        running["site-1"].kill()
        before = federation.credentials("site-1").fingerprint
        federation.renew("site-1")
        assert federation.credentials("site-1").fingerprint != before
        running["site-1"] = federation.start_site("site-1")
        federation.release("site-2")
        assert [each.exit_code() for each in (*running.values(), coordinator)] == [0, 0, 0, 0]
        check_saved(federation, simulated(agreement, sites, tmp_path / "undisturbed"))


def test_storage_key_lost_or_rewrapped_is_an_error(tmp_path: Path) -> None:
    """Its place, its loss and another passphrase; the certificate and its key do not matter."""
    agreement, sites = small_agreement(rounds=1), small_sites(3)
    with Federation(tmp_path, agreement, sites) as federation:
        folder, passphrase = federation.folder("site-1"), federation.passphrase
        config = load_site(folder / "site.toml")
        first = open_party(config, passphrase).storage()
        stored = first.encrypt(b"secret", b"name")
        federation.renew("site-1")
        again = open_party(config, passphrase)
        assert again.storage().decrypt(stored, b"name") == b"secret"
        open_journal(config.state_dir / JOURNAL, agreement, again).close()
        rewrap(config.state_dir / STORAGE_KEY, passphrase, b"another")
        with pytest.raises(KeyStoreError, match="pki passphrase"):
            again.storage()
        (config.state_dir / STORAGE_KEY).unlink()
        with pytest.raises(KeyStoreError, match="missing"):
            again.storage()


@pytest.mark.full
def test_run_short_of_sites_or_coordinator_stops_and_resumes(tmp_path: Path) -> None:
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


ROUNDS = 2
LATE, UNTOLD = "site-3", "site-2"
"""A site that dies before it has the last result, and one that dies before it is told that the run is over."""
GRACE = 31.0
"""Seconds, of the coordinator's stopped clock: more than it stays up for sites that lack nothing."""


def change(path: Path, old: str, new: str) -> None:
    text, count = re.subn(old, new, path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert count
    path.write_text(text, encoding="utf-8")


def refusal(running: Running) -> str:
    assert running.exit_code() == 1
    return running.log().strip().splitlines()[-1]


@pytest.mark.full
def test_parties_started_after_the_end_finish_or_refuse(tmp_path: Path, nursery: Nursery) -> None:
    agreement, sites = small_agreement(rounds=ROUNDS), small_sites(3)
    with Federation(
        tmp_path / "run", agreement, sites, gated=False, stopped_clock=True, nursery=nursery
    ) as federation:
        run_without_the_last_result_of_one(federation)
        without_a_coordinator_it_says_what_it_lacks(federation)
        a_coordinator_started_again_gives_it_the_last_result(federation)
        check_saved(federation, simulated(agreement, sites, tmp_path / "undisturbed"))
        saved = {path: path.read_bytes() for path in federation.folder(LATE).glob("*.safetensors")}
        what_is_complete_needs_nobody(federation)
        another_agreement_is_refused_by_what_differs(federation)
        the_next_run_needs_folders_of_its_own(federation)
        assert saved == {path: path.read_bytes() for path in saved}


def run_without_the_last_result_of_one(federation: Federation) -> None:
    coordinator = federation.start_coordinator()
    other = federation.start_site("site-1")
    untold = federation.start_site(UNTOLD, Point(When.SENT, Phase.RESULT, ROUNDS))
    late = federation.start_site(LATE, Point(When.ASKED, Phase.RESULT, ROUNDS))
    for each in (untold, late):
        each.exit_code()
    other.wait_for_log(f"uploaded RESULT of round {ROUNDS}")
    federation.let_pass(A_DAY)
    assert other.exit_code() == 0
    federation.let_pass(GRACE)
    assert coordinator.exit_code() == 0


def without_a_coordinator_it_says_what_it_lacks(federation: Federation) -> None:
    site_file = federation.folder(LATE) / "site.toml"
    patient = site_file.read_text(encoding="utf-8")
    change(site_file, "^retry_seconds = .*$", "retry_seconds = 0.1")
    assert f"the results of {ROUNDS - 1} of {ROUNDS} rounds" in refusal(federation.start_site(LATE))
    assert federation.start_site(UNTOLD).exit_code() == 0  # it has the last result, and lacks nothing
    site_file.write_text(patient, encoding="utf-8")


def a_coordinator_started_again_gives_it_the_last_result(federation: Federation) -> None:
    coordinator = federation.start_coordinator()
    coordinator.wait_for_log(f"is complete after {ROUNDS} rounds")
    coordinator.wait_for_log(f"for {LATE} to fetch the last result")
    federation.let_pass(GRACE)  # it waits longer for a site that lacks something
    late = federation.start_site(LATE)
    assert late.exit_code() == 0
    assert read_site_log(federation.folder(LATE)).rounds[-1].round == ROUNDS
    assert coordinator.exit_code() == 0


def what_is_complete_needs_nobody(federation: Federation) -> None:
    """Check that a complete run needs no coordinator, and that a site without results needs only its data.

    A coordinator that no site needs ends.
    """
    for name in (MODEL, PROTOTYPES):
        (federation.folder("site-1") / name).unlink()
    assert federation.start_site("site-1").exit_code() == 0
    assert (federation.folder("site-1") / MODEL).exists()
    (federation.folder("site-1") / "data.npz").unlink()
    again = federation.start_site("site-1")
    assert again.exit_code() == 0
    assert "The run is complete; the model, prototypes and privacy statement are in" in again.log()
    coordinator = federation.start_coordinator()
    coordinator.wait_for_log(f"is complete after {ROUNDS} rounds")
    federation.let_pass(GRACE)
    assert coordinator.exit_code() == 0


def another_agreement_is_refused_by_what_differs(federation: Federation) -> None:
    path = federation.root / "agreement.toml"
    agreed = path.read_text(encoding="utf-8")
    change(path, "^lr = .*$", "lr = 0.125")
    for party in (federation.start_site(LATE), start_coordinator(federation)):
        assert "run 'e2e' under another agreement (training.lr: was 0.01, is 0.125)" in refusal(party)
    path.write_text(agreed, encoding="utf-8")


def the_next_run_needs_folders_of_its_own(federation: Federation) -> None:
    change(federation.root / "agreement.toml", '^run = ".*"$', 'run = "next"')
    for party in (federation.start_site(LATE), start_coordinator(federation)):
        assert "belongs to run 'e2e', but the agreement is for run 'next'" in refusal(party)
    change(federation.folder(LATE) / "site.toml", '^state_dir = ".*"$', 'state_dir = "next"')
    assert "holds the model of run 'e2e'" in refusal(federation.start_site(LATE))


def start_coordinator(federation: Federation) -> Running:
    """Start a coordinator that is not expected to serve."""
    return Running(federation.root / "coordinator", "server", "run", "--config", "coordinator.toml")
