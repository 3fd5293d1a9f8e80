"""``protoseal budget statement``, by a ledger and by a site's file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from privacy.accounting.events import GaussianRelease
from privacy.ledger.ledger import Ledger
from privacy.ledger.lines import Limit, ReleaseName, Spending
from protoseal.cli import main
from tests.support.budgets import exact_epsilon
from tests.support.config_files import AGREEMENT, SITE, write


def statement(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["budget", "statement", *map(str, arguments)])


def site(folder: Path, budget: dict[str, Any] | None, **agreed: Any) -> Path:
    write(folder / "agreement.toml", AGREEMENT | {"training": {"norm": "group"}} | agreed)
    own = {} if budget is None else {"privacy": budget}
    return write(folder / "site.toml", {"agreement": "agreement.toml"} | SITE | own)


def test_a_ledger_and_the_sites_file_give_one_statement(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "scans.jsonl", "scans", Limit(3.0, 1e-5), epsilon=exact_epsilon)
    ledger.spend(
        Spending(
            ReleaseName("run-1", 1, "prototypes"), bytes(32), GaussianRelease(4.0), {"guarantee": "record"}
        )
    )
    budget = {"dataset": "scans", "ledger": "scans.jsonl", "epsilon": 3.0}
    config = site(tmp_path, budget, privacy={"clip": 1.0, "noise_multiplier": 4.0})
    before = (tmp_path / "scans.jsonl").read_bytes()
    by_ledger = json.loads(statement(tmp_path / "scans.jsonl", "--json").stdout)
    by_site = json.loads(statement("--config", config, "--json").stdout)
    assert by_ledger["statement"] == by_site["statement"]
    assert (by_ledger["site"], by_site["site"]) == (None, "north")
    assert statement("--config", config).stdout.startswith(
        "Privacy statement of site 'north' on data set 'scans'"
    )
    done = statement("--config", config, "--out", tmp_path / "page")
    assert str(tmp_path / "page/privacy-statement.html") in done.stdout
    assert json.loads((tmp_path / "page/privacy-statement.json").read_text(encoding="utf-8")) == by_site
    assert (tmp_path / "scans.jsonl").read_bytes() == before


def test_a_site_without_a_ledger_has_a_statement_without_a_guarantee(tmp_path: Path) -> None:
    done = statement("--config", site(tmp_path, None))
    assert done.exit_code == 0, done.output
    text = " ".join(done.stdout.split())
    assert "NO GUARANTEE for any record of this site's data: run 'run-1' releases exact values" in text
    assert "picks out at most" not in text
    assert "Everything that this site sent" in text


def test_neither_and_both_sources_are_refused(tmp_path: Path) -> None:
    config = site(tmp_path, None)
    for arguments in ((), (tmp_path / "scans.jsonl", "--config", config)):
        assert statement(*arguments).exit_code == 2
    missing = statement(tmp_path / "none.jsonl")
    assert (missing.exit_code, len(missing.stderr.splitlines())) == (1, 1)


def test_names_in_a_ledger_cannot_add_to_the_page(tmp_path: Path) -> None:
    Ledger(tmp_path / "a.jsonl", "<b>x</b>\nWhat is protected", Limit(3.0, 1e-5), epsilon=exact_epsilon)
    assert statement(tmp_path / "a.jsonl", "--out", tmp_path).exit_code == 0
    page = (tmp_path / "privacy-statement.html").read_text(encoding="utf-8")
    assert "<b>" not in page
    assert "\nWhat is protected" not in page
    assert "\nWhat is protected" not in statement(tmp_path / "a.jsonl").stdout
