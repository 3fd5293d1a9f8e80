"""``python -m benchmarks.pairwise`` at sizes that take no time: what it writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from benchmarks.pairwise import main

TINY = ("--classes", 2, "--dim", 3, "--repeats", 1)
STEPS = ("shares", "values", "survivors", "unmask")


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, (*TINY, *arguments))])


def cases_of(path: Path) -> list[dict[str, Any]]:
    record = json.loads(path.read_text(encoding="utf-8"))
    assert (record["schema"], record["name"]) == (1, "pairwise")
    assert {"processor", "cores", "load"} <= record["machine"].keys()
    return list(record["cases"])


def test_pairwise_writes_one_record_for_each_case(tmp_path: Path) -> None:
    out, plot = tmp_path / "pairwise.json", tmp_path / "growth.svg"
    done = invoke("--json", out, "--sites", "4,7", "--plot", plot)
    assert done.exit_code == 0, done.output
    cases = cases_of(out)
    assert [(case["sites"], case["dropped"], case["threshold"]) for case in cases] == [(4, 1, 3), (7, 2, 5)]
    for case in cases:
        assert all(case[f"{who}_{step}"] > 0 for who in ("site", "coordinator") for step in STEPS)
        assert 0 < case["sent_of_float32"] < case["of_float32"]
        assert case["coordinator_seconds"] > case["coordinator_unmask"]
        assert (case["values"], case["ring_bits"], case["fraction_bits"]) == (6, 32, 18)
    drawn = plot.read_text(encoding="utf-8")
    assert drawn.startswith("<?xml")
    assert "mathdefault" not in drawn


def test_graph_and_words_are_as_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "pairwise.json"
    more = ("--complete-up-to", 6, "--ring-bits", 64)
    done = invoke("--json", out, "--sites", "6,16", "--dropped", 0.25, *more)
    assert done.exit_code == 0, done.output
    complete, sparse = cases_of(out)
    assert (complete["holders"], complete["dropped"]) == (5, 1)
    assert sparse["holders"] < 15
    assert complete["ring_bits"] == sparse["ring_bits"] == 64


@pytest.mark.parametrize(
    ("more", "code"), [(("--sites", "5", "--dropped", 0.4), 1), (("--sites", "1"), 1), (("--sites", "a"), 2)]
)
def test_sizes_that_no_group_has(more: tuple[object, ...], code: int) -> None:
    done = invoke(*more)
    assert done.exit_code == code
    assert "Traceback" not in done.output


def test_pairwise_refuses_a_plot_without_sites(tmp_path: Path) -> None:
    assert invoke("--sites", "", "--plot", tmp_path / "x.svg").exit_code == 2
