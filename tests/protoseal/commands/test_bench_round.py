"""``protoseal bench round`` at a size that takes seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from protoseal.bench import round as bench_round
from protoseal.bench.record import Spent
from protoseal.bench.round import RoundBenchmark, RoundCosts, measure
from protoseal.cli import main

TINY = ("--sites", 3, "--samples", 44, "--dim", 4, "--repeats", 1)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["bench", "round", *map(str, (*TINY, *arguments))])


def cases_of(path: Path) -> list[dict[str, Any]]:
    record = json.loads(path.read_text(encoding="utf-8"))
    assert (record["schema"], record["name"]) == (1, "round")
    cases: list[dict[str, Any]] = record["cases"]
    return cases


def test_bench_round_writes_one_record_for_each_protection(tmp_path: Path) -> None:
    out = tmp_path / "round.json"
    done = invoke("--json", out)
    assert done.exit_code == 0, done.output
    cases = cases_of(out)
    assert [(case["case"], case["protection"]) for case in cases] == [
        *(("round", name) for name in ("plain", "masked", "ckks")),
        *(("set-up", name) for name in ("plain", "masked", "ckks")),
    ]
    plain, masked, ckks = rounds = cases[:3]
    assert (plain["data"], plain["sites"], plain["classes"], plain["dim"]) == ("digits", 3, 10, 4)
    assert plain["ratio"] is None
    for case in rounds:
        parts = sum(case[f"{name}_seconds"] for name in ("train", "protect", "aggregate"))
        assert 0 < parts < case["seconds"]
        assert 0 < case["rest_cpu_seconds"] < case["cpu_seconds"]
    for case in (masked, ckks):
        assert case["over_plain"] == pytest.approx(case["seconds"] / plain["seconds"])
        assert case["over_plain"] == pytest.approx(1 / case["ratio"])
        # What is added to both of a ratio brings it nearer to 1.
        apart = case["rest_cpu_seconds"] / plain["rest_cpu_seconds"] - 1.0
        assert 0.0 < (case["same_training_over_plain"] - 1.0) / apart < 1.0
    rows = 10 * 4 * 8
    assert rows < plain["bytes_up"] < rows + 1000
    assert ckks["bytes_up"] > 100 * masked["bytes_up"]
    assert {"seconds", "repeats"} <= cases[-1].keys()


@pytest.mark.full
@pytest.mark.parametrize("method", ["fedpc", "feddbp", "fedplcc"])
def test_bench_round_runs_every_method(method: str, tmp_path: Path) -> None:
    out = tmp_path / "round.json"
    done = invoke("--json", out, "--method", method)
    assert done.exit_code == 0, done.output
    assert {case["method"] for case in cases_of(out)} == {method}


@pytest.mark.full
def test_bench_round_sums_prototypes_of_equal_weights_in_32_bit_words(tmp_path: Path) -> None:
    out = tmp_path / "round.json"
    done = invoke("--json", out, "--weighting", "uniform", "--dim", 512)
    assert done.exit_code == 0, done.output
    _, masked, _ = cases_of(out)[:3]
    assert masked["float32_bytes"] < masked["bytes_up"] < 1.1 * masked["float32_bytes"]


def test_real_digits_have_to_be_there(tmp_path: Path) -> None:
    result = invoke("--data-root", tmp_path)
    assert result.exit_code == 1
    assert "MNIST" in result.stderr


def test_protections_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    advanced: list[str] = []
    real = bench_round.Course.advance

    def told(course: bench_round.Course) -> None:
        advanced.append(course.protection.value)
        real(course)

    monkeypatch.setattr(bench_round.Course, "advance", told)
    cases = list(measure(RoundBenchmark(sites=3, samples=44, dim=4, repeats=1)))
    assert advanced == ["plain", "masked", "ckks"] * 2
    assert {len(case.spent) for case in cases} == {1}  # one round of the two counts for nothing


def test_ratios() -> None:
    """Training that others made slow is not held against a protection where it counts as the same."""
    base = RoundCosts(Spent(12.0, 10.0), Spent(10.0, 8.0), 10.0, 1.0, 0.5, 0.0, 0.0)
    ours = RoundCosts(Spent(24.0, 15.0), Spent(20.0, 12.0), 20.0, 2.0, 1.0, 0.0, 0.0)
    ratios = bench_round._ratios([ours], [base], sites=2)
    assert ratios == {
        "over_plain": 2.0,
        "cpu_over_plain": 1.5,
        "same_training_over_plain": pytest.approx((10.0 + 3.0) / (10.0 + 2.0)),
        "apart_over_plain": pytest.approx((8.5 + 1.0) / (8.0 + 0.5)),
    }
