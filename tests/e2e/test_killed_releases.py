"""Sites killed between every two steps of a release: the ledger never shows less than what left, and the run ends."""

from __future__ import annotations

import json
import signal
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from agreement import Agreement, Method, PrivacySection
from privacy.ledger.budget_account import read_account
from privacy.ledger.ledger import Ledger
from privacy.ledger.lines import Entry
from protoseal_wire.messages import Phase
from secure_client.privacy.cost import release_event
from tests.e2e.federations import small_agreement, small_sites
from tests.support.forked_processes import Nursery
from tests.support.killed_party import RELEASE
from tests.support.killed_spending import DEATH, LAST, LEDGER, PASSED, Fate
from tests.support.ledgers import exact_epsilon
from tests.support.processes import Federation, Running, wait_until

pytestmark = pytest.mark.full

SITES, ROUNDS, DELTA = 3, 7, 1e-5
PRIVACY = PrivacySection(clip=0.5, noise_multiplier=3.0, min_count=1.0, release_every=1)
IN_ORDER = [
    *("before open", "before fsync", "before write", "during write", "before fsync", "before draw"),
    *("before put", "before record", "before commit", "before upload", LAST),
]
"""Some of the steps; between them the ledger is read as well."""


def agreement(rounds: int) -> Agreement:
    return Agreement.model_validate(
        {**dict(small_agreement(rounds=rounds)), "method": Method.PFPL, "privacy": PRIVACY}
    )


def allow(federation: Federation) -> None:
    """Allow each release twice."""
    rounds = federation.agreement.rounds
    limit = exact_epsilon([release_event(federation.agreement, PRIVACY)] * (2 * rounds), DELTA)
    for name in federation.names:
        with (federation.folder(name) / "site.toml").open("a", encoding="utf-8") as file:
            file.write(
                f'[privacy]\ndataset = "scans"\nledger = "{LEDGER}"\nepsilon = {limit!r}\ndelta = {DELTA}\n'
            )


def start(federation: Federation, name: str, fate: Fate) -> Running:
    for each in (DEATH, PASSED):
        (federation.folder(name) / each).unlink(missing_ok=True)
    return federation.start_site(name, own={RELEASE: fate.to_text()})


def where_it_died(federation: Federation, name: str, running: Running) -> str | None:
    """Return the step at which the site died, or None if it survived the release."""
    passed = federation.folder(name) / PASSED
    wait_until(lambda: running.is_over() or passed.exists(), f"the end of {name}, or of its release")
    if passed.exists():
        return None
    assert running.exit_code() == -signal.SIGKILL, running.log()
    where: str = json.loads((federation.folder(name) / DEATH).read_text(encoding="utf-8"))["where"]
    return where


def left(federation: Federation, name: str) -> set[int]:
    """Return the rounds in which the coordinator has what the site released."""
    path = federation.root / "coordinator" / "state" / "coordinator.sqlite"
    query = "SELECT DISTINCT round FROM uploads WHERE site = ? AND phase = ?"
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        return {number for (number,) in database.execute(query, (name, int(Phase.PRESENCE)))}


def paid(path: Path) -> list[int]:
    """Return the rounds whose releases are in a ledger, mended as a site does that opens it."""
    account = read_account(path)
    ledger = Ledger(path, account.budget.dataset, account.limit, epsilon=exact_epsilon)
    assert all(isinstance(each, Entry) for each in read_account(ledger.path).entries)
    return [each.spending.release.round for each in read_account(ledger.path).entries]


def check_nothing_hidden(federation: Federation, name: str, scratch: Path) -> None:
    """Check that all releases that left are paid for, on the disk as it is and as a power cut would leave it."""
    folder, sent = federation.folder(name), left(federation, name)
    size = json.loads((folder / DEATH).read_text(encoding="utf-8"))["left"]
    whole, cut = scratch / "whole", scratch / "cut"
    whole.write_bytes((folder / LEDGER).read_bytes())
    cut.write_bytes(whole.read_bytes()[:size])
    assert sent <= set(paid(whole)), "a release is not in the ledger"
    assert sent <= (set(paid(cut)) if size else set()), "a release is not on the disk"


def check_ended(federation: Federation, running: Sequence[Running]) -> None:
    assert [each.exit_code() for each in running] == [0] * len(running)
    for name in federation.names:
        numbers = paid(federation.folder(name) / LEDGER)
        assert left(federation, name) == set(numbers) == set(range(1, federation.agreement.rounds + 1))
        assert all(numbers.count(number) <= 2 for number in numbers)


def test_release_killed_between_any_two_steps_hides_no_payment(tmp_path: Path, nursery: Nursery) -> None:
    """Each site dies at another step in each round, until one site survives all steps: then every step was tried."""
    agreed, sites = agreement(ROUNDS), small_sites(SITES)
    with Federation(tmp_path / "run", agreed, sites, gated=False, nursery=nursery) as federation:
        allow(federation)
        coordinator, died, steps = federation.start_coordinator(), list[str](), list[str]()
        running = {name: start(federation, name, Fate(1, at)) for at, name in enumerate(federation.names, 1)}
        for number in range(1, ROUNDS + 1):
            for at, name in enumerate(federation.names, SITES * number + 1):
                if steps:
                    continue
                where = where_it_died(federation, name, running[name])
                if where is None:
                    steps = json.loads((federation.folder(name) / PASSED).read_text(encoding="utf-8"))
                    continue
                died.append(where)
                check_nothing_hidden(federation, name, tmp_path)
                running[name] = start(federation, name, Fate(number + 1, at))
        assert died == steps
        in_order = iter(steps)
        assert all(step in in_order for step in IN_ORDER), steps
        check_ended(federation, (*running.values(), coordinator))


def test_release_paid_late_or_unsynced_is_noticed(tmp_path: Path, nursery: Nursery) -> None:
    doubles = {"site-1": "", "site-2": "not synced", "site-3": "sent first"}
    with Federation(
        tmp_path / "run", agreement(1), small_sites(SITES), gated=False, nursery=nursery
    ) as federation:
        allow(federation)
        federation.start_coordinator()
        for name, running in [
            (name, start(federation, name, Fate(1, LAST, double))) for name, double in doubles.items()
        ]:
            assert where_it_died(federation, name, running) == LAST
        check_nothing_hidden(federation, "site-1", tmp_path)
        with pytest.raises(AssertionError, match="disk"):
            check_nothing_hidden(federation, "site-2", tmp_path)
        with pytest.raises(AssertionError, match="ledger"):
            check_nothing_hidden(federation, "site-3", tmp_path)
