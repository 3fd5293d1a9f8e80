"""Both engines come to accuracies that are equal over seeds, and the benchmark of them writes figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.engines import main, pair_by_seed

POINTS = 0.5
"""Largest difference, in points, of the engines' mean accuracies, and half of its interval, that counts as none."""


@pytest.mark.full
def test_engines_accuracies_over_five_seeds_are_equal() -> None:
    what = pair_by_seed("pfpl", seeds=5, rounds=2).what
    assert isinstance(what["difference"], float)
    assert isinstance(what["interval"], float)
    assert abs(what["difference"]) + what["interval"] <= POINTS


@pytest.mark.full
def test_main_writes_each_case(tmp_path: Path) -> None:
    path = tmp_path / "engines.json"
    few = ["--methods", "fedavg", "--seeds", "2", "--rounds", "1", "--sites", "6", "--json", str(path)]
    result = CliRunner().invoke(main, few)
    assert result.exit_code == 0, result.output
    cases = json.loads(path.read_text(encoding="utf-8"))["cases"]
    assert [case["case"] for case in cases] == ["6 sites", "6 sites", "paired"]
    assert 0 < cases[0]["training"] < 1
