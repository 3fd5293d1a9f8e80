"""The documents against the code: commands, options, links and names exist; sample tables load; figures follow."""

from __future__ import annotations

import json
import re
import tomllib

import click
import pytest
from click.testing import CliRunner

from agreement import Agreement, MaskingSection, Method
from agreement.registry.methods import DEPLOYABLE, METHODS
from agreement.sections.training import BUILT_IN_MODELS
from crypto.ckks import parameters
from crypto.pairwise.attempt import fewest_against
from crypto.pki.identity import Role
from crypto.pki.issuing import DEFAULT_DAYS
from protoseal.cli import COMMANDS, main
from protoseal.splits import parse_split
from secure_client.data.sources import NAMES
from tests.support.documents import (
    BENCHMARKS,
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

README = text_of("README.md")
PRIVACY = text_of("docs/how-to/privacy-officer.md") + text_of("docs/explanation/privacy-mechanisms.md")
OWN_DATA, RESEARCHER = text_of("docs/tutorials/own-data-and-model.md"), text_of("docs/how-to/researcher.md")
OTHERS_OPTIONS = {
    "--block",
    "--detach",
    "--no-deps",
    "--plan",
    "--sign",
    "--strict",
}
"""Options in spans that are other programs'."""
OTHERS_NAMES = {"OTHER_RUN", "disable_client", "max_epsilon", "min_clients"}
"""Names in spans that are placeholders, or other programs'."""
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
    assert len(pages["docs/how-to/privacy-officer.md"]) > 20
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
    "line",
    ["protoseal client rum", "protoseal client check --konfig x", "python -m benchmarks.train --site 3"],
)
def test_checks_report_a_missing_command(line: str) -> None:
    (found,) = commands(f"Some text:\n\n    {line}\n")
    assert problem_of(found) is not None
    assert [problem_of(each) for each in commands(f"see `{line}`")] == [problem_of(found)]


def test_every_option_by_itself_is_one_of_some_command() -> None:
    known = options().union(OTHERS_OPTIONS, *map(options, BENCHMARKS.values()))
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


def test_every_page_of_the_site_names_its_reader() -> None:
    pages = [page for page in PAGES if page.startswith("docs/") or page == "CONTRIBUTING.md"]
    assert len(pages) > 45
    opening = re.compile(r"# [^\n]+\n\n\*For .+?\*\n", re.S)
    assert [page for page in pages if not opening.match(text_of(page))] == []


def test_cells_of_tables_are_at_most_forty_words() -> None:
    cells = [
        (page, cell)
        for page in PAGES
        for line in text_of(page).splitlines()
        if line.lstrip().startswith("|")
        for cell in re.split(r"(?<!\\)\|", line)
    ]
    assert len(cells) > 1000
    assert [(page, cell) for page, cell in cells if len(cell.split()) > 40] == []


def test_pictures_are_small() -> None:
    pictures = [
        path for path in (ROOT / "docs/figures").iterdir() if path.suffix in {".png", ".webp", ".svg"}
    ]
    assert len(pictures) > 5
    assert [path.name for path in pictures if path.stat().st_size > 200_000] == []


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


# Names, forms and numbers


def rows(text: str, heading: str) -> list[str]:
    """Return the rows of the table whose head begins with ``heading``."""
    _, _, rest = text.partition(f"\n| {heading}")
    assert rest, heading
    return rest.partition("\n\n")[0].splitlines()[2:]


def names(lines: list[str]) -> set[str]:
    """Return everything between backticks in the first column."""
    return {name for line in lines for name in re.findall(r"`([^`]+)`", line.split(" | ")[0])}


def test_methods_models_and_forms_of_data_are_those_that_there_are() -> None:
    assert names(rows(RESEARCHER, "`--method`, `--compare`")) == set(METHODS)
    assert {Method.PFPL, Method.FEDPC, Method.FEDPLCC, Method.FEDDBP} == DEPLOYABLE
    models = names(rows(OWN_DATA, "`training.model`")) - {"module:function"}
    assert len(models) > 5
    assert models <= set(BUILT_IN_MODELS)
    assert set(NAMES) <= names(rows(OWN_DATA, "form"))


def test_forms_of_splits_are_read() -> None:
    forms = [line.split("`")[1] for line in rows(RESEARCHER, "`--split`")]
    options = [line.split("`")[1] for line in rows(RESEARCHER, "option of any split")]
    assert len(forms) == 5
    assert options == ["test=0.25", "pool=1", "val=0.1", "subject=8"]
    for form in forms:
        parse_split(re.sub(r"[\[\]]", "", form))
        for option in options:
            own = form.partition("[")[0]
            parse_split(f"{own}{',' if ':' in own else ':'}{option}")


def test_lives_of_certificates_and_versions_of_python_are_the_codes() -> None:
    assert DEFAULT_DAYS == {Role.SITE: 365, Role.COORDINATOR: 30}
    operator = rows(text_of("docs/how-to/coordinator-operator.md"), "certificate")
    assert [line.split(" | ")[:2] for line in operator] == [
        ["| coordinator", "30 days"],
        ["| site", "a year"],
    ]
    for page in (README, text_of("docs/tutorials/first-federation.md")):
        assert re.search(r"30 days", page)
    python = tomllib.loads(text_of("pyproject.toml"))["project"]["requires-python"]
    assert python == ">=3.11,<3.14"
    assert "Python 3.11 to 3.13" in README


def test_the_defaults_that_pages_name_are_the_codes() -> None:
    model = re.sub(r"\s+", " ", text_of("docs/explanation/threat-model.md"))
    assert f"(default {Agreement.model_fields['norm_bound'].default:g})" in RESEARCHER
    assert f"`complete_up_to` ({MaskingSection.model_fields['complete_up_to'].default})" in model
    assert "`max_colluding` (a tenth)" in model
    assert MaskingSection.model_fields["max_colluding"].default == 0.1
    assert f"({fewest_against(MaskingSection().colluding(500))} of 500)" in model


def test_the_threat_models_modulus_is_the_codes() -> None:
    bits = sum(each.bit_count() for each in parameters._MODULI)
    assert f"({bits} of at most" in re.sub(r"\s+", " ", text_of("docs/explanation/threat-model.md"))


# docs/how-to/privacy-officer.md: the figures of `budget plan`

_PLANS = {
    "--epsilon 3 --releases 1   --records 50,500,5000": {"noise_multiplier": "1.3906"},
    "--epsilon 3 --releases 20  --records 50,500,5000": {"noise_multiplier": "6.219"},
    "--epsilon 3 --releases 100 --records 50,500,5000": {"noise_multiplier": "13.906"},
    "--epsilon 8 --releases 20 --records 100,500,5000 --dim 64": {"noise_multiplier": "2.6844"},
    "--epsilon 3 --releases 20 --records 500 --dp-sgd 0.05 2 100": {"noise_multiplier": "6.7316"},
    "--agreement deploy/samples/agreement-private.toml": {"spent": "1.993", "releases": "1"},
    "--agreement deploy/samples/agreement-private.toml --epsilon 3 --solve releases": {"releases": "2"},
    "--agreement deploy/samples/agreement-private.toml --epsilon 1 --solve noise-multiplier": {
        "noise_multiplier": "3.7307"
    },
    "--releases 2 --noise-multiplier 3.8 --dp-sgd 0.1 2.5 200": {"spent": "2.98"},
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


_UNITS = {
    "--records 100,1000": "| records | 0.56 | 0.056 |",
    "--records 100,1000 --unit subject --classes-of-one 4": (
        "| subjects, each with records of 4 classes | 1.12 | 0.112 |"
    ),
    "--records 100,1000 --unit site": "| sites, each with records of all 10 | 1.77 | 0.177 |",
}


@pytest.mark.parametrize("arguments", _UNITS)
def test_errors_by_unit_are_those_of_the_plans(arguments: str) -> None:
    text = text_of("docs/explanation/privacy.md")
    command = f"budget plan --epsilon 3 --releases 20 --dim 64 {arguments}"
    assert f"    protoseal {command}\n" in text
    done = CliRunner().invoke(main, [*command.split(), "--json"])
    few, many = (each["relative"] for each in json.loads(done.stdout)["errors"])
    assert _UNITS[arguments] in text
    assert _UNITS[arguments].endswith(f" | {few:.2f} | {many:.3f} |")


def test_the_agreements_that_it_counts_are_the_samples() -> None:
    """The ε of the sample with DP-SGD is that of the plan which is written out in its comment and in the document."""
    done = CliRunner().invoke(
        main, ["budget", "plan", "--agreement", str(ROOT / "deploy/samples/agreement-dpsgd.toml"), "--json"]
    )
    assert round(json.loads(done.stdout)["spent"], 2) == 2.98
