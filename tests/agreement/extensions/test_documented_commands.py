"""Commands and files of docs/how-to/extending.md: the files as a distribution, the commands as they stand, on less
data.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agreement import Agreement, Protection
from protoseal.reports.result_files import RESULT, read_result, site_folder
from secure_client.output.site_files import read_prototypes
from secure_client.output.site_log import SITE_LOG
from tests.support.extensions import DOCUMENT, as_installed, documented_commands, documented_files

SITES = tuple(f"site-{number}" for number in range(1, 5))
LESS = """
sites = 4
split = "iid:per=20"
tests = 5
dim = 8
norm_bound = 100.0
device = "cpu"
batched = "never"
engine = "sessions"
[averaging]
most_samples = 1000
"""
SCRIPT = """
import json, sys
from protoseal.cli import main
for words in json.loads(sys.argv[1]):
    main(words, standalone_mode=False)
"""
PADS_ERROR = 1e-9
"""Largest error of means of prototypes in fixed point of 40 fractional bits; rounding to float32, in which models
train, remains.
"""
CKKS_ERROR = 1e-5
"""Largest error of means under ``ckks``; the error of CKKS is smaller (docs/explanation/ckks-error.md), but a round of
training lies between two means.
"""


def python(*words: str, cwd: Path, installed: Path, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments to its end in ``cwd``, with the modules in ``installed`` on its path."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=as_installed(installed),
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


@pytest.fixture(scope="module")
def runs(example_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all commands in one process, one after the other, and return their folder."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "less.toml").write_text(LESS, encoding="utf-8")
    commands = [[*words, "--config", "less.toml"] for words in documented_commands()]
    done = python("-c", SCRIPT, json.dumps(commands), cwd=folder, installed=example_folder, timeout=280)
    assert done.returncode == 0, done.stderr
    return folder / "runs"


def arrays(run: Path, site: str) -> list[Any]:
    found = read_prototypes(site_folder(run, site))
    return [found.local, found.personal]


def off(one: Path, other: Path) -> float:
    """Return the largest difference between the prototypes that any site has after two runs."""
    return max(
        float(np.abs(a - b).max())
        for site in SITES
        for a, b in zip(arrays(one, site), arrays(other, site), strict=True)
    )


@pytest.mark.full
def test_each_command_leaves_its_run(runs: Path) -> None:
    for words in documented_commands():
        options = dict(zip(words[1::2], words[2::2], strict=True))
        result = read_result(runs / Path(options["--out"]).name)
        assert (result.method, result.protection) == (options["--method"], options["--protection"])
        assert len(result.rounds) == int(options["--rounds"])
        assert {site.name for site in result.sites} == set(SITES)
        assert set(result.compared) == set(options.get("--compare", "").split(",")) - {""}


@pytest.mark.full
def test_the_added_method_is_the_same_under_every_protection(runs: Path) -> None:
    plain = runs / "plain"
    assert off(runs / "masked", plain) < PADS_ERROR
    assert off(runs / "pads", plain) < PADS_ERROR
    assert off(runs / "ckks", plain) < CKKS_ERROR


@pytest.mark.full
def test_added_methods_differ_from_the_built_in_methods_they_resemble(runs: Path) -> None:
    assert off(runs / "peers", runs / "peers" / "compared" / "pfpl") > 1e-3
    assert off(runs / "plain", runs / "peers") > 1e-3


@pytest.mark.full
def test_a_runs_agreement_names_the_extensions_distributions(runs: Path, example: Path) -> None:
    agreed: dict[str, Any] = json.loads((runs / "pads" / RESULT).read_text(encoding="utf-8"))["config"]
    assert agreed.pop("engine") == "sessions"  # the simulation's own, beside the agreement
    assert agreed["distributions"] == dict.fromkeys(("cosine-proto", "pads"), "protoseal-example 1.0")
    assert agreed["extension"] == {"cosine-proto": {"weight": 1.0}, "pads": {}}
    read = Agreement.from_json(json.dumps(agreed), source="run")
    assert not read.method.built_in
    assert isinstance(read.protection, Protection)
    assert "cosine-proto of protoseal-example 1.0, pads of protoseal-example 1.0" in read.summary
    assert (site_folder(runs / "pads", "site-1") / SITE_LOG).exists()


def test_documented_refusal_has_the_documented_message(example_folder: Path, tmp_path: Path) -> None:
    words = ("simulate", "--method", "cosine-peers", "--protection", "pads")
    done = python("-m", "protoseal", *words, cwd=tmp_path, installed=example_folder)
    assert done.returncode != 0
    assert done.stderr.strip() in DOCUMENT.read_text(encoding="utf-8")
    assert done.stderr.startswith("Error: ")


@pytest.mark.full
def test_the_documents_own_tests_pass(example_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "test_example.py").write_text(documented_files()["test_example.py"], encoding="utf-8")
    words = ("-q", "-c", os.devnull, "--rootdir", ".", "test_example.py")
    done = python("-m", "pytest", *words, cwd=tmp_path, installed=example_folder)
    assert "2 passed" in done.stdout, done.stdout


def test_documented_settings_file_has_the_methods_settings() -> None:
    assert tomllib.loads(documented_files()["settings.toml"]) == {
        "extension": {"cosine-proto": {"weight": 2.0}}
    }
