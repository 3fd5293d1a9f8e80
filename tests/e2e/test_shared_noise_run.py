"""Processes that share the noise of masked sums: what each pays, and a budget that ends in the middle of the run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agreement import Agreement, FeddbpSection, Noise, Norm, PrivacySection, Protection
from privacy.accounting.events import Unit
from privacy.ledger.budget_account import read_account
from privacy.ledger.ledger import Ledger
from privacy.ledger.lines import GUARANTEE, Limit, ReleaseName, Spending
from secure_client.output.site_files import read_prototypes
from secure_client.privacy.cost import planned_epsilon, release_event
from secure_server.app import read_rounds
from tests.e2e.federations import feddbp_agreement, small_sites
from tests.support.composed import epsilon
from tests.support.processes import Federation

pytestmark = pytest.mark.full

ROUNDS, PAID, DELTA = 3, 2, 1e-5
"""The run's rounds, and how many of them the first site has a budget for."""
SHARED = PrivacySection(clip=0.5, noise_multiplier=0.4, noise=Noise.DISTRIBUTED, colluding=1)


def agreement() -> Agreement:
    agreed = feddbp_agreement(rounds=ROUNDS, protection=Protection.MASKED)
    training = agreed.training.model_copy(update={"norm": Norm.GROUP})
    changes = {
        "privacy": SHARED,
        "feddbp": FeddbpSection(personal=False, decision=False),
        "training": training,
    }
    return Agreement.model_validate({**dict(agreed), **changes})


def test_shared_noise_site_without_budget_leaves_and_others_fill_in(tmp_path: Path) -> None:
    agreed, sites = agreement(), small_sites(4)
    limit = planned_epsilon(agreed, SHARED, DELTA)
    with Federation(tmp_path / "run", agreed, sites, gated=False) as federation:
        for name in federation.names:
            with (federation.folder(name) / "site.toml").open("a", encoding="utf-8") as file:
                file.write(
                    '[privacy]\ndataset = "scans"\nledger = "ledger.jsonl"\n'
                    f"epsilon = {limit!r}\ndelta = {DELTA}\nleast_colluding = 1\n"
                )
        # The site joins while it has room for the whole run; then another run over the same data spends.
        coordinator, poor = federation.start_coordinator(), federation.start_site("site-1")
        coordinator.wait_for_log("site-1 joined")
        other = Ledger(
            federation.folder("site-1") / "ledger.jsonl", "scans", Limit(limit, DELTA), epsilon=epsilon
        )
        event = release_event(agreed, SHARED)
        for number in range(ROUNDS - PAID):
            release = ReleaseName("other", number + 1, "prototypes")
            other.spend(Spending(release, bytes(32), event, {GUARANTEE: Unit.RECORD.value}))
        running = {name: federation.start_site(name) for name in federation.names if name != "site-1"}
        assert poor.exit_code() == 1
        assert f"prototypes of round {PAID + 1} in run 'e2e' would bring data set 'scans'" in poor.log()
        assert [each.exit_code() for each in (*running.values(), coordinator)] == [0, 0, 0, 0]

        rounds = read_rounds(tmp_path / "run" / "coordinator" / "state" / "rounds.jsonl")
        assert [len(each.sites) for each in rounds] == [4] * PAID + [3] * (ROUNDS - PAID)
        assert not any(each.abandoned for each in rounds)
        for name in federation.names:
            entries = read_account(federation.folder(name) / "ledger.jsonl").entries
            assert len(entries) == ROUNDS
            of_run = [each.spending.facts for each in entries if each.spending.release.run == "e2e"]
            assert {(each["noise"], each["colluding"]) for each in of_run} == {("distributed", 1)}
        results = [read_prototypes(federation.folder(name)) for name in running]
        assert not any(each.counts.any() for each in results)  # none has any of its own
        for each in results[1:]:
            np.testing.assert_array_equal(each.personal, results[0].personal)
        assert results[0].has_personal.any()
