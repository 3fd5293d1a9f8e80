"""A simulated run with noise: what result.json, the table and the report say of epsilon."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from privacy.accounting.events import GaussianRelease
from protoseal.cli import main
from tests.support.composed import epsilon
from tests.support.marks import full_but

FILE = """
method = "pfpl"
protection = "plain"
dataset = "digits"
split = "iid"
sites = 3
rounds = 3
dim = 8
[training]
norm = "group"
optimiser = "sgd"
lr = 0.01
local_epochs = 1
[privacy]
clip = 1.0
noise_multiplier = 5.0
release_every = 2
extractor = "{extractor}"
"""


SHARED = (
    FILE.replace("pfpl", "fedpc")
    .replace("plain", "masked")
    .replace("release_every = 2", 'noise = "distributed"')
    .replace("sites = 3", "sites = 4")
)
"""Noise that four sites share."""


def simulated(folder: Path, extractor: str, text: str = FILE) -> tuple[dict[str, Any], str]:
    file = folder / "private.toml"
    file.write_text(text.format(extractor=extractor), encoding="utf-8")
    ran = CliRunner().invoke(
        main, ["simulate", "--config", str(file), "--out", str(folder / "out"), "--device", "cpu"]
    )
    assert ran.exit_code == 0, ran.output
    content: dict[str, Any] = json.loads((folder / "out" / "result.json").read_text(encoding="utf-8"))
    return content, ran.output + (folder / "out" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("extractor", "guaranteed"), full_but([("frozen", True), ("trained", False)], ("trained", False))
)
def test_simulate_private_run_shows_epsilon_and_its_guarantee(
    tmp_path: Path, extractor: str, guaranteed: bool
) -> None:
    result, shown = simulated(tmp_path, extractor)
    assert len(result["sites"]) == 3
    for site in result["sites"]:
        assert 0.5 < site["epsilon"] < 2.0  # two releases
        assert site["guaranteed"] == guaranteed
    assert result["config"]["privacy"]["extractor"] == extractor
    assert ("NO GUARANTEE" in " ".join(shown.split())) == (not guaranteed)
    assert "<th>ε</th>" in shown


@pytest.mark.parametrize("unit", full_but(["subject", "site"], "subject"))
def test_simulate_other_unit_shows_its_epsilon(tmp_path: Path, unit: str) -> None:
    """The report names the unit beside each epsilon; a site alone leaves no class in the noise."""
    changed = FILE.replace('split = "iid"', 'split = "iid:subject=5"').replace(
        "clip = 1.0", f'clip = 1.0\nunit = "{unit}"\nproject_from = 32'
    )
    file = tmp_path / "units.toml"
    file.write_text(changed.format(extractor="frozen"), encoding="utf-8")
    out = tmp_path / "out"
    ran = CliRunner().invoke(main, ["simulate", "--config", str(file), "--out", str(out), "--device", "cpu"])
    assert ran.exit_code == 0, ran.output
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    assert all(site["guaranteed"] and 0.5 < site["epsilon"] < 2.0 for site in result["sites"])
    assert f"<th>ε ({unit})</th>" in (out / "report.html").read_text(encoding="utf-8")


def test_simulate_unit_subject_without_subjects_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "units.toml"
    text = FILE.replace("clip = 1.0", 'clip = 1.0\nunit = "subject"').format(extractor="frozen")
    file.write_text(text, encoding="utf-8")
    ran = CliRunner().invoke(main, ["simulate", "--config", str(file), "--out", str(tmp_path / "out")])
    assert ran.exit_code == 1
    assert "the training samples have none" in ran.output


@pytest.mark.full
def test_simulate_shared_noise_is_paid_in_each_sum(tmp_path: Path) -> None:
    """No site has a prototype of its own from which the report could draw a line."""
    result, shown = simulated(tmp_path, "frozen", SHARED)
    for site in result["sites"]:
        assert site["epsilon"] == pytest.approx(epsilon([GaussianRelease(5.0, 10 * 9)] * 4, 1e-5))
        assert site["guaranteed"]
    assert result["config"]["privacy"]["noise"] == "distributed"
    assert "first principal component" not in shown


@pytest.mark.full
def test_simulate_without_noise_shows_no_epsilon(tmp_path: Path) -> None:
    file = tmp_path / "exact.toml"
    file.write_text(FILE.partition("[privacy]")[0], encoding="utf-8")
    out = tmp_path / "out"
    ran = CliRunner().invoke(main, ["simulate", "--config", str(file), "--out", str(out), "--device", "cpu"])
    assert ran.exit_code == 0, ran.output
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    assert {site["epsilon"] for site in result["sites"]} == {None}
    assert "<th>ε</th>" not in (out / "report.html").read_text(encoding="utf-8")
    assert "epsilon" not in ran.output


def test_simulate_infinite_epsilon_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "loud.toml"
    file.write_text(FILE.format(extractor="frozen").replace("5.0", "0.01"), encoding="utf-8")
    ran = CliRunner().invoke(main, ["simulate", "--config", str(file), "--out", str(tmp_path / "out")])
    assert ran.exit_code == 1
    assert "too small for a finite epsilon" in ran.output


@pytest.mark.full
def test_simulate_site_without_class_is_tested_by_classifier(tmp_path: Path) -> None:
    file = tmp_path / "quiet.toml"
    quiet = FILE.format(extractor="frozen").replace("release_every = 2", "min_count = 1e6")
    file.write_text(quiet, encoding="utf-8")
    out = tmp_path / "out"
    ran = CliRunner().invoke(main, ["simulate", "--config", str(file), "--out", str(out), "--device", "cpu"])
    assert ran.exit_code == 0, ran.output
    for site in json.loads((out / "result.json").read_text(encoding="utf-8"))["sites"]:
        assert site["accuracy_classifier"] > 0
        assert site["accuracy_prototype"] is None
