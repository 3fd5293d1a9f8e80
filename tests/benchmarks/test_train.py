"""``python -m benchmarks.train`` writes figures in the form that others read, at sizes that take no time."""

from __future__ import annotations

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from torchvision.datasets import MNIST

from benchmarks.record import Case, Spent, compare, peak_memory, write_record
from benchmarks.train import CIFAR, NETWORKS, TrainingBenchmark, main, measure

TINY = ("--sites", 2, "--samples", 6, "--batch", 4, "--repeats", 1, "--growth-samples", 5, "--device", "cpu")


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, (*TINY, *arguments))])


def record_of(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


@pytest.mark.full
def test_train_writes_one_record_for_each_case(tmp_path: Path) -> None:
    out = tmp_path / "new" / "train.json"
    result = invoke("--json", out, "--growth", "1,3", "--memory-sites", 3, "--memory-samples", 5)
    assert result.exit_code == 0, result.output
    record = record_of(out)
    assert (record["schema"], record["name"]) == (1, "train")
    assert {"processor", "cores", "load", "torch", "threads", "device"} <= record["machine"].keys()
    batched, one, three, memory = record["cases"]
    assert (batched["case"], batched["sites"], batched["samples"], batched["data"]) == (
        "batched",
        2,
        6,
        "random",
    )
    assert [(case["case"], case["sites"]) for case in (one, three)] == [("growth", 1), ("growth", 3)]
    for case in (batched, one, three):
        assert case["seconds"] > 0
        assert case["ratio"] == pytest.approx(case["baseline_seconds"] / case["seconds"])
    assert (memory["sites"], memory["ratio"], memory["baseline_seconds"]) == (3, None, None)
    assert memory["peak_rss_bytes"] > 2**24
    assert "peak bytes" in result.stdout


def test_train_empty_growth_leaves_its_cases_out() -> None:
    result = invoke("--growth", "", "--memory-sites", 0)
    assert result.exit_code == 0, result.output
    assert "growth" not in result.stdout
    assert "memory" not in result.stdout


@pytest.mark.parametrize("growth", ["five", "0", "5,-1"])
def test_train_growth_that_is_no_number_is_refused(growth: str) -> None:
    assert invoke("--growth", growth).exit_code == 2


@pytest.mark.full
def test_train_mnist_files_are_used(tmp_path: Path) -> None:
    """MNIST's own files, of which the test makes small ones."""
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for part, count in (("train", 12), ("t10k", 2)):
        images, labels = np.zeros((count, 28, 28), np.uint8), np.arange(count, dtype=np.uint8) % 10
        header = np.array([2051, count, 28, 28], ">i4").tobytes()
        (folder / f"{part}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(
            np.array([2049, count], ">i4").tobytes() + labels.tobytes()
        )
    assert len(MNIST(tmp_path)) == 12
    out = tmp_path / "train.json"
    done = invoke("--json", out, "--growth", "", "--memory-sites", 0, "--data-root", tmp_path)
    assert done.exit_code == 0, done.output
    assert record_of(out)["cases"][0]["data"] == "mnist"


def test_train_missing_mnist_files_are_named(tmp_path: Path) -> None:
    result = invoke("--data-root", tmp_path)
    assert result.exit_code == 1
    assert "MNIST" in result.stderr
    assert result.stderr.count("Error: ") == 1


def test_case_ratio_is_the_median_over_pairs() -> None:
    """A slow minute meets both ways, and does not make one of them look slow."""
    ours = [Spent(1.0, 1.0), Spent(10.0, 1.0), Spent(1.0, 2.0)]
    case = Case({"case": "x"}, ours, baseline=[Spent(2.0, 3.0), Spent(20.0, 3.0), Spent(3.0, 3.0)])
    assert (case.ratio, case.cpu_ratio) == (2.0, 3.0)
    seconds = {"seconds": 1.0, "baseline_seconds": 3.0, "ratio": 2.0, "cpu_ratio": 3.0}
    assert case.as_json() == {"case": "x", **seconds, "repeats": 3}


def test_compare_runs_both_sides_by_turns() -> None:
    turns: list[str] = []
    case = compare({}, lambda: turns.append("ours"), lambda: turns.append("baseline"), repeats=2)
    assert turns == ["baseline", "ours"] * 3
    assert len(case.spent) == len(case.baseline) == 2


def test_write_record_nan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_record(tmp_path / "x.json", {"seconds": float("nan")})


def _grown(numbers: int) -> int:
    before = peak_memory()
    kept = np.ones(numbers)
    return peak_memory() - before if kept.all() else 0


@pytest.mark.full
def test_peak_memory_grows_with_what_is_kept() -> None:
    """Memory is measured in a fresh process, since earlier allocations of this one would hide growth."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
        assert fresh.submit(_grown, 2**25).result() > 2**25 * 8 / 2


@pytest.mark.full
@pytest.mark.parametrize("model", NETWORKS)
def test_train_runs_every_network(model: str, tmp_path: Path) -> None:
    out = tmp_path / "train.json"
    options = ("--growth", "", "--memory-sites", 0, "--model", model, "--at-once", 2)
    assert invoke("--json", out, *options).exit_code == 0
    (case,) = record_of(out)["cases"]
    assert (case["model"], case["at_once"], case["data"]) == (model, 2, "random")


@pytest.mark.full
def test_train_hundred_sites_fit_in_memory() -> None:
    """100 sites × the network for CIFAR-10, with its 50 000 images among them, in 4 GiB; here of a step each."""
    plan = TrainingBenchmark(*(1, 1, 10, 1), growth=(), memory_sites=100, memory_samples=20, device="cpu")
    *_, case = measure(plan)
    sites, peak = case.what["sites"], case.what["peak_rss_bytes"]
    assert sites == 100
    assert isinstance(peak, int)
    rest_of_the_images = (50_000 - 100 * 20) * CIFAR.channels * CIFAR.side**2 * 4
    assert peak > 100 * sum(each.numel() * 4 for each in CIFAR.build().parameters())  # it does count them
    assert peak + rest_of_the_images < 4 * 2**30
