"""``client check`` beside a coordinator that serves: each wrong configuration fails in the check that is about it."""

from __future__ import annotations

import json
import logging
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from agreement import Agreement, Method, PrivacySection
from crypto.keys import StorageKey
from crypto.pki.key_files import create_storage_key
from privacy.accounting.accounting_rules import pld_cost
from privacy.accounting.events import Unit
from privacy.errors import BudgetError
from privacy.ledger.ledger import Ledger
from privacy.ledger.lines import GUARANTEE, RECORDS, Limit, ReleaseName, Spending
from protoseal.cli import main
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.app import JOURNAL, STORAGE_KEY, open_party, run_site, sketch_records
from secure_client.config import load_site
from secure_client.errors import DataError, Unreachable
from secure_client.output.site_files import MODEL, write_agreement
from secure_client.privacy.cost import planned_epsilon, release_event
from secure_client.privacy.record_overlap import RECORDS_KEY, open_records_key
from secure_client.protocol.setup import open_journal
from secure_client.site_check import CheckFinding, check_site
from tests.e2e.federations import small_agreement, small_sites
from tests.support.connect_proxy import connect_proxy
from tests.support.processes import Federation, environment

ROUNDS, DELTA = 2, 1e-5
PRIVACY = PrivacySection(clip=0.5, noise_multiplier=0.4, min_count=1.0, release_every=1)
AT_THE_COORDINATOR = {"coordinator", "listed", "same agreement", "run"}


def agreement() -> Agreement:
    agreed = small_agreement(rounds=ROUNDS)
    return Agreement.model_validate({**dict(agreed), "method": Method.PFPL, "privacy": PRIVACY})


LIMIT = planned_epsilon(agreement(), PRIVACY, DELTA)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A coordinator that waits for sites, of which none ever joins."""
    root = tmp_path_factory.mktemp("check") / "net"
    with Federation(root, agreement(), small_sites(3), gated=False) as begun:
        begun.start_coordinator()
        yield begun


@dataclass
class Site:
    """A copy of a site's folder, for one test to spoil."""

    federation: Federation
    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "site.toml"

    def change(self, path: Path, old: str, new: str) -> None:
        """Replace what the regular expression matches."""
        text, count = re.subn(old, new, path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert count
        path.write_text(text, encoding="utf-8")

    def own_agreement(self, old: str, new: str) -> None:
        """Hold another agreement than the coordinator."""
        shutil.copy(self.federation.root / "agreement.toml", self.folder)
        self.change(self.file, r'^agreement = ".*"$', 'agreement = "agreement.toml"')
        self.change(self.folder / "agreement.toml", old, new)

    def spend(self, releases: int) -> None:
        """Spend as many releases of an earlier run as this run has."""
        ledger = Ledger(self.folder / "ledger.jsonl", "scans", Limit(LIMIT, DELTA), epsilon=pld_cost)
        for number in range(1, releases + 1):
            release, guarantee = ReleaseName("earlier", number, "prototypes"), {GUARANTEE: Unit.RECORD.value}
            ledger.spend(Spending(release, bytes(32), release_event(agreement(), PRIVACY), guarantee))

    def begin(self, run: str = "e2e") -> None:
        """Leave the state of a run in which this site has a secret and has answered once."""
        config = load_site(self.file)
        agreed = config.agreement.model_copy(update={"run": run})
        party = open_party(config, (self.folder / "passphrase").read_bytes())
        with open_journal(config.state_dir / JOURNAL, agreed, party) as journal:
            journal.put_secret("channel key", b"a secret")
            journal.record(PhaseKey(run, 0, 1, Phase.ROSTER), b"request", b"answer")
        write_agreement(config.state_dir, agreed)

    def findings(self) -> dict[str, CheckFinding]:
        config = load_site(self.file)
        return {each.what: each for each in check_site(config, (self.folder / "passphrase").read_bytes)}


@pytest.fixture
def site(federation: Federation) -> Iterator[Site]:
    folder = federation.root / "sites" / "copy"
    shutil.copytree(federation.folder("site-1"), folder)
    with (folder / "site.toml").open("a", encoding="utf-8") as file:
        file.write(
            f'[privacy]\ndataset = "scans"\nledger = "ledger.jsonl"\nepsilon = {LIMIT!r}\ndelta = {DELTA}\n'
        )
    yield Site(federation, folder)
    shutil.rmtree(folder)


def exhaust_the_budget(site: Site) -> None:
    site.spend(ROUNDS)


def leave_budget_for_one_round(site: Site) -> None:
    site.spend(ROUNDS - 1)


def agree_on_another_rate(site: Site) -> None:
    site.own_agreement(r"^lr = .*$", "lr = 0.125")


def agree_on_another_run(site: Site) -> None:
    site.own_agreement(r'^run = ".*"$', 'run = "another"')


def be_no_site_of_the_list(site: Site) -> None:
    site.federation.enrol("stranger")
    for name in ("certificate.pem", "key.pem"):
        shutil.copy(site.federation.folder("stranger") / name, site.folder)
    site.change(site.file, r'^name = ".*"$', 'name = "stranger"')


def have_colour_images(site: Site) -> None:
    path = site.folder / "data.npz"
    colours = dict(np.load(path).items())
    for name in ("x_train", "x_test"):
        colours[name] = np.repeat(colours[name], 3, axis=-1)
    np.savez(path, allow_pickle=False, **colours)


def have_twelve_bits(site: Site) -> None:
    path = site.folder / "data.npz"
    dark = dict(np.load(path).items())
    dark["x_train"] = (
        np.linspace(0, 4095, dark["x_train"].size).astype(np.uint16).reshape(dark["x_train"].shape)
    )
    np.savez(path, allow_pickle=False, **dark)


def have_begun(site: Site) -> None:
    site.begin()


def lose_the_key_of_the_state(site: Site) -> None:
    site.begin()
    with sqlite3.connect(site.folder / "state" / JOURNAL) as database:
        other = StorageKey(bytes(32)).encrypt(b"a secret", b"channel key")
        database.execute("UPDATE secrets SET sealed = ?", (other,))
    database.close()


def lose_the_storage_key(site: Site) -> None:
    site.begin()
    (site.folder / "state" / STORAGE_KEY).unlink()


def have_the_state_of_another_run(site: Site) -> None:
    site.begin("earlier")


def have_a_folder_for_a_journal(site: Site) -> None:
    (site.folder / "state").mkdir(0o700)
    (site.folder / "state" / JOURNAL).mkdir()


def have_the_model_of_another_run(site: Site) -> None:
    (site.folder / "out").mkdir()
    site.change(site.file, r'^out = ".*"$', 'out = "out"')
    (site.folder / "out" / MODEL).write_bytes(b"a model")
    write_agreement(site.folder / "out", agreement().model_copy(update={"run": "earlier"}))


def have_no_folder_to_write_to(site: Site) -> None:
    site.change(site.file, r'^out = ".*"$', 'out = "data.npz/out"')


def dial_a_wrong_address(site: Site) -> None:
    site.change(site.file, r'^coordinator = ".*"$', 'coordinator = "127.0.0.1:9"')


def do_nothing(_: Site) -> None:
    """Change nothing."""


CASES: dict[str, tuple[Callable[[Site], None], set[str], str]] = {
    "nothing": (do_nothing, set(), ""),
    "a run that has begun": (have_begun, set(), ""),
    "an exhausted budget": (exhaust_the_budget, {"privacy"}, "round 1 of 2"),
    "a budget for one round": (leave_budget_for_one_round, {"privacy"}, "round 2 of 2"),
    "another agreement": (
        agree_on_another_rate,
        {"same agreement"},
        "training.lr: here 0.125, at the coordinator",
    ),
    "another run": (agree_on_another_run, {"same agreement", "run"}, 'run: here "another"'),
    "not listed": (be_no_site_of_the_list, AT_THE_COORDINATOR - {"coordinator"}, "coordinator.toml"),
    "other channels": (have_colour_images, {"data and model", "data", "privacy"}, "convert_channels"),
    "12 bits of 16": (have_twelve_bits, {"data and model", "data"}, "0.06249"),
    "secrets under another key": (lose_the_key_of_the_state, {"state"}, ""),
    "no storage key": (lose_the_storage_key, {"state"}, "storage.key"),
    "the state of another run": (have_the_state_of_another_run, {"state"}, "run 'earlier'"),
    "state that cannot be read": (have_a_folder_for_a_journal, {"state"}, JOURNAL),
    "the model of another run": (have_the_model_of_another_run, {"state"}, "run 'earlier'"),
    "no folder to write to": (have_no_folder_to_write_to, {"folders"}, "data.npz/out"),
    "a wrong address": (dial_a_wrong_address, AT_THE_COORDINATOR, ""),
}
"""Misconfigurations of a site, the checks that fail, and a phrase in the first one's detail."""


def files_of(folder: Path) -> dict[Path, bytes]:
    """Return all that is stored there, without what SQLite writes as a database is read, too."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "log.txt"]
    return {path: path.read_bytes() for path in files if not path.name.endswith("-shm")}


@pytest.mark.parametrize("name", CASES)
def test_check_wrong_configuration_fails_where_it_is_wrong(name: str, site: Site) -> None:
    spoil, failing, named = CASES[name]
    spoil(site)
    coordinator, state = site.federation.root / "coordinator" / "state", site.folder / "state"
    before = files_of(coordinator), files_of(state)
    findings = site.findings()
    assert {each.what for each in findings.values() if not each.ok} == failing
    assert before == (files_of(coordinator), files_of(state))
    details = " ".join(each.detail for each in findings.values() if not each.ok)
    assert named in details


def test_check_names_the_proxy_that_it_went_through(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect_proxy("north:word") as proxy:
        monkeypatch.setenv("https_proxy", f"http://north:word@127.0.0.1:{proxy.port}")
        finding = site.findings()["coordinator"]
    assert finding.ok
    assert f"127.0.0.1:{proxy.port} (from https_proxy)" in finding.detail
    assert "word" not in finding.detail
    assert proxy.asked


EXPOSING = ("plain", "answers_show_duration")
"""Settings of this agreement that show the coordinator more than the defaults do."""


def test_check_names_settings_that_expose(site: Site) -> None:
    assert site.findings()["agreement"].ok
    assert warned_in(site.findings()["agreement"].detail.split("WARNING")[1:]) == set(EXPOSING)
    site.own_agreement('^protection = "plain"$', 'protection = "masked"')
    site.change(site.folder / "agreement.toml", "^answers_show_duration = true$", "")
    assert "WARNING" not in site.findings()["agreement"].detail


def test_run_warns_of_settings_that_expose(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    dial_a_wrong_address(site)
    config = load_site(site.file).model_copy(update={"retry_seconds": 0.1})
    with caplog.at_level(logging.WARNING), pytest.raises(Unreachable):
        run_site(config, (site.folder / "passphrase").read_bytes())
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warned_in(warnings) == set(EXPOSING)


def test_run_refuses_dark_images_before_it_dials(site: Site) -> None:
    have_twelve_bits(site)
    dial_a_wrong_address(site)
    config = load_site(site.file).model_copy(update={"retry_seconds": 0.1})
    passphrase = (site.folder / "passphrase").read_bytes()
    with pytest.raises(DataError) as raised:
        run_site(config, passphrase)
    assert "data.npz" in str(raised.value)
    with pytest.raises(Unreachable):
        run_site(config.model_copy(update={"accept_dark_or_constant_inputs": True}), passphrase)


@pytest.mark.parametrize("spoil", [exhaust_the_budget, leave_budget_for_one_round])
def test_run_refuses_a_budget_that_cannot_finish_before_it_dials(
    spoil: Callable[[Site], None], site: Site
) -> None:
    spoil(site)
    dial_a_wrong_address(site)
    config = load_site(site.file).model_copy(update={"retry_seconds": 0.1})
    before = (site.folder / "ledger.jsonl").read_bytes()
    with pytest.raises(BudgetError, match="round"):
        run_site(config, (site.folder / "passphrase").read_bytes())
    assert (site.folder / "ledger.jsonl").read_bytes() == before


def charge_the_same_records_elsewhere(site: Site) -> None:
    """Leave a run's first payment in another ledger of the folder, under another name."""
    config = load_site(site.file)
    path, passphrase = site.folder / "x-rays.jsonl", (site.folder / "passphrase").read_bytes()
    sketch = sketch_records(config).encrypt(open_records_key(path, passphrase, config.key))
    spending = Spending(
        ReleaseName("earlier", 1, "prototypes"),
        bytes(32),
        release_event(agreement(), PRIVACY),
        {RECORDS: sketch},
    )
    Ledger(path, "x-rays", Limit(LIMIT, DELTA), epsilon=pld_cost).spend(spending)


def test_check_and_run_warn_of_records_that_another_name_is_charged_for(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    assert "the next run stores one" in site.findings()["records"].detail
    charge_the_same_records_elsewhere(site)
    finding = site.findings()["records"]
    assert finding.ok
    told = "about 100% of the training records are charged already to data set 'x-rays' in x-rays.jsonl"
    assert told in finding.detail
    dial_a_wrong_address(site)
    config = load_site(site.file).model_copy(update={"retry_seconds": 0.1})
    with caplog.at_level(logging.WARNING), pytest.raises(Unreachable):
        run_site(config, (site.folder / "passphrase").read_bytes())
    assert told in caplog.text


def test_check_key_of_another_passphrase_compares_nothing(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    create_storage_key(site.folder / RECORDS_KEY, b"another", like=site.folder / "key.pem")
    assert site.findings()["records"].ok
    assert "not compared" in site.findings()["records"].detail
    dial_a_wrong_address(site)
    config = load_site(site.file).model_copy(update={"retry_seconds": 0.1})
    with caplog.at_level(logging.WARNING), pytest.raises(Unreachable):
        run_site(config, (site.folder / "passphrase").read_bytes())
    assert "not compared with other ledgers" in caplog.text


def warned_in(texts: list[str]) -> set[str]:
    """Return the exposing settings that the texts name."""
    return {setting for setting in EXPOSING if any(setting in text for text in texts)}


HOLDER = """
import sys
from pathlib import Path
from crypto.keys import StorageKey
from crypto.pki.key_files import create_storage_key
from privacy.errors import BudgetError
from secure_client.protocol.journal import Journal
path, run, agreement_hash, name = sys.argv[1:]
key = StorageKey(bytes(32))
with Journal(Path(path), run=run, agreement_hash=bytes.fromhex(agreement_hash), site=name, storage=key):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_check_leaves_state_of_a_running_process_alone(site: Site) -> None:
    site.begin()
    config = load_site(site.file)
    agreed, path = config.agreement, config.state_dir / JOURNAL
    arguments = [sys.executable, "-c", HOLDER, str(path), agreed.run, agreed.hash().hex(), config.name]
    pipe = subprocess.PIPE
    with subprocess.Popen(arguments, env=environment(), stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        finding = site.findings()["state"]
        holder.communicate()
    assert not finding.ok
    assert "client run" in finding.detail
    assert site.findings()["state"].ok


def test_check_exit_code_is_zero_only_if_all_are_ok(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(site.folder)
    done = CliRunner().invoke(main, ["client", "check", "--config", "site.toml", "--json"])
    assert done.exit_code == 0, done.output
    assert all(each["ok"] for each in json.loads(done.stdout))
    agree_on_another_rate(site)
    done = CliRunner().invoke(main, ["client", "check", "--config", "site.toml", "--json"])
    assert done.exit_code == 1
    assert [each["what"] for each in json.loads(done.stdout) if not each["ok"]] == ["same agreement"]
