"""Agreement of docs/explanation/attacks.md and conformance.md with the tests that they name.

Every test named in either page exists. Every attack that is played stands in attacks.md with its layers and with the
first paragraph of its docstring.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.adversary import pairwise_attacks, sparse_pairwise_attacks, test_hostile_coordinator

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs/explanation/attacks.md").read_text(encoding="utf-8")
CONFORMANCE = (ROOT / "docs/explanation/conformance.md").read_text(encoding="utf-8")
_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`")
_ROW = re.compile(r"^\| (.+?) \| .+ \| (.+) \|$", re.MULTILINE)
_DOUBLE = re.compile(r"^\| (.+?) \| (.+) \| .+ \|$", re.MULTILINE)
_QUOTED = re.compile(r"`([^`]+)`")

Layers = tuple[str, ...]
ATTACKS: Mapping[str, Mapping[str, Any]] = {
    "test_hostile_coordinator.py": test_hostile_coordinator.ATTACKS,
    "test_pairwise_attacks.py": pairwise_attacks.ATTACKS | sparse_pairwise_attacks.SPARSE_ATTACKS,
}


def sections(document: str) -> dict[str, dict[str, Layers]]:
    """Return attack and layers of the rows under each heading that names a file, by the file's base name."""
    found: dict[str, dict[str, Layers]] = {}
    for section in document.split("\n### ")[1:]:
        heading, _, body = section.partition("\n")
        name = Path(_QUOTED.findall(heading)[0]).name
        rows = {attack: tuple(_QUOTED.findall(layers)) for attack, layers in _ROW.findall(body)[1:]}
        found[name] = found.get(name, {}) | rows
    return found


def missing_tests(document: str) -> list[str]:
    """Return the files and functions that ``document`` names and that do not exist."""
    return [
        f"{file}::{function}"
        for file, function in _TEST.findall(document)
        if not _exists(ROOT / file, function)
    ]


def _exists(path: Path, function: str) -> bool:
    if not path.is_file():
        return False
    names = {
        each.name
        for each in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(each, ast.FunctionDef)
    }
    return not function or function in names


def missing_attacks(document: str) -> list[str]:
    """Return the attacks that the overview's last column names and no table has."""
    overview, _, _ = document.partition("\n### ")
    rows = "".join(row for _, row in _ROW.findall(overview))
    known = {attack for table in ATTACKS.values() for attack in table}
    return [
        each
        for each in _QUOTED.findall(rows)
        if not each.startswith(("tests/", "ckks")) and each not in known
    ]


def test_every_test_that_is_named_exists() -> None:
    assert len(_TEST.findall(DOCUMENT)) > 40
    assert len(_TEST.findall(CONFORMANCE)) > 10
    assert not missing_tests(DOCUMENT + CONFORMANCE)


def test_every_limit_that_is_played_is_listed() -> None:
    played = {
        f"{path.relative_to(ROOT).as_posix()}::{name}"
        for folder in ("adversary", "crypto")
        for path in (ROOT / "tests" / folder).glob("test_*.py")
        for name in re.findall(
            r"^def (test_the_(?:stated_)?limit_\w+)", path.read_text(encoding="utf-8"), re.M
        )
    }
    _, _, limits = DOCUMENT.partition("Tests play fourteen of them:")
    named = [f"{file}::{name}" for file, name in _TEST.findall(limits.partition("\n## ")[0])]
    assert len(named) == 16
    assert played <= set(named)


def test_every_attack_that_its_overview_names_exists() -> None:
    assert not missing_attacks(DOCUMENT)


@pytest.mark.parametrize("file", ATTACKS)
def test_document_lists_every_attack_with_its_layers(file: str) -> None:
    assert sections(DOCUMENT)[file] == {name: attack.layers for name, attack in ATTACKS[file].items()}


@pytest.mark.parametrize("file", ATTACKS)
def test_document_describes_every_attack_as_its_docstring_does(file: str) -> None:
    described = _DOUBLE.findall(DOCUMENT)
    for name, attack in ATTACKS[file].items():
        summary, _, _ = (inspect.getdoc(attack.play) or "").partition("\n\n")
        assert (name, " ".join(summary.split())) in described


def test_checks_report_names_that_do_not_exist() -> None:
    renamed = DOCUMENT.replace("test_answer_denominator_real", "test_answer_denominator_unreal")
    assert missing_tests(renamed) == [
        "tests/crypto/ckks/test_answer_contents.py::test_answer_denominator_unreal"
    ]
    assert missing_attacks(DOCUMENT.replace("`opens shares twice`", "`opens shares thrice`")) == [
        "opens shares thrice"
    ]
    assert sections(DOCUMENT.replace("Order._check_presence", "Order._check_old")) != sections(DOCUMENT)
