"""The documents against the code: commands, options, links and names exist; sample tables load; figures follow."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from crypto.ckks import parameters
from crypto.pairwise.binding import fewest_against
from crypto.pki.authority import DEFAULT_DAYS
from crypto.pki.identity import Role
from protoseal.cli import COMMANDS, main
from protoseal.config import Agreement, MaskingSection, Method, load_agreement, load_coordinator, load_site
from protoseal.config.capabilities import BUILT_IN_MODELS, DEPLOYABLE, SIMULATED
from protoseal.splits import parse_split
from protoseal_wire.messages import PROTOCOL_VERSION
from secure_client.data.sources import NAMES
from tests.support.documents import (
    PACKAGES,
    PAGES,
    ROOT,
    blocks,
    commands,
    options,
    problem_of,
    source_files,
    spans,
    text_of,
)

README, PRIVACY = text_of("README.md"), text_of("docs/explanation/privacy.md")
OTHERS_OPTIONS = {"--detach", "--no-deps"}
"""Options in spans that are other programs'."""
OTHERS_NAMES = {"OTHER_RUN"}
"""Names in spans that are placeholders."""
_FOLDERS = (*PACKAGES, "deploy", "docs", "experiments", "scripts", "tests")


def commands_in_code() -> dict[str, list[str]]:
    """Command lines between backticks in what programs say, and in comments of sample files."""
    found: dict[str, list[str]] = {}
    for path in source_files():
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".toml":
            text = " ".join(line.partition("# ")[2] for line in text.splitlines())
        joined = re.sub(r'"\s*\n\s*f?"|\s*\n\s*', " ", text)
        lines = re.findall(r"(?<!`)`(protoseal (?!ARGUMENTS)[^`{]+)`(?!`)", joined)
        if lines:
            found[path.relative_to(ROOT).as_posix()] = lines
    return found


def test_every_command_exists_with_its_options() -> None:
    pages = {page: commands(text_of(page)) for page in PAGES}
    assert len(pages["docs/explanation/privacy.md"]) > 20
    assert len(pages["docs/tutorials/first-federation.md"]) > 10
    in_code = commands_in_code()
    assert len(in_code) > 20
    problems = {
        name: found
        for name, lines in (pages | in_code).items()
        if (found := [problem for line in lines if (problem := problem_of(line))])
    }
    assert problems == {}


@pytest.mark.parametrize(
    "line", ["protoseal client rum", "protoseal client check --konfig x", "protoseal budget plan --release 3"]
)
def test_a_command_that_there_is_not_is_found_out(line: str) -> None:
    (found,) = commands(f"Some text:\n\n    {line}\n")
    assert problem_of(found) is not None
    assert [problem_of(each) for each in commands(f"see `{line}`")] == [problem_of(found)]


def test_every_option_by_itself_is_one_of_some_command() -> None:
    known = options() | OTHERS_OPTIONS
    named = {
        (page, option)
        for page in PAGES
        for span in spans(text_of(page))
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", span)
    }
    assert len(named) > 50
    assert {each for each in named if each[1] not in known} == set()


def test_every_link_leads_to_a_file() -> None:
    links = {(page, link) for page in PAGES for link in re.findall(r"\]\(([^)#:\s]+)", text_of(page))}
    assert len(links) > 60
    assert {each for each in links if not ((ROOT / each[0]).parent / each[1]).exists()} == set()


def test_every_file_and_name_in_code_type_is_one_of_the_project() -> None:
    """Names with an underscore, which no other language has, and paths under the project's own folders."""
    files = list(source_files())
    words = set(re.findall(r"\w+", "\n".join(path.read_text(encoding="utf-8") for path in files)))
    words |= {path.stem for path in files} | {"test_fedplcc_"}
    every = [(page, span) for page in PAGES for span in spans(text_of(page))]
    names = {
        (page, name)
        for page, span in every
        for name in re.findall(r"(?<![\w./-])[A-Za-z]+_\w+(?![\w/]*\.)", span)
    }
    assert len(names) > 100
    assert {(page, name) for page, name in names if name not in words | OTHERS_NAMES} == set()
    paths = {
        (page, path)
        for page, span in every
        for path in re.findall(r"^((?:[\w.@-]+/)+[\w.@-]+)(?:::\w+)?$", span)
        if path.split("/")[0] in _FOLDERS
    }
    assert len(paths) > 60
    assert {each for each in paths if not (ROOT / each[1]).exists()} == set()


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.M))
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text_of("Makefile"), re.M)
    named = {
        target
        for page in PAGES
        for code in (*blocks(text_of(page)), *spans(text_of(page)))
        for target in re.findall(r"^(?:[\w$]\S*=\S+ )*make ([a-z-]+)", code, re.M)
    }
    assert {"demo", "test"} <= named
    assert named | set(phony.split()) <= targets


def test_the_overview_of_commands_says_what_each_says_of_itself() -> None:
    """The overview is written beside the names, since it imports no command; lines are the same, or a summary."""
    context = click.Context(main)
    for name in ("budget", "client", "server"):
        group = main.get_command(context, name)
        assert group is not None
        assert (group.help or "").replace("\n", " ") == COMMANDS[name]


# README.md


def test_its_files_of_a_federation_load(tmp_path: Path) -> None:
    agreement, coordinator, site = (
        block for block in blocks(README) if "federation =" in block or "certificate =" in block
    )
    for name, text in (("agreement", agreement), ("coordinator", coordinator), ("site", site)):
        (tmp_path / f"{name}.toml").write_text(text, encoding="utf-8")
    agreed = load_agreement(tmp_path / "agreement.toml")
    parties = load_coordinator(tmp_path / "coordinator.toml"), load_site(tmp_path / "site.toml")
    assert {each.agreement.hash() for each in parties} == {agreed.hash()}
    assert parties[1].name in parties[0].sites
    assert parties[1].coordinator.rpartition(":")[2] == parties[0].listen.rpartition(":")[2]


def test_its_names_are_those_that_there_are() -> None:
    (methods,) = re.findall(r"^\| `--method`, `--compare` \| (.*?)\. All on", README, re.M)
    assert set(re.findall(r"`([\w-]+)`", methods)) == (DEPLOYABLE | SIMULATED)
    (models,) = re.findall(r'^    model = "([\w-]+)" +# (.*)$', README, re.M)
    named = {models[0], *re.findall(r"[a-z][\w-]+", models[1])} - {"to", "module", "function"}
    assert named <= set(BUILT_IN_MODELS)
    forms = {
        name for row in re.findall(r"^\| (`.*?) \| ", README, re.M) for name in re.findall(r"`([\w-]+)`", row)
    }
    assert set(NAMES) <= forms
    assert {Method.PFPL, Method.FEDPC, Method.FEDPLCC, Method.FEDDBP} == DEPLOYABLE


def test_its_forms_of_splits_are_read() -> None:
    (row,) = re.findall(r"^\| `--split` \| (.*) \|$", README, re.M)
    forms: list[str] = re.findall(r"`([^`]+)`", row.partition(";")[0])
    assert len(forms) == 5
    for form in forms:
        parse_split(re.sub(r"[\[\]]", "", form))
        for option in ("test=0.25", "pool=1", "val=0.1", "subject=8"):
            assert option in row
            own = form.partition("[")[0]
            parse_split(f"{own}{',' if ':' in own else ':'}{option}")


def test_its_numbers_are_the_codes() -> None:
    assert f"the protocol, version {PROTOCOL_VERSION}" in README
    assert DEFAULT_DAYS == {Role.SITE: 365, Role.COORDINATOR: 30}
    for page in (README, text_of("docs/tutorials/first-federation.md")):
        assert re.search(r"certificate\s+lasts a year", page)
        assert re.search(r"30 days", page)
    python = tomllib.loads(text_of("pyproject.toml"))["project"]["requires-python"]
    assert python == ">=3.11,<3.14"
    assert "Python 3.11 to 3.13" in README


def test_the_defaults_that_it_and_the_threat_model_name_are_the_codes() -> None:
    model = re.sub(r"\s+", " ", text_of("docs/explanation/threat-model.md"))
    assert f"(default {Agreement.model_fields['norm_bound'].default:g})" in README
    assert f"`complete_up_to` ({MaskingSection.model_fields['complete_up_to'].default})" in model
    assert "`max_colluding` (a tenth)" in model
    assert MaskingSection.model_fields["max_colluding"].default == 0.1
    assert f"({fewest_against(MaskingSection().colluding(500))} of 500)" in model


def test_the_threat_models_modulus_is_the_codes() -> None:
    bits = sum(each.bit_count() for each in parameters._MODULI)
    assert f"({bits} of at most" in re.sub(r"\s+", " ", text_of("docs/explanation/threat-model.md"))


# docs/explanation/privacy.md: what `budget plan` is said to find

_PLANS = {
    "--epsilon 3 --releases 1   --records 50,500,5000": {"noise_multiplier": "1.3906"},
    "--epsilon 3 --releases 20  --records 50,500,5000": {"noise_multiplier": "6.219"},
    "--epsilon 3 --releases 100 --records 50,500,5000": {"noise_multiplier": "13.906"},
    "--epsilon 8 --releases 20 --records 100,500,5000 --dim 64": {"noise_multiplier": "2.6844"},
    "--epsilon 3 --releases 20 --records 500 --sampling-rate 0.05 --dp-sgd-noise 2 --steps 100": {
        "noise_multiplier": "6.7316"
    },
    "--agreement deploy/samples/agreement-private.toml": {"spent": "1.205", "releases": "4"},
    "--agreement deploy/samples/agreement-private.toml --epsilon 3 --solve releases": {"releases": "20"},
    "--agreement deploy/samples/agreement-private.toml --epsilon 1 --solve noise-multiplier": {
        "noise_multiplier": "7.4613"
    },
    "--releases 2 --noise-multiplier 3.8 --sampling-rate 0.1 --dp-sgd-noise 2.5 --steps 200": {
        "spent": "2.98"
    },
}


@pytest.mark.parametrize("arguments", _PLANS)
def test_a_plan_finds_what_the_document_says(arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"protoseal budget plan {arguments}" in PRIVACY
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(main, ["budget", "plan", *arguments.split(), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    for name, printed in _PLANS[arguments].items():
        assert re.search(rf"(?<![\d.]){re.escape(printed)}(?!\d)", PRIVACY)
        digits = len(printed.partition(".")[2])
        assert f"{found[name]:.{digits}f}" == printed


def test_the_agreements_that_it_counts_are_the_samples() -> None:
    """The ε of the sample with DP-SGD is that of the plan which is written out in its comment and in the document."""
    done = CliRunner().invoke(
        main, ["budget", "plan", "--agreement", str(ROOT / "deploy/samples/agreement-dpsgd.toml"), "--json"]
    )
    assert round(json.loads(done.stdout)["spent"], 2) == 2.98
