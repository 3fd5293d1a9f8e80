"""Runs in lockstep equal runs alone: in float64 up to 1e-9, also when resumed, and beside a diverging site."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.progress import Progress
from torch.utils.data import TensorDataset

from agreement import Method
from protoseal.commands.simulation_progress import Bars
from protoseal.reports.result_files import read_result
from protoseal.simulation import experiment
from protoseal.simulation.batched import training as batched
from protoseal.simulation.batched.training import Batching, runs_at_once
from protoseal.simulation.config import SimulationConfig
from protoseal.simulation.experiment import CompletedRound, EndedRun, SeedRuns, Watcher, simulate
from protoseal.simulation.run_folder import STATE, OtherSimulation, RunFolder, SavedRun
from protoseal.simulation.site_pool import SiteTraining
from protoseal.simulation.tensors.checkpoint import Checkpoints
from protoseal.simulation.tensors.federation import TensorFederation
from protoseal.simulation.tensors.lockstep import run_in_lockstep
from secure_client.checkpoints.predictor import Predictor
from tests.protoseal.simulation.tensors.engines import (
    Run,
    check_equal,
    double_data,
    read_payloads,
    read_tensors,
    spoil,
)
from tests.support.simulations import DIGITS, Killed, config_in, fail_at
from tests.support.small import small_agreement, small_data

CLOSE = 1e-9
"""Of numbers in float64, after a few rounds, the order of whose sums differs."""
SITES, ROUNDS, SEEDS = 4, 2, (0, 1, 2)
METHODS = (Method.PFPL, Method.FEDPC, Method.LOCAL)
SMALL = DIGITS.replace("iid:per=40", "mixed:n=4,max=20,val=0.2").replace("never", "always")
FILE = f"""
method = "pfpl"
compare = ["fedpc", "local"]
seeds = [0, 1, 2]
rounds = {ROUNDS}
min_holders = 2
early_stopping = 1
{SMALL.replace("small-cnn", "tests.support.tiny_models:build_normed_images")}"""


class Ends(Watcher):
    """Watcher that records the ends of runs."""

    def __init__(self) -> None:
        self.ended: list[EndedRun] = []

    def on_run(self, ended: EndedRun) -> None:
        """Record the end."""
        self.ended.append(ended)


@pytest.fixture
def doubled(float64: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train on data in float64."""
    load = experiment.load_scene

    def load_doubled(*arguments: Any) -> experiment.Scene:
        scene = load(*arguments)
        overall = scene.overall
        assert isinstance(overall, TensorDataset)
        inputs, labels = overall.tensors
        return replace(scene, data=double_data(scene.data), overall=TensorDataset(inputs.double(), labels))

    monkeypatch.setattr(experiment, "load_scene", load_doubled)


def config_for(out: Path, **flags: Any) -> SimulationConfig:
    return config_in(FILE, out, **flags)


def run_of(out: Path, seed: int, method: Method) -> Run:
    """Return a run of a finished simulation; its bytes are in the sites' logs."""
    folder = out / f"seed-{seed}"
    files = folder if method is METHODS[0] else folder / "compared" / method.value
    outcome = SavedRun.read(folder / "runs" / f"{method.value}.json").outcome
    return Run(outcome, {}, read_tensors(files / "sites"))


def check_same(out: Path, reference: Path) -> None:
    for seed in SEEDS:
        for method in METHODS:
            got, expected = run_of(out, seed, method), run_of(reference, seed, method)
            check_equal(got, expected, CLOSE)
            assert got.outcome.best_round == expected.outcome.best_round
            assert bool(got.tensors) is (method is not Method.LOCAL)
    groups = [len(run_of(out, seed, Method.FEDPC).outcome.rounds[0].groups) for seed in SEEDS]
    assert max(groups) > 1
    assert not (out / STATE).exists()


def test_seeds_in_lockstep_equal_seeds_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, doubled: None
) -> None:
    """A run that is killed while seeds train, and while one is saved, resumes to the same."""
    simulate(config_for(tmp_path / "alone"))
    sizes: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr("protoseal.simulation.site_pool.run_together", count_jobs(sizes))
        patch.setattr(SeedRuns, "seeds_at_once", len(SEEDS))
        results = simulate(config_for(tmp_path / "together"), ends := Ends())
    assert results.complete
    assert max(sizes) == SITES * len(SEEDS)
    assert "failed, and " not in caplog.text
    assert [(ended.seed, ended.method) for ended in ends.ended] == [
        (seed, method) for method in METHODS for seed in SEEDS
    ]
    check_same(tmp_path / "together", tmp_path / "alone")

    out = tmp_path / "killed"
    monkeypatch.setattr(SeedRuns, "seeds_at_once", len(SEEDS))
    for owner, name, count in ((Checkpoints, "save", 2), (Predictor, "save", SITES + 2)):
        with monkeypatch.context() as patch:
            patch.setattr(Checkpoints, "is_due", True)
            fail_at(patch, owner, name, count, after=True)
            with pytest.raises(Killed):
                simulate(config_for(out))
    simulate(config_for(out), ends := Ends())
    assert [(ended.seed, ended.method) for ended in ends.ended if not ended.anew] == [(0, METHODS[0])]
    check_same(out, tmp_path / "alone")


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("open", torch.OutOfMemoryError("others use the GPU")),
        ("claim", OtherSimulation("another process has this run")),
    ],
    ids=["memory", "lock"],
)
def test_refused_seed_in_lockstep_spares_those_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: Exception
) -> None:
    call = getattr(SeedRuns, name)

    def call_but_last(runs: SeedRuns, method: Method) -> Any:
        if runs._seed == SEEDS[-1]:
            raise error
        return call(runs, method)

    monkeypatch.setattr(SeedRuns, name, call_but_last)
    monkeypatch.setattr(SeedRuns, "seeds_at_once", len(SEEDS))
    config = config_for(tmp_path / "out", compare=("local",), early_stopping=None)
    with pytest.raises(type(error)):
        simulate(config)
    folder = RunFolder(config)
    records = {seed: [folder.record(seed, method).exists() for method in config.methods] for seed in SEEDS}
    assert records == {0: [True, True], 1: [True, True], 2: [False, False]}
    assert [figures.seed for figures in read_result(config.out).seeds] == [0, 1]


def count_jobs(sizes: list[int]) -> Callable[..., Any]:
    """Train together as before, and add the number of jobs to ``sizes``."""

    def counted(jobs: Any, *arguments: Any, **named: Any) -> Any:
        sizes.append(len(jobs))
        return batched.run_together(jobs, *arguments, **named)

    return counted


def test_run_in_lockstep_diverging_site_leaves_other_runs_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Sites of both runs train in two programs, of which one has no spoilt site and ends before the error."""
    monkeypatch.setattr(batched, "MOST_ON_CPU", 4)
    agreement, training = small_agreement(), SiteTraining(batching=Batching.ALWAYS)
    whole = small_data(agreement)
    data = {"whole": whole, "spoilt": spoil(whole, "clinic-b")}

    def run(folder: str, names: list[str]) -> dict[str, Run]:
        federations, runs = {}, {}
        for name in names:
            state = tmp_path / folder / name
            state.mkdir(parents=True)
            federations[name] = TensorFederation(agreement, data[name], training=training, state=state)
        run_in_lockstep([federation.rounds() for federation in federations.values()], training)
        for name, federation in federations.items():
            with federation:
                outcome = federation.save(tmp_path / folder / name / "out")
            state = tmp_path / folder / name
            runs[name] = Run(outcome, read_payloads(state), read_tensors(state / "out"))
        return runs

    together, alone = run("together", ["whole", "spoilt"]), run("a", ["whole"]) | run("b", ["spoilt"])
    assert caplog.text.count("as one program failed, and each run trains alone: ") == agreement.rounds
    for name, got in together.items():
        check_equal(got, alone[name], 0.0)
    assert all(report.trained for log in together["whole"].outcome.sites.values() for report in log.rounds)
    for site, log in together["spoilt"].outcome.sites.items():
        assert all(report.trained is (site != "clinic-b") for report in log.rounds)


def test_runs_at_once_fit_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    data = small_data(small_agreement())
    device, model = torch.device("meta"), 1000
    monkeypatch.setattr(batched, "GPU_BYTES", 0)
    assert runs_at_once(data.values(), model, device) == 1
    monkeypatch.setattr(batched, "GPU_BYTES", 2**20)
    few, many = (list(data.values())[:count] for count in (2, 4))
    assert runs_at_once(few, model, device) > runs_at_once(many, model, device) > 1
    assert runs_at_once(many, model, device) > runs_at_once(many, 2 * model, device)
    monkeypatch.setattr(batched, "GPU_BYTES", 2**40)
    assert runs_at_once(many, model, device) == batched.MOST_RUNS  # each has its data in the host's memory
    assert runs_at_once(many, batched.ALONE_ON_GPU, device) == 1


@pytest.mark.parametrize(
    ("device", "flags", "several"),
    [
        ("cuda", {}, True),
        ("cpu", {}, False),
        ("cuda", {"batched": "never"}, False),
        ("cuda", {"engine": "sessions"}, False),
    ],
)
def test_seeds_at_once_several_on_tensors_and_another_device_than_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, flags: dict[str, str], several: bool
) -> None:
    monkeypatch.setattr(experiment, "choose_device", lambda name: torch.device(device))
    config = config_for(tmp_path / "out", **flags)
    runs = SeedRuns(config, 0, RunFolder(config), None, Watcher())
    assert (runs.seeds_at_once > 1) is several


def test_bars_runs_in_lockstep_advance_by_one_round_each() -> None:
    bar = Progress(disable=True)
    bars = Bars(bar, bar.add_task("rounds"), ROUNDS)
    seen = []
    for number in range(1, ROUNDS + 1):
        for seed in SEEDS:
            bars.on_completed(CompletedRound(seed, METHODS[0], number, {}))
            seen.append(bar.tasks[0].completed)
    assert seen == list(range(1, ROUNDS * len(SEEDS) + 1))
