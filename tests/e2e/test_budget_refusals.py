"""Sites whose own files allow less than the agreement asks for: their processes say why and send nothing.

Less noise, a larger clip and more rounds are refused when a site's file is loaded; more ε when the site starts, before
it has a ledger, since only then what the whole run takes is known.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from agreement import Agreement, Method, PrivacySection
from privacy.ledger.budget_account import read_account
from secure_client.privacy.cost import planned_epsilon
from secure_server.app import read_rounds
from secure_server.store import Store
from tests.e2e.federations import small_agreement, small_sites
from tests.e2e.killings import A_DAY
from tests.support.processes import Federation

pytestmark = pytest.mark.full

ROUNDS, DELTA, AMPLE = 2, 1e-5, 100.0
PRIVACY = PrivacySection(clip=0.5, noise_multiplier=3.0, min_count=1.0, release_every=1)
OTHERS = ("site-1", "site-2", "site-3")


def agreement() -> Agreement:
    agreed = small_agreement(rounds=ROUNDS)
    return Agreement.model_validate({**dict(agreed), "method": Method.PFPL, "privacy": PRIVACY})


def asked(planned: float) -> dict[str, tuple[float, str, str]]:
    """Return for each site the ε that it allows, another limit of its own, and the reason that it logs."""
    most = planned / 2
    allowed = "that this site allows is"
    return {
        "site-4": (most, "", f"{ROUNDS} releases with noise multiplier 3 take epsilon {planned:.4g}"),
        "site-5": (
            AMPLE,
            "least_noise_multiplier = 3.1",
            f"has noise multiplier 3, but the least {allowed} 3.1",
        ),
        "site-6": (AMPLE, "largest_clip = 0.4", f"has clip 0.5, but the largest {allowed} 0.4"),
        "site-7": (AMPLE, "most_rounds = 1", f"has rounds 2, but the most {allowed} 1"),
    }


def allow(federation: Federation, name: str, limit: float, further: str = "") -> None:
    with (federation.folder(name) / "site.toml").open("a", encoding="utf-8") as file:
        file.write(
            f'[privacy]\ndataset = "scans"\nledger = "ledger.jsonl"\nepsilon = {limit!r}\ndelta = {DELTA}\n{further}\n'
        )


def senders(federation: Federation) -> set[str]:
    """Return the sites of which the coordinator has anything at all."""
    agreed = federation.agreement
    path = federation.root / "coordinator" / "state" / "coordinator.sqlite"
    with Store.open(path, agreed.run, agreed.hash(), record=True) as store:
        return {each.site for each in store.received()}


def test_site_asked_for_more_than_its_budget_refuses_to_join(tmp_path: Path) -> None:
    """The refusing sites never join; once the time for joining is over, the coordinator begins without them."""
    agreed, sites = agreement(), small_sites(7)
    refusals = asked(planned_epsilon(agreed, PRIVACY, DELTA))
    with Federation(tmp_path / "run", agreed, sites, gated=False, stopped_clock=True) as federation:
        for name in OTHERS:
            allow(federation, name, AMPLE)
        for name, (limit, further, _) in refusals.items():
            allow(federation, name, limit, further)
        coordinator, running = federation.start_coordinator(), federation.start_sites()
        for name, (_, _, reason) in refusals.items():
            refusing = running.pop(name)
            assert refusing.exit_code() == 1
            assert reason in " ".join(refusing.log().split())
            assert not (federation.folder(name) / "ledger.jsonl").exists()
            assert not (federation.folder(name) / "prototypes.safetensors").exists()
        assert set(running) == set(OTHERS)
        for name in OTHERS:
            coordinator.wait_for_log(f"{name} joined")
        assert "PRESENCE" not in coordinator.log()
        federation.let_pass(A_DAY)
        assert [each.exit_code() for each in (*running.values(), coordinator)] == [0, 0, 0, 0]
        assert not any(f"{name} joined" in coordinator.log() for name in refusals)
        assert senders(federation) == set(OTHERS)
        rounds = read_rounds(tmp_path / "run" / "coordinator" / "state" / "rounds.jsonl")
        assert [set(each.sites) for each in rounds] == [set(OTHERS)] * ROUNDS
        for name in OTHERS:
            assert len(read_account(federation.folder(name) / "ledger.jsonl").entries) == ROUNDS
