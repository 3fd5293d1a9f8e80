"""Command ``budget audit run`` on the folder of a simulation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from sklearn.datasets import load_digits

from protoseal.commands.budget_audit import EXIT_CODES, audit_group
from protoseal.simulation.config import SPLITTING, load_simulation
from protoseal.simulation.experiment import simulate
from tests.support.weakenings import RELEASE_DOUBLES

SETTINGS = {
    "sites": 3,
    "rounds": 2,
    "dim": 32,
    "split": "iid:per=60",
    "privacy": {"clip": 1.0, "noise_multiplier": 2.0, "min_count": 1.0},
}


def audit(folder: Path, *options: str) -> Result:
    """Audit a run; the default confidence refutes one true run in a hundred."""
    return CliRunner().invoke(audit_group, ["run", str(folder), "--confidence", "0.99999", *options])


@pytest.mark.full
def test_audit_run_folder_of_seeds_and_methods_audits_each_run(tmp_path: Path) -> None:
    of_many = {
        "compare": ("fedproto", "local"),
        "seeds": (0, 1),
        "keep_releases": True,
        "out": str(tmp_path / "run"),
    }
    simulate(load_simulation(None, SETTINGS | of_many))
    result = audit(tmp_path / "run", "--json")
    assert result.exit_code == EXIT_CODES["stands"]
    runs = json.loads(result.stdout)["runs"]
    assert {run["run"] for run in runs} == {
        f"{method}-seed-{seed}" for method in ("pfpl", "fedproto") for seed in (0, 1)
    }
    assert {check["site"] for check in runs[0]["checks"]} == {"site-1", "site-2", "site-3", "all sites"}


@pytest.mark.full
@pytest.mark.parametrize(
    ("keeps", "verdict"), [(True, "refuted"), (False, "refuted"), (None, "too weak to tell")]
)
def test_audit_run_verdict_decides_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps: bool | None, verdict: str
) -> None:
    """A tenth of the noise shows with and without kept releases; a true run without any stays open."""
    if keeps is not None:
        RELEASE_DOUBLES["a tenth of the noise"](monkeypatch)
    simulate(load_simulation(None, SETTINGS | {"keep_releases": bool(keeps), "out": str(tmp_path / "run")}))
    result = audit(tmp_path / "run")
    assert result.exit_code == EXIT_CODES[verdict]
    assert result.stdout.startswith(verdict.upper())


@pytest.mark.full
def test_audit_run_simulation_of_a_file_for_each_site_stands(tmp_path: Path) -> None:
    images, labels = load_digits(return_X_y=True)
    (tmp_path / "data").mkdir()
    for site in range(3):
        own = slice(site, 600, 3)
        scans = (images[own] * 15).reshape(-1, 8, 8).astype(np.uint8)
        arrays = {"x": scans, "y": labels[own]}
        table = {f"{name}_{part}": array for part in ("train", "test") for name, array in arrays.items()}
        np.savez(tmp_path / "data" / f"site-{site + 1}.npz", **table)
    given = {name: value for name, value in SETTINGS.items() if name not in SPLITTING}
    of_files = {"dataset": f"sites:{tmp_path / 'data'}", "keep_releases": True, "out": str(tmp_path / "run")}
    images_of = {"image_size": 8, "channels": 1, "mean": [0.5], "std": [0.5]}
    simulate(load_simulation(None, given | of_files | {"preprocessing": images_of}))
    assert audit(tmp_path / "run").exit_code == EXIT_CODES["stands"]


def test_audit_run_folder_of_anything_else_is_refused(tmp_path: Path) -> None:
    result = audit(tmp_path)
    assert result.exit_code == 1
    assert "simulation.json" in result.stderr
