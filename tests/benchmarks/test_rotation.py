"""``python -m benchmarks.rotation`` at sizes that take no time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from benchmarks.rotation import RotationBenchmark, main, measure
from crypto.protection import Rows
from crypto.rotation import RotationSite

TINY = ("--sites", 3, "--classes", 2, "--dim", 4, "--repeats", 1)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, (*TINY, *arguments))])


def test_rotation_writes_one_record_for_each_case(tmp_path: Path) -> None:
    out, plot = tmp_path / "rotation.json", tmp_path / "growth.svg"
    done = invoke("--json", out, "--growth", "2,5", "--plot", plot)
    assert done.exit_code == 0, done.output
    record = json.loads(out.read_text(encoding="utf-8"))
    assert (record["schema"], record["name"]) == (1, "rotation")
    told = [(case["case"], case["classes"], case["dim"], case["baseline"]) for case in record["cases"]]
    assert told == [
        ("protect", 2, 4, "plain"),
        ("unprotect", 2, 4, "plain"),
        ("combine", 2, 4, "plain"),
        ("drawing", 2, 4, "protect"),
        ("one class", 2, 4, "QR of a Gaussian matrix"),
        ("whole row", 1, 8, "plain"),
        ("gram", 1, 8, "plain"),
        ("growth", 2, 2, "plain"),
        ("growth", 2, 5, "plain"),
    ]
    for case in record["cases"]:
        assert case["ratio"] == pytest.approx(case["baseline_seconds"] / case["seconds"])
    drawn = plot.read_text(encoding="utf-8")
    assert drawn.startswith("<?xml")
    assert "mathdefault" not in drawn


def test_rotation_refuses_a_plot_without_growth(tmp_path: Path) -> None:
    assert invoke("--growth", "", "--plot", tmp_path / "x.svg").exit_code == 2


def test_rotation_other_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    real = RotationSite.unprotect

    def off(*arguments: Any) -> Rows:
        return real(*arguments) + 1e-6

    monkeypatch.setattr(RotationSite, "unprotect", off)
    with pytest.raises(RuntimeError, match="differ"):
        list(measure(RotationBenchmark(sites=2, classes=1, dim=3, repeats=1, growth=())))
