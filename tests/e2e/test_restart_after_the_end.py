"""Parties after a run: a site that missed the end, parties started again, and the next run in the same folders."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from protoseal_wire.messages import Phase
from secure_client.output.site_files import MODEL, PROTOTYPES
from secure_client.output.site_log import read_site_log
from tests.e2e.federations import check_saved, simulated, small_agreement, small_sites
from tests.e2e.kill_schedules import A_DAY
from tests.support.killed_party import Point, When
from tests.support.nursery import Nursery
from tests.support.processes import Federation, Running

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
def test_after_the_end_each_party_does_what_its_user_expects(tmp_path: Path, nursery: Nursery) -> None:
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
