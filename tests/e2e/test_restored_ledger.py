"""A site whose ledger is an older copy takes part in another run: the coordinator's record stops it, or its peers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agreement import Agreement, Method, PrivacySection
from agreement.storage.anchor_record import AnchorRecord, anchor_key
from privacy.errors import RolledBackError
from privacy.ledger.budget_account import read_account
from privacy.ledger.lines import is_guaranteed
from secure_client.config import load_site
from secure_client.output.site_log import read_site_log
from secure_client.privacy.cost import release_event
from secure_client.privacy.ledger_anchors import PEERS, check_recorded
from secure_client.site_check import check_site
from tests.e2e.federations import small_agreement, small_sites
from tests.support.forked_processes import Nursery
from tests.support.killed_party import RELEASE
from tests.support.killed_spending import UNHARMED
from tests.support.ledgers import exact_epsilon
from tests.support.processes import Federation, Running, wait_until

pytestmark = pytest.mark.full

PRIVACY = PrivacySection(clip=0.5, noise_multiplier=3.0, min_count=1.0)
DELTA = 1e-5
VICTIM = "site-1"


def agreement() -> Agreement:
    agreed = small_agreement(rounds=1)
    return Agreement.model_validate({**dict(agreed), "method": Method.PFPL, "privacy": PRIVACY})


def allow(federation: Federation) -> None:
    """Allow each site more than these runs take, and one run without noise."""
    limit = exact_epsilon([release_event(federation.agreement, PRIVACY)] * 9, DELTA)
    for name in federation.names:
        with (federation.folder(name) / "site.toml").open("a", encoding="utf-8") as file:
            file.write(
                f'[privacy]\ndataset = "scans of {name}"\nledger = "ledger.jsonl"\nepsilon = {limit!r}\n'
                "allow_no_guarantee = true\n"
            )


def name_run(federation: Federation, run: str) -> None:
    """Everybody is about to take part in another one, in a state_dir and an out of its own."""
    files = [federation.root / "agreement.toml", federation.root / "coordinator" / "coordinator.toml"]
    for path in (*files, *(federation.folder(name) / "site.toml" for name in federation.names)):
        text = path.read_text(encoding="utf-8")
        text = re.sub('^run = ".*"$', f'run = "{run}"', text, flags=re.MULTILINE)
        text = re.sub('^state_dir = ".*"$', f'state_dir = "state-of-{run}"', text, flags=re.MULTILINE)
        text = re.sub('^out = ".*"$', f'out = "out-of-{run}"', text, flags=re.MULTILINE)
        path.write_text(text, encoding="utf-8")


def run_to_end(federation: Federation) -> None:
    coordinator, sites = start(federation)
    assert [each.exit_code() for each in (*sites.values(), coordinator)] == [0] * (len(sites) + 1)


def start(federation: Federation) -> tuple[Running, dict[str, Running]]:
    own = {RELEASE: UNHARMED.to_text()}
    coordinator = federation.start_coordinator()
    return coordinator, {name: federation.start_site(name, own=own) for name in federation.names}


def kill(coordinator: Running, sites: dict[str, Running]) -> None:
    for each in (coordinator, *sites.values()):
        each.kill()


def ledger(federation: Federation, name: str) -> Path:
    return federation.folder(name) / "ledger.jsonl"


def kept(path: Path, federation: Federation) -> tuple[int, str]:
    """Return number and hash of the victim's ledger's last entry in a party's record."""
    key = anchor_key(federation.agreement.federation, VICTIM, f"scans of {VICTIM}")
    with AnchorRecord.open(path) as record:
        held = record.newest(VICTIM, key)
    assert held is not None
    return held.seq, held.head.hex()


def told(federation: Federation, name: str) -> list[tuple[float | None, bool]]:
    """Return ε of each round in ``site.json``, and whether it is guaranteed."""
    out = load_site(federation.folder(name) / "site.toml").out
    return [(each.epsilon, each.guaranteed) for each in read_site_log(out).rounds]


def test_older_ledger_is_refused_by_coordinator_or_peers(tmp_path: Path, nursery: Nursery) -> None:
    """The older ledger lacks a run with noise and a run without noise, after which nothing was guaranteed any more."""
    with Federation(
        tmp_path / "run", agreement(), small_sites(3), gated=False, nursery=nursery
    ) as federation:
        allow(federation)
        path, spent = ledger(federation, VICTIM), exact_epsilon([release_event(agreement(), PRIVACY)], DELTA)
        run_to_end(federation)
        assert told(federation, VICTIM) == [(spent, True)]
        older = path.read_bytes()

        with without_noise(federation):
            name_run(federation, "exact")
            assert privacy_checked(federation).startswith("NO GUARANTEE")
            assert not read_account(path).exposures  # nothing has left yet
            run_to_end(federation)
        account = read_account(path)
        assert [each.run for each in account.exposures] == ["exact"]
        record = federation.root / "coordinator" / "anchors.sqlite"
        theirs = [ledger(federation, name).with_name("ledger.jsonl" + PEERS) for name in ("site-2", "site-3")]
        assert [kept(each, federation) for each in (record, *theirs)] == [account.anchor] * 3
        assert told(federation, VICTIM) == [(spent, False)]

        name_run(federation, "second")
        run_to_end(federation)  # nobody takes a ledger that went on for one that was put back
        account = read_account(path)
        assert [is_guaranteed(each) for each in account.entries] == [True, True]
        assert [guaranteed for _, guaranteed in told(federation, VICTIM)] == [account.guaranteed] == [False]
        newest = account.anchor
        assert newest.seq == 3
        assert [kept(each, federation) for each in (record, *theirs)] == [newest] * 3
        path.write_bytes(older)
        with pytest.raises(RolledBackError):  # by what it keeps beside its ledger
            check_recorded(load_site(federation.folder(VICTIM) / "site.toml").privacy)  # type: ignore[arg-type]
        path.with_name("ledger.jsonl" + PEERS).unlink()

        name_run(federation, "third")
        coordinator, sites = start(federation)
        assert sites[VICTIM].exit_code() == 1
        assert "ends with entry 1, and entry 3 was acknowledged" in sites[VICTIM].log()
        assert "the coordinator reports entry 3" in sites[VICTIM].log()
        coordinator.wait_for_log(f"{VICTIM}: the privacy ledger ends with entry 1")
        coordinator.wait_for_log(f"{VICTIM} left")
        kill(coordinator, sites)
        assert path.read_bytes() == older

        record.unlink()
        name_run(federation, "fourth")
        coordinator, sites = start(federation)
        peers = [sites[name] for name in ("site-2", "site-3")]
        # Once one has left there is no attempt any more, and perhaps the other was never shown the statement.
        wait_until(lambda: any(each.is_over() for each in peers), "a peer that leaves")
        first = next(each for each in peers if each.is_over())
        assert first.exit_code() == 1
        assert f"{VICTIM}'s privacy ledger ends with entry 2, but has had entry 3" in first.log()
        kill(coordinator, sites)
        assert [kept(each, federation) for each in theirs] == [newest] * 2


def privacy_checked(federation: Federation) -> str:
    """Return the privacy line that `client check` prints for the victim."""
    found = check_site(load_site(federation.folder(VICTIM) / "site.toml"), lambda: b"")
    return next(each.detail for each in found if each.what == "privacy" and each.ok)


@contextmanager
def without_noise(federation: Federation) -> Iterator[None]:
    """Replace the agreement by the same one without noise, for a while."""
    path = federation.root / "agreement.toml"
    noisy = path.read_text(encoding="utf-8")
    path.write_text(noisy.partition("[privacy]")[0], encoding="utf-8")
    yield
    path.write_text(noisy, encoding="utf-8")
