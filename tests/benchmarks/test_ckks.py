"""``python -m benchmarks.ckks`` writes figures in the form that others read, at a size that takes seconds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from benchmarks.ckks import main

TINY = ("--sites", 3, "--classes", 2, "--dim", 4, "--repeats", 1)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, (*TINY, *arguments))])


@pytest.mark.full
def test_ckks_writes_one_record_for_each_case(tmp_path: Path) -> None:
    out, plot = tmp_path / "ckks.json", tmp_path / "sites.svg"
    result = invoke("--json", out, "--plot", plot, "--growth", "2,3", "--dims", "", "--key-sets", 1)
    assert result.exit_code == 0, result.output
    record = json.loads(out.read_text(encoding="utf-8"))
    assert (record["schema"], record["name"]) == (1, "ckks")
    circuit, switches, processes, site, two, three, *errors = record["cases"]
    assert (circuit["case"], circuit["baseline"]) == ("circuit", "CKKSVector, scaled")
    assert circuit["cpu_ratio"] > 1.0
    # Three conjugates; two couples, packed, summed over 11 doublings and taken apart; three relinearised answers.
    assert switches["key_switches"] == 3 + 2 + 1 + 10 + 2 + 3
    assert switches["over_bound"] > 1.0
    assert (processes["case"], processes["baseline"]) == ("two processes", "one process")
    assert processes["machine_allows"] > 0.0
    assert site["upload_bytes"] < 170_000
    assert [each["sites"] for each in (two, three)] == [2, 3]
    assert two["peak_rss_bytes"] > 2**24
    assert {each["case"] for each in errors} == {"distance error", "error"}
    for each in errors:
        assert 0.0 < each["error"] <= each["bound"]
    assert "<svg" in plot.read_text(encoding="utf-8")


@pytest.mark.parametrize("option", [("--growth", "none"), ("--sites", 2), ("--key-sets", -1)])
def test_ckks_sizes_that_are_no_numbers_are_refused(option: tuple[str, object]) -> None:
    assert invoke(*option).exit_code == 2
