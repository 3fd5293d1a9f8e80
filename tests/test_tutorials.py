"""Tutorials of docs/tutorials that need one machine, typed as they stand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agreement import load_agreement
from tests.deploy.walkthrough import ROOT, Shell, read_blocks

pytestmark = pytest.mark.full

PAGES = [
    ROOT / "docs/tutorials" / name for name in ("own-data-and-model.md", "first-private-run.md", "tables.md")
]


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Return the folder of the tutorials, and what each step printed."""
    folder = tmp_path_factory.mktemp("tutorials")
    steps = [
        (f"{page.stem} {block.step}", block.commands)
        for page in PAGES
        for block in read_blocks(_without_output(page.read_text(encoding="utf-8")))
    ]
    with Shell(folder, {}) as shell:
        return folder, {step: shell.type(commands) for step, commands in steps}


def _without_output(text: str) -> str:
    return re.sub(r"^```text\n.*?^```$", "", text, flags=re.M | re.S)


def result_of(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "result.json").read_text(encoding="utf-8"))
    return content


def test_the_model_of_ones_own_learns(typed: tuple[Path, dict[str, str]]) -> None:
    folder, _ = typed
    assert result_of(folder / "runs/own")["mean_accuracy"] > 0.7
    assert (folder / "runs/own/report.html").exists()
    assert len(json.loads((folder / "predictions.json").read_text(encoding="utf-8"))["predictions"]) == 497


def test_the_private_run_spends_what_was_planned(typed: tuple[Path, dict[str, str]]) -> None:
    folder, printed = typed
    page = PAGES[1].read_text(encoding="utf-8")
    stated, assumed, planned, *_ = printed["first-private-run 3. Plan"].splitlines()
    assert stated.startswith("If the planned noise is really added")
    assert "whether any one record is in the data set is protected" in stated
    assert "classes 10" in assumed
    assert planned.startswith("ε = 1.993")
    assert planned in page
    result = result_of(folder / "runs/private")
    assert {round(site["epsilon"], 2) for site in result["sites"]} == {1.99}


def test_the_private_federation_gains_by_the_reported_figure(typed: tuple[Path, dict[str, str]]) -> None:
    folder, _ = typed
    result = result_of(folder / "runs/private")
    assert result["inference"] == "prototype"
    for control in ("local", "self"):
        assert result["mean_accuracy"] > result["compared"][control] + 0.15
    sample = load_agreement(ROOT / "deploy/samples/agreement-private.toml").model_dump(
        mode="json", by_alias=True
    )
    for name in (
        "method",
        "protection",
        "dim",
        "norm_bound",
        "preprocessing",
        "training",
        "privacy",
        "fedpc",
    ):
        assert result["config"][name] == sample[name]


def test_four_clinics_tables_become_one_federation(typed: tuple[Path, dict[str, str]]) -> None:
    folder, printed = typed
    result = result_of(folder / "runs/clinics")
    assert [site["name"] for site in result["sites"]] == ["east", "north", "south", "west"]
    assert result["mean_accuracy"] > 0.65
    rows = (folder / "new.csv").read_text(encoding="utf-8").splitlines()[1:]
    assert printed["tables 5. Predict"].count("line ") == len(rows)
