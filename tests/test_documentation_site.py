"""Generated reference of the documentation site: complete, and without a meaning left out."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from agreement import Agreement, Section
from protoseal.cli import COMMANDS, main
from protoseal.simulation.config import SimulationConfig
from scripts.documentation import configuration, reference
from scripts.documentation.reference import command_line, escaped, from_docstring
from secure_client.config import SiteConfig
from secure_server.config import CoordinatorConfig
from tests.support.documents import ROOT, options

_ROW = re.compile(r"^\| `(\w+)` \| (.*) \| (.*) \| (.*) \|$", re.M)


def test_every_key_of_every_file_has_a_type_and_a_meaning() -> None:
    rows = _ROW.findall(configuration.configuration())
    files = (Agreement, CoordinatorConfig, SiteConfig, SimulationConfig)
    keys = {field.alias or name for file in files for name, field in file.model_fields.items()}
    assert keys <= {key for key, *_ in rows}
    assert len(rows) > 150
    assert [row for row in rows if not row[1] or len(row[3]) < 5] == []
    assert ("lr", "number > 0", "`0.001`", "Learning rate; with SGD 0.01 unless given.") in rows
    assert ("init_seed", "whole number ≥ 0, < 2^63") in {row[:2] for row in rows}


def test_a_key_without_a_meaning_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Undescribed(Section):
        described: int = 1
        """Number."""
        bare: int = 2

    monkeypatch.setattr(configuration, "FILES", (("A file", Undescribed),))
    with pytest.raises(KeyError, match="bare"):
        configuration.configuration()


def test_every_command_has_a_section_with_its_options() -> None:
    text = command_line()
    named = {each for each in options(main, click.Context(main)) if each.lower() in text.lower()}
    assert options(main, click.Context(main)) - named <= {"--help", "--version"}
    assert set(re.findall(r"^## protoseal (\w+)$", text, re.M)) == set(COMMANDS)


def test_every_exception_has_a_meaning_and_a_status_where_a_peer_is_told() -> None:
    text = reference.errors()
    assert "| `NotOnRoster` | Site that the coordinator's file does not name. | `PERMISSION_DENIED` |" in text
    assert not re.search(r"^\| `\w+` \|  \|", text, re.M)


def test_docstrings_and_help_become_markdown() -> None:
    assert from_docstring("Call :meth:`~a.b` with ``x``.") == "Call `a.b` with `x`."
    assert escaped("a|b <c> `d|e` [f]") == r"a\|b \<c\> `d\|e` \[f\]"


@pytest.mark.full
def test_the_build_of_make_docs_refuses_a_dead_anchor(tmp_path: Path) -> None:
    """The recipe of `make docs` runs on a copy, once as the pages are and once with a dead anchor in one of them."""
    copied = (
        "docs",
        "deploy",
        "scripts",
        "mkdocs.yml",
        *(name for name in os.listdir(ROOT) if name.endswith(".md")),
    )
    for name in copied:
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    recipe = re.search(r"^docs:.*\n\t(.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert recipe
    command = recipe[1].replace("$(BIN)/python", sys.executable)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'proto'}:{ROOT}"}

    def built() -> int:
        return subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, check=False
        ).returncode

    assert built() == 0
    page = tmp_path / "docs" / "glossary.md"
    page.write_text(page.read_text(encoding="utf-8") + "\n[nowhere](index.md#nowhere)\n", encoding="utf-8")
    assert built() != 0
