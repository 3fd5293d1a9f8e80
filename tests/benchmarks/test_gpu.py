"""``make gpu`` finds wrong paths and wrong limits, survives parts that fail, and writes its figures; here on a CPU."""

from __future__ import annotations

import gc
import itertools
import json
import weakref
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from benchmarks.gpu import equality, limits, paths, speed
from benchmarks.gpu.__main__ import main, run_part
from benchmarks.gpu.equality import Case, Comparison, Outcome, choices, compare, raise_logged_errors
from benchmarks.gpu.parts import PARTS, Part
from benchmarks.gpu.paths import BRIEF, DIGITS, compare_private
from benchmarks.gpu.report import PartReport, markdown
from benchmarks.workloads import WORKLOADS
from protoseal.simulation.batched import graphs
from protoseal.simulation.batched.feed import StackedBatch
from tests.support.marks import full_but

CPU = torch.device("cpu")
CASE = Case(
    "pfpl",
    {**DIGITS, "method": "pfpl", "split": "iid:per=30", "sites": 3},
    BRIEF,
    ({"batched": "always", "seeds": [7]},),
)
TINY = replace(WORKLOADS["small-cnn-28"], sites=2, batch=4, steps=2)


@pytest.mark.full
def test_compare_equal_paths_have_no_problem() -> None:
    (comparison,) = compare(CASE, "cpu")
    assert comparison.problems == ()
    assert comparison.distances.keys() == {"losses", "model", "prototypes"}
    assert all(distance <= tolerance < shift for distance, tolerance, shift in comparison.distances.values())


@pytest.mark.full
def test_compare_learning_rate_one_percent_off_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right, calls = equality.run, itertools.count(1)

    def run(case: Case, flags: Mapping[str, object], *settings: str) -> Outcome:
        is_on_device = next(calls) == 4  # after the reference, reordered and shifted
        return right(case, flags, *settings, *(["training.lr=0.0303"] if is_on_device else []))

    monkeypatch.setattr(equality, "run", run)
    monkeypatch.setattr(equality, "SEEDS", (0,))
    (comparison,) = compare(CASE, "cpu")
    assert any(problem.startswith("model: distance") for problem in comparison.problems)


def test_choices_are_those_of_the_setting() -> None:
    assert choices("batched") == ("always", "never")


@pytest.mark.full
def test_compare_deep_networks_lower_precision_alone_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "DEEP", {})
    assert [comparison.problems for comparison in paths.compare_deep_networks("cpu")] == [(), ()]


@pytest.mark.full
def test_compare_private_noise_alone_is_no_problem() -> None:
    assert [comparison.problems for comparison in compare_private("cpu")] == [(), ()]


@pytest.mark.parametrize("name", full_but(WORKLOADS, "small-cnn"))
def test_check_limits_every_limit_takes_the_same_step(name: str) -> None:
    distances = limits.check_limits(replace(WORKLOADS[name], sites=2, batch=2), CPU)
    assert distances.keys() == limits.limits_on(CPU).keys()
    assert max(distances.values()) < speed.EXACT


def test_time_training_limit_of_another_step_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(batches: limits.Batches, mixed: bool) -> limits.Limit:
        batches.labels.zero_()
        return limits.stacked(batches, mixed)

    monkeypatch.setitem(limits.LIMITS, "stacked", other)
    with pytest.raises(ValueError, match="stacked"):
        list(speed.time_training(TINY, CPU, turns=1))


@pytest.mark.parametrize("name", limits.limits_on(CPU))
def test_limits_in_bfloat16_stay_near_float32(name: str) -> None:
    """Eight bits of a factor leave a step's error below a tenth of the step."""
    make, begun = limits.LIMITS[name], nn.utils.parameters_to_vector(TINY.network().parameters()).detach()
    exact, mixed = (make(limits.Batches.draw(TINY, CPU), kind).weights() for kind in (False, True))
    assert 0 < float((mixed - exact).norm()) < 0.1 * float((exact - begun).norm())


def test_shuffle_batches_last_one_may_be_shorter() -> None:
    batches = list(speed.shuffle_batches(torch.arange(7.0), torch.arange(7), 3))
    assert [len(inputs) for inputs, _ in batches] == [3, 3, 1]
    assert sorted(torch.cat([labels for _, labels in batches]).tolist()) == list(range(7))


@pytest.mark.full
def test_measure_round_training_is_a_part_of_the_round() -> None:
    measured = speed.measure_round(replace(TINY, sites=3), "pfpl", {}, "cpu")
    assert 0 < measured.training < measured.seconds
    assert measured.groups.keys() >= {"SQLite", "hashing", "other"}


def test_run_part_failure_and_timeout_are_reported_and_logged(tmp_path: Path) -> None:
    part, log = PARTS["tests"], tmp_path / "log"
    failed = run_part("no such part", part, device="cpu", running=set(), log=log)
    assert "KeyError" in failed.failure
    assert failed.problems
    stopped = run_part("networks", Part(part.run, seconds=0), device="cpu", running=set(), log=log)
    assert stopped.failure.startswith("stopped after 0 s, ")
    assert "KeyError" in log.read_text(encoding="utf-8")


@pytest.mark.parametrize("limit", sorted({*limits.LIMITS} - {*limits.limits_on(CPU)}))
def test_limits_in_graphs_keep_the_tensors_of_their_steps(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph holds addresses only: freed memory would belong to the limit that is made next."""
    for name in ("Stream", "CUDAGraph", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, Mock())
    for name in ("graph", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, **__: nullcontext())
    batches = limits.Batches.draw(TINY, CPU)
    model = weakref.ref(batches.models[-1])
    step = limits.LIMITS[limit](batches, False).step
    del batches
    gc.collect()
    assert model() is not None
    step()


def test_compare_networks_dropout_on_a_device_is_always_batched(monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one a card draws other masks, from one generator."""
    cases: list[Case] = []

    def collect(case: Case, device: str) -> list[Comparison]:
        del device
        cases.append(case)
        return []

    monkeypatch.setattr(paths, "compare", collect)
    assert not list(paths.compare_networks("cpu"))
    runs: list[Mapping[str, object]] = []

    def run(case: Case, flags: Mapping[str, object], *settings: str) -> Outcome:
        del case, settings
        runs.append(flags)
        return Outcome({}, {})

    monkeypatch.setattr(equality, "run", run)
    (dropout,) = (case for case in cases if case.beside_itself)
    assert not [comparison.problems for comparison in compare(dropout, "cuda") if comparison.problems]
    assert {flags["device"] for flags in runs} == {"cuda"}
    assert {"schedule", "two groups"} <= {case.name for case in cases}
    assert "never" not in {flags.get("batched") for flags in runs}


def test_compare_deep_networks_learning_rate_is_exact_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph reads its learning rate in float32, and the weights are compared to fifteen digits."""
    rates: list[float] = []
    monkeypatch.setattr(paths, "run_together", lambda jobs, *_, **__: rates.append(jobs[0].schedule.lr))
    monkeypatch.setattr(paths, "DEEP", {"tiny": TINY})
    list(paths.compare_deep_networks("cpu"))
    exact = [rate for rate in rates if float(np.float32(rate)) == rate]
    assert len(exact) == len(rates) - 2  # two calls with another rate, on the CPU


def test_raise_logged_errors_step_without_a_graph_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "capture", Mock(side_effect=RuntimeError("no capture")))
    monkeypatch.setattr(torch.cuda, "empty_cache", Mock())
    monkeypatch.setattr(torch.cuda, "memory_reserved", Mock(return_value=0))
    steps = graphs.GraphedSteps(graphs.Captures())
    batch = StackedBatch(range(1), torch.zeros(1, 1), torch.zeros(1, 1), (1,))
    for _ in range(graphs.WARM_STEPS):
        steps(Mock(), batch)
    with pytest.raises(RuntimeError, match="could not be captured") as raised, raise_logged_errors():
        steps(Mock(), batch)
    assert str(raised.value.__cause__) == "no capture"


def test_compare_error_that_ends_the_device_ends_the_part(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(case: Case, flags: Mapping[str, object], *settings: str) -> Outcome:
        del case, settings
        if flags["device"] == "cuda":
            raise RuntimeError("illegal memory access")
        return Outcome({}, {})

    monkeypatch.setattr(equality, "run", run)
    monkeypatch.setattr(torch.cuda, "synchronize", Mock(side_effect=[None] * len(equality.SEEDS)))
    assert next(compare(CASE, "cuda")).problems == ("RuntimeError: illegal memory access",)
    monkeypatch.setattr(torch.cuda, "synchronize", Mock(side_effect=RuntimeError("ended")))
    with pytest.raises(RuntimeError, match="ended"):
        next(compare(CASE, "cuda"))


def test_markdown_ratio_is_to_the_fastest_limit() -> None:
    row = {"kind": "Timing", "precision": "tf32", "reason": ""}
    times = {"one by one": 40.0, "stacked": 8.0, speed.PRODUCT: 12.0}
    rows = [row | {"way": way, "milliseconds": value} for way, value in times.items()]
    wrong = {
        "kind": "Comparison",
        "name": "pfpl",
        "seed": 0,
        "distances": {"model": [1.0, 2.0, 3.0]},
        "problems": ["x"],
    }
    reports = [PartReport("speed-a", 1.0, rows), PartReport("plain", 2.0, [wrong])]
    text = markdown(reports, {"card": "none"})
    assert "| a | tf32 | – | 40 | 8 | – | – | 12 | 1.5 | – |" in text
    assert "- plain: pfpl: x" in text
    assert [bool(report.problems) for report in reports] == [False, True]


@pytest.mark.full
def test_gpu_command_on_a_cpu_writes_tables_and_json(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["--cpu", "--only", "speed-small-cnn-28", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    assert {row["way"] for row in record["parts"][0]["rows"]} >= {speed.PLAIN, speed.PRODUCT, "stacked"}
    assert "| small-cnn-28 | float32 |" in (tmp_path / "gpu.md").read_text(encoding="utf-8")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_gpu_command_without_a_gpu_is_refused() -> None:
    result = CliRunner().invoke(main, [])
    assert result.exit_code == 2
    assert "--cpu" in result.stderr
