"""Processes whose prototypes are noisy: a budget that ends in the middle of a run, and a site that is killed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from agreement import Agreement, Method, PrivacySection, Protection
from privacy.accounting.events import Unit
from privacy.ledger.budget_account import read_account
from privacy.ledger.ledger import Ledger
from privacy.ledger.lines import GUARANTEE, RECORDS, Limit, ReleaseName, Spending
from protoseal.commands.budget_audit import EXIT_CODES, audit_group
from secure_client.config import load_site
from secure_client.output.site_files import read_prototypes
from secure_client.privacy.cost import planned_epsilon, release_event
from secure_client.site_check import check_site
from secure_server.app import read_rounds
from secure_server.store import Store
from tests.e2e.federations import small_agreement, small_sites
from tests.support.composed import epsilon
from tests.support.processes import Federation

pytestmark = pytest.mark.full

ROUNDS, PAID = 4, 2
"""The run's, and how many of them the first site has a budget for."""
PRIVACY = PrivacySection(clip=0.5, noise_multiplier=0.4, min_count=1.0, release_every=1)
DELTA = 1e-5


def agreement() -> Agreement:
    agreed = small_agreement(rounds=ROUNDS, protection=Protection.CKKS)
    return Agreement.model_validate({**dict(agreed), "method": Method.PFPL, "privacy": PRIVACY})


def allow(federation: Federation, site: str, limit: float, *, keep: bool = False) -> None:
    """[privacy] in the site's file."""
    with (federation.folder(site) / "site.toml").open("a", encoding="utf-8") as file:
        file.write(
            f'[privacy]\ndataset = "scans"\nledger = "ledger.jsonl"\nepsilon = {limit!r}\ndelta = {DELTA}\n'
            f"keep_releases = {str(keep).lower()}\n"
        )


def spent_meanwhile(federation: Federation, site: str, limit: float, releases: int) -> None:
    """Spend releases of another run over the same data, which began when both runs had room."""
    ledger = Ledger(federation.folder(site) / "ledger.jsonl", "scans", Limit(limit, DELTA), epsilon=epsilon)
    for number in range(1, releases + 1):
        event = release_event(federation.agreement, PRIVACY)
        ledger.spend(
            Spending(
                ReleaseName("other", number, "prototypes"), bytes(32), event, {GUARANTEE: Unit.RECORD.value}
            )
        )


def check_that_begins_nothing(folder: Path) -> None:
    """Check that a site's check without readable data leaves no ledger, whose unit and limit would then be settled."""
    data, away = folder / "data.npz", folder / "away.npz"
    data.rename(away)
    checked = check_site(load_site(folder / "site.toml"), lambda: b"")
    assert not next(each for each in checked if each.what == "privacy").ok
    assert not (folder / "ledger.jsonl").exists()
    away.rename(data)


def test_site_without_budget_leaves_and_the_run_continues(tmp_path: Path) -> None:
    agreed, sites = agreement(), small_sites(4)
    limit = planned_epsilon(agreed, PRIVACY, DELTA)
    with Federation(tmp_path / "run", agreed, sites, gated=False) as federation:
        for name in federation.names:
            allow(federation, name, limit)
        check_that_begins_nothing(federation.folder("site-1"))
        coordinator, poor = federation.start_coordinator(), federation.start_site("site-1")
        coordinator.wait_for_log("site-1 joined")
        spent_meanwhile(federation, "site-1", limit, ROUNDS - PAID)
        checked = check_site(load_site(federation.folder("site-1") / "site.toml"), lambda: b"")
        finding = next(each for each in checked if each.what == "privacy")
        assert not finding.ok
        assert f"'scans' does not cover round {PAID + 1} of {ROUNDS}" in finding.detail
        running = {name: federation.start_site(name) for name in federation.names if name != "site-1"}

        assert poor.exit_code() == 1
        log = poor.log()
        assert f"prototypes of round {PAID + 1} in run 'e2e' would bring data set 'scans' to epsilon" in log
        assert "0 releases with noise multiplier 0.4 remain" in log
        stated = (federation.folder("site-1") / "privacy-statement.html").read_text(encoding="utf-8")
        assert f"Paid for are {PAID} of {ROUNDS} planned releases; the run ended early" in stated
        assert [each.exit_code() for each in (*running.values(), coordinator)] == [0, 0, 0, 0]

        rounds = read_rounds(tmp_path / "run" / "coordinator" / "state" / "rounds.jsonl")
        assert [set(each.sites) for each in rounds] == [
            set(federation.names) - ({"site-1"} if number > PAID else set())
            for number in range(1, ROUNDS + 1)
        ]
        assert len(read_account(federation.folder("site-1") / "ledger.jsonl").entries) == ROUNDS
        assert received(federation, "site-1") == set(range(1, PAID + 1))
        for name in running:
            figures = json.loads((federation.folder(name) / "site.json").read_text(encoding="utf-8"))
            spent = [each["epsilon"] for each in figures["rounds"]]
            assert spent == sorted(spent)
            assert spent[-1] == limit
            assert all(each["guaranteed"] for each in figures["rounds"])


def received(federation: Federation, site: str) -> set[int]:
    """Return the rounds from 1 of which the coordinator has anything from the site."""
    agreed = federation.agreement
    path = federation.root / "coordinator" / "state" / "coordinator.sqlite"
    with Store.open(path, agreed.run, agreed.hash(), record=True) as store:
        return {
            each.key.round for each in store.received() if each.site == site and each.key and each.key.round
        }


def test_site_killed_and_restarted_has_paid_for_all_it_sent(tmp_path: Path) -> None:
    """One release may be paid for twice: the site may die between paying for the release and keeping it."""
    agreed, sites = agreement(), small_sites(3)
    limit = epsilon([release_event(agreed, PRIVACY)] * (ROUNDS + 1), DELTA)
    with Federation(tmp_path / "run", agreed, sites, gated=False) as federation:
        for name in federation.names:
            allow(federation, name, limit, keep=name == "site-1")
        coordinator, running = federation.start_coordinator(), federation.start_sites()
        victim = running["site-1"]
        victim.wait_for_log("uploaded PRESENCE of round 2")
        victim.kill()
        running["site-1"] = federation.start_site("site-1")
        assert [each.exit_code() for each in (*running.values(), coordinator)] == [0, 0, 0, 0]
        for name in federation.names:
            entries = read_account(federation.folder(name) / "ledger.jsonl").entries
            noted = [RECORDS in each.spending.facts for each in entries]
            assert noted[0]
            assert sum(noted) == (2 if name == "site-1" else 1)  # the first payment after each start
            rounds = [each.spending.release.round for each in entries]
            assert rounds == sorted(rounds)
            assert set(rounds) == set(range(1, ROUNDS + 1))
            assert len(rounds) <= ROUNDS + (name == "site-1")
            assert np.isfinite(read_prototypes(federation.folder(name)).local).all()
            stated = json.loads(
                (federation.folder(name) / "privacy-statement.json").read_text(encoding="utf-8")
            )
            assert (stated["site"], stated["guaranteed"], len(stated["runs"])) == (name, True, 1)
            assert stated["epsilon"] == epsilon([entry.spending.event for entry in entries], DELTA)
            assert stated["statement"] in (federation.folder(name) / "privacy-statement.html").read_text(
                encoding="utf-8"
            ).replace("&#39;", "'")
        assert audited(federation.folder("site-1")) == (EXIT_CODES["stands"], "stands")
        assert audited(federation.folder("site-2")) == (EXIT_CODES["too weak to tell"], "too weak to tell")


def audited(folder: Path) -> tuple[int, str]:
    """Return exit code and verdict of the audit of a site's run, at the site."""
    arguments = ["run", str(folder / "state"), "--config", str(folder / "site.toml"), "--json"]
    result = CliRunner().invoke(audit_group, arguments)
    return result.exit_code, json.loads(result.stdout)["runs"][0]["verdict"]
