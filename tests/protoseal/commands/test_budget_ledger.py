"""``protoseal budget show``, ``verify`` and ``statement``, as a privacy officer meets them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from agreement.storage.anchor_record import AnchorRecord
from privacy.accounting import accounting_rules
from privacy.accounting.accounting_rules import Accountant, Accounting
from privacy.accounting.events import DpSgd, GaussianRelease
from privacy.ledger.budget_account import read_account
from privacy.ledger.ledger import Ledger
from privacy.ledger.lines import GUARANTEE, Limit, ReleaseName, Spending
from protoseal.cli import main
from protoseal.commands.budget import TORN
from protoseal.reports.ledger_facts import day
from secure_client.privacy.ledger_anchors import OWN, own_anchor, record_beside
from tests.support.config_files import AGREEMENT, SITE, write
from tests.support.ledgers import DATASET, LIMIT, count_possible, exact_epsilon, open_ledger, spending


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the site's accountants by the accountant of these tests."""
    replace_accountants(monkeypatch, exact_epsilon)


def replace_accountants(monkeypatch: pytest.MonkeyPatch, accountant: Accountant | None) -> None:
    for name in ("pld_cost", "renyi_cost"):
        monkeypatch.setattr(accounting_rules, name, accountant)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "heart.ledger"
    ledger = open_ledger(path)
    ledger.spend(spending(1))
    ledger.spend(spending(3))
    ledger.spend(Spending(ReleaseName("run-2", 1, "extractor"), bytes(32), DpSgd(100.0, 0.01, 3)))
    return path


def output_of(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["budget", *(str(each) for each in arguments)])
    assert result.exit_code == code, result.output
    return result.stdout


def failure(*arguments: object) -> str:
    result = CliRunner().invoke(main, ["budget", *(str(each) for each in arguments)])
    assert result.exit_code != 0
    assert isinstance(result.exception, SystemExit), result.exception
    return result.stderr.splitlines()[-1]


def test_show_prints_what_was_spent_and_remains(path: Path) -> None:
    ledger, before = open_ledger(path), path.read_bytes()
    shown = output_of("show", path)
    releases, steps = (count_possible(ledger, event) for event in ledger.history[1:])
    assert f"epsilon spent     {ledger.epsilon_spent():.6g}" in shown
    assert (
        f"remaining         {releases} releases with noise multiplier 6.2 or {steps} steps of DP-SGD" in shown
    )
    (today,) = {day(entry.time) for entry in read_account(ledger.path).entries}
    assert f"run 'run-1', {today}, rounds 1-3: prototypes, 2 releases with noise multiplier 6.2" in shown
    assert (
        f"run 'run-2', {today}, rounds 1-1: extractor, 3 steps of DP-SGD with noise multiplier 100" in shown
    )
    assert f"first entry       {today}" in shown
    assert str(ledger.anchor) in shown
    assert path.read_bytes() == before


def test_show_json_has_every_entry_and_decision(path: Path) -> None:
    ledger = open_ledger(path)
    shown = json.loads(output_of("show", path, "--json"))
    assert {name: shown[name] for name in ("dataset", "epsilon_limit", "delta", "unit", "neighbours")} == {
        "dataset": "heart-2024",
        "epsilon_limit": 3.0,
        "delta": 1e-5,
        "unit": "record",
        "neighbours": "add or remove one",
    }
    assert shown["epsilon_spent"] == ledger.epsilon_spent()
    assert [each["count"] for each in shown["remaining"]] == [
        count_possible(ledger, event) for event in ledger.history[1:]
    ]
    assert [(each["run"], each["round"], each["what"]) for each in shown["entries"]] == [
        ("run-1", 1, "prototypes"),
        ("run-1", 3, "prototypes"),
        ("run-2", 1, "extractor"),
    ]
    assert shown["entries"][0]["facts"] == {"clip": 1.0}
    assert shown["anchor"] == str(ledger.anchor)


def test_show_ledger_without_entries_has_all_of_it_left(tmp_path: Path) -> None:
    open_ledger(tmp_path / "new.ledger")
    shown = output_of("show", tmp_path / "new.ledger")
    assert "epsilon spent     0\n" in shown
    assert shown.startswith("Nothing of data set 'heart-2024' has left this site")
    assert "remaining         all of it" in shown.splitlines()
    assert "first entry       -" in shown.splitlines()
    assert "Entries: 0;" in output_of("verify", tmp_path / "new.ledger")


def test_verify_changed_or_older_ledger_is_refused(path: Path) -> None:
    ledger, older = open_ledger(path), path.read_bytes()
    assert "The chain holds. Entries: 3;" in output_of("verify", path)
    kept = ledger.spend(spending(4))
    assert "has the entry that others have kept: 4" in output_of("verify", path, "--anchor", kept)
    assert json.loads(output_of("verify", path, "--anchor", kept, "--json"))["anchored"] == str(kept)
    path.write_bytes(older)
    assert "An older copy would look the same" in output_of("verify", path)
    assert "ends with entry 3, and entry 4 was acknowledged" in failure("verify", path, "--anchor", kept)
    path.write_bytes(older.replace(b'"round":3', b'"round":2'))
    for command in ("verify", "show"):
        assert "line 3 was changed" in failure(command, path)


def test_verify_torn_end_exits_3_and_changes_nothing(path: Path) -> None:
    torn = path.read_bytes()[:-7]
    path.write_bytes(torn)
    said = output_of("verify", path, code=TORN)
    assert said.startswith("NO GUARANTEE")  # what is recorded has none, whatever stood at the end
    assert said.splitlines()[2].startswith("TORN END: ")
    as_json = json.loads(output_of("verify", path, "--json", code=TORN))
    assert as_json["unfinished_bytes"] > 0
    assert path.read_bytes() == torn


def test_verify_torn_end_anchor_tells_a_crash_from_a_cut(tmp_path: Path) -> None:
    """The end is torn in the same way: while entry 2 was written, and after it was acknowledged."""
    path = tmp_path / "scans.ledger"
    ledger = open_ledger(path)
    for_records = {GUARANTEE: "record"}
    shown = ledger.spend(replace(spending(1), facts=for_records))
    acknowledged = ledger.spend(replace(spending(2), facts=for_records))
    torn = path.read_bytes()[:-40]
    path.write_bytes(torn)
    assert "only an anchor of that entry tells" in output_of("verify", path, code=TORN)
    assert "only an anchor of that entry tells" in output_of("verify", path, "--anchor", shown, code=TORN)
    assert "entry 2 was cut after it was acknowledged" in failure("verify", path, "--anchor", acknowledged)
    with AnchorRecord.open(record_beside(path)) as record:
        record.note({OWN: own_anchor(DATASET, shown)})
        assert "A crash while writing left them" in output_of("verify", path, code=TORN)
        assert json.loads(output_of("show", path, "--json"))["guarantee"] == "for what is recorded here"
        assert "entry 2 was cut after it was acknowledged" in failure(
            "verify", path, "--anchor", acknowledged
        )
        record.note({OWN: own_anchor(DATASET, acknowledged)})
        assert "entry 2 was cut after it was acknowledged" in failure("verify", path)
    assert path.read_bytes() == torn


def test_allow_torn_end_without_anchor_is_refused(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The acknowledged last line is cut: another line in its place would end NO GUARANTEE."""
    decision = ("allow", path, "--epsilon", "3.1", "--reason", "tidy")
    earlier = read_account(path).anchor
    open_ledger(path).spend(spending(4))
    torn = path.read_bytes()[:-40]
    path.write_bytes(torn)
    assert "start the client" in failure(*decision)
    assert path.read_bytes() == torn
    assert output_of("verify", path, code=TORN).startswith("NO GUARANTEE")
    with AnchorRecord.open(record_beside(path)) as record:
        assert "start the client" in failure(*decision)  # a record of other ledgers alone
        record.note({OWN: own_anchor(DATASET, earlier)})
    output_of(*decision)
    assert "no anchor that was compared has it" in caplog.text


def test_spend_over_torn_end_without_anchor_claims_no_crash(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_bytes(path.read_bytes()[:-40])
    open_ledger(path).spend(spending(4))
    assert "no anchor was compared" in caplog.text
    assert "nothing was released" not in caplog.text


def test_show_torn_end_has_an_unknown_guarantee(tmp_path: Path) -> None:
    """A line that was shortened later looks the same: that exact values left may have stood there."""
    torn = tmp_path / "torn.ledger"
    open_ledger(torn).record_exposure("run-7", bytes(32))
    torn.write_bytes(torn.read_bytes()[:-7])
    assert json.loads(output_of("show", torn, "--json"))["guarantee"].startswith("unknown")


def test_show_and_verify_missing_ledger_or_bad_anchor_is_one_line(path: Path, tmp_path: Path) -> None:
    assert "is not there" in failure("verify", tmp_path / "none.ledger")
    (tmp_path / "empty").touch()
    assert "data set" in failure("show", tmp_path / "empty")
    for anchor in ("3", "3:abc", f"-1:{'0' * 64}", f"3:{'0' * 63}g"):
        assert "64 hexadecimal digits" in failure("verify", path, "--anchor", anchor)


@pytest.mark.parametrize("linked", [False, True], ids=["file", "link"])
def test_ledger_without_a_shown_entry_is_refused_by_its_number(tmp_path: Path, linked: bool) -> None:
    """The line that exact values left, torn: no command takes what is left for the ledger, or writes after it."""
    real = tmp_path / "scans.ledger"
    named = tmp_path / "link.ledger" if linked else real
    ledger = Ledger(real, "scans", Limit(3.0, 1e-5), epsilon=exact_epsilon)
    ledger.record_exposure("run-1", bytes(32))
    if linked:
        named.symlink_to(real)
    with AnchorRecord.open(record_beside(real)) as record:
        record.note({OWN: own_anchor("scans", ledger.anchor)})
    assert "The chain holds" in output_of("verify", named)
    whole = real.read_bytes()
    real.write_bytes(whole[:-40])
    for command in (("verify",), ("allow", "--epsilon", 4, "--reason", "more")):
        assert "entry 1 was cut after it was acknowledged" in failure(command[0], named, *command[1:])
    assert real.read_bytes() == whole[:-40]
    assert output_of("show", named).startswith(
        "NO GUARANTEE for any record of data set 'scans': the ledger lacks entry 1"
    )
    assert json.loads(output_of("show", named, "--json"))["guarantee"] == "none"


def test_verify_needs_no_accountant(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_accountants(monkeypatch, None)
    assert "The chain holds" in output_of("verify", path)


def test_allow_new_limit_is_a_line_with_its_reason(path: Path) -> None:
    before = path.read_bytes()
    said = output_of("allow", path, "--epsilon", 8, "--reason", "ethics board, 3 March")
    assert (
        "was epsilon 3 at delta 1e-05 for one record, and is epsilon 8 at delta 1e-05 for one record" in said
    )
    assert path.read_bytes().startswith(before)
    shown = output_of("show", path)
    assert "epsilon limit     8\n" in shown
    assert "epsilon 8 at delta 1e-05 for one record, was epsilon 3 at delta 1e-05 for one record" in shown
    assert shown.splitlines()[-2].endswith(": ethics board, 3 March")
    output_of("allow", path, "--epsilon", 4, "--delta", 1e-6, "--reason", "less again")
    as_json = json.loads(output_of("show", path, "--json"))
    assert (as_json["epsilon_limit"], as_json["delta"]) == (4.0, 1e-6)
    began = as_json["limit_at_first"]
    assert began | {"time": ""} == {"time": "", "epsilon": 3.0, "delta": 1e-5, "accountant": "pld"}
    assert began["time"] <= as_json["limits"][0]["time"] <= as_json["limits"][1]["time"]
    assert [(each["epsilon"], each["delta"], each["reason"]) for each in as_json["limits"]] == [
        (8.0, 1e-5, "ethics board, 3 March"),
        (4.0, 1e-6, "less again"),
    ]
    assert "The chain holds. Entries: 5;" in output_of("verify", path)


def test_allow_new_accountant_keeps_the_limit(path: Path) -> None:
    said = output_of(
        "allow", path, "--accountant", "renyi-filter", "--reason", "the next run follows from this one"
    )
    assert "is epsilon 3 at delta 1e-05 for one record, counted by renyi-filter" in said
    assert json.loads(output_of("show", path, "--json"))["accountant"] == "renyi-filter"
    assert "it stays" in failure("allow", path, "--accountant", "pld", "--reason", "back")


def test_allow_impossible_limit_leaves_the_ledger(path: Path, tmp_path: Path) -> None:
    before = path.read_bytes()
    assert "--reason" in failure("allow", path, "--epsilon", 8)
    assert "printable" in failure("allow", path, "--epsilon", 8, "--reason", " ")
    assert "not positive" in failure("allow", path, "--epsilon", -1, "--reason", "why")
    assert "not positive and finite" in failure("allow", path, "--epsilon", "inf", "--reason", "why")
    assert "not between 0 and 1" in failure("allow", path, "--epsilon", 1, "--delta", 2, "--reason", "why")
    assert "already" in failure("allow", path, "--epsilon", 3, "--reason", "why")
    assert "is not there" in failure("allow", tmp_path / "none", "--epsilon", 3, "--reason", "why")
    assert path.read_bytes() == before
    assert not (tmp_path / "none").exists()


def test_show_name_with_line_ends_stays_in_one_line(tmp_path: Path) -> None:
    forged = tmp_path / "forged.jsonl"
    open_ledger(forged, dataset="scans\nguarantee         for all")
    shown = output_of("show", forged).splitlines()
    assert [line for line in shown if line.startswith("dataset")] == [
        r"dataset           'scans\nguarantee         for all'"
    ]
    assert sum(line.startswith("guarantee ") for line in shown) == 1


def test_show_prints_infinite_epsilon_as_inf_and_null(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_accountants(monkeypatch, lambda *_: math.inf)
    assert "epsilon spent     inf\n" in output_of("show", path)
    assert json.loads(output_of("show", path, "--json"))["epsilon_spent"] is None


def test_show_planned_accountant_names_its_assumption(tmp_path: Path) -> None:
    path = tmp_path / "new.ledger"
    open_ledger(path, limit=replace(LIMIT, accountant=Accounting.PLANNED))
    guarantee = json.loads(output_of("show", path, "--json"))["guarantee"]
    assert guarantee.endswith("if all its agreements were fixed before the first release")


def test_show_exact_runs_have_no_guarantee(tmp_path: Path) -> None:
    path = tmp_path / "new.ledger"
    open_ledger(path)
    as_json = json.loads(output_of("show", path, "--json"))
    assert (as_json["exact"], as_json["guarantee"]) == ([], "for what is recorded here")
    assert "cannot be known from it" in output_of("show", path).splitlines()[-1]
    open_ledger(path).record_exposure("run-7", bytes(32))
    shown, as_json = output_of("show", path), json.loads(output_of("show", path, "--json"))
    assert "run 'run-7', from 2" in shown
    assert "exact values, without a guarantee for any record" in shown
    assert [each["run"] for each in as_json["exact"]] == ["run-7"]
    assert as_json["guarantee"] == "none"
    assert shown.startswith("NO GUARANTEE")


def test_show_lost_ledger_has_no_guarantee(tmp_path: Path) -> None:
    path = tmp_path / "new.ledger"
    open_ledger(path).record_loss(17)
    shown, as_json = output_of("show", path), json.loads(output_of("show", path, "--json"))
    assert shown.startswith("NO GUARANTEE")
    assert ([each["entry"] for each in as_json["lost"]], as_json["guarantee"]) == ([17], "none")


def statement(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["budget", "statement", *map(str, arguments)])


def site(folder: Path, budget: dict[str, Any] | None, **agreed: Any) -> Path:
    write(folder / "agreement.toml", AGREEMENT | {"training": {"norm": "group"}} | agreed)
    own = {} if budget is None else {"privacy": budget}
    return write(folder / "site.toml", {"agreement": "agreement.toml"} | SITE | own)


def test_statement_of_ledger_equals_that_of_the_sites_file(tmp_path: Path) -> None:
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


def test_statement_site_without_ledger_has_no_guarantee(tmp_path: Path) -> None:
    done = statement("--config", site(tmp_path, None))
    assert done.exit_code == 0, done.output
    text = " ".join(done.stdout.split())
    assert "NO GUARANTEE for any record of this site's data: run 'run-1' releases exact values" in text
    assert "picks out at most" not in text
    assert "Everything that this site sent" in text


def test_statement_neither_or_both_sources_are_refused(tmp_path: Path) -> None:
    config = site(tmp_path, None)
    for arguments in ((), (tmp_path / "scans.jsonl", "--config", config)):
        assert statement(*arguments).exit_code == 2
    missing = statement(tmp_path / "none.jsonl")
    assert (missing.exit_code, len(missing.stderr.splitlines())) == (1, 1)


def test_statement_names_with_markup_are_escaped(tmp_path: Path) -> None:
    Ledger(tmp_path / "a.jsonl", "<b>x</b>\nWhat is protected", Limit(3.0, 1e-5), epsilon=exact_epsilon)
    assert statement(tmp_path / "a.jsonl", "--out", tmp_path).exit_code == 0
    page = (tmp_path / "privacy-statement.html").read_text(encoding="utf-8")
    assert "<b>" not in page
    assert "\nWhat is protected" not in page
    assert "\nWhat is protected" not in statement(tmp_path / "a.jsonl").stdout
