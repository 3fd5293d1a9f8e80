"""Runs of simulations as tasks of Ray: what a task refuses, and whole commands on clusters of this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agreement.errors import UserError
from benchmarks import ray_sweep
from benchmarks.ray_machines import start_machines
from protoseal.reports.sweep_table import CSV, JSON
from protoseal.simulation import ray_runs
from protoseal.simulation.config import SimulationConfig
from protoseal.simulation.experiment import CompletedRound, Watcher, claim_folder, divide_data, run_method
from protoseal.simulation.experiment import simulate as simulate_here
from protoseal.simulation.ray_runs import (
    FolderNotShared,
    RayRunsFailed,
    RunResources,
    TaskConfig,
    start_ray_runs,
)
from protoseal.simulation.run_folder import CLAIM, OtherSimulation, RunFolder
from tests.support import ray_model
from tests.support.simulations import DIGITS, config_in

ROOT = Path(__file__).parents[3]
FILE = f"""
method = "local"
rounds = 2
{DIGITS.replace("per=40", "per=20").replace("small-cnn", "tests.support.tiny_models:build_tanh")}"""


def config_for(out: Path) -> SimulationConfig:
    return config_in(FILE, out)


# What is refused


def test_start_ray_runs_without_ray_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setitem(sys.modules, "ray", None)
    before = dict(os.environ)
    with pytest.raises(UserError, match=r"protoseal\[ray\]"), start_ray_runs([config_for(tmp_path)], "local"):
        pass
    assert dict(os.environ) == before


def test_start_ray_runs_fresh_without_a_cluster_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_for(tmp_path / "out")
    simulate_here(config)
    before = sorted(config.out.rglob("*"))

    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError("no cluster")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=refuse))
    with (
        pytest.raises(UserError, match="there is no cluster"),
        start_ray_runs([config], "10.0.0.1:6379", fresh=True),
    ):
        pass
    assert sorted(config.out.rglob("*")) == before


@pytest.mark.parametrize("content", [None, "another token"])
def test_task_without_the_commands_folder_is_refused(tmp_path: Path, content: str | None) -> None:
    config = config_for(tmp_path / "out")
    table = config.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if content is not None:
        (config.out / ".state").mkdir(parents=True)
        (config.out / ".state" / "probe").write_text(content, encoding="ascii")
    task = TaskConfig(table, str(tmp_path), "token")
    assert task.load() == config
    with pytest.raises(FolderNotShared, match="--out"):
        task.load_beside_folder()


MACHINES = [
    {"Alive": True, "Resources": {"CPU": 4.0}},
    {"Alive": True, "Resources": {"CPU": 2.0, "GPU": 1.0}},
    {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
]


@pytest.mark.parametrize(
    ("threads", "cpus", "gpus", "device", "expected"),
    [
        (1, None, None, "cpu", RunResources(1, 0)),
        (1, None, None, "auto", RunResources(1, 1)),
        (16, None, 0.0, "auto", RunResources(4, 0)),
        (1, 0.5, 0.25, "auto", RunResources(0.5, 0.25)),
        (1, 8.0, None, "cpu", None),
        (1, 4.0, 1.0, "auto", None),  # no machine has both
    ],
)
def test_choose_resources_follow_threads_and_machines(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    threads: int,
    cpus: float | None,
    gpus: float | None,
    device: str,
    expected: RunResources | None,
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    ray, configs = SimpleNamespace(nodes=lambda: MACHINES), [config_in(FILE, tmp_path, device=device)]
    if expected is None:
        with pytest.raises(UserError, match="--cpus-per-run"):
            ray_runs.choose_resources(ray, configs, cpus, gpus)
    else:
        assert ray_runs.choose_resources(ray, configs, cpus, gpus) == expected


def test_choose_resources_second_gpu_by_number_is_refused(tmp_path: Path) -> None:
    config = config_in(FILE, tmp_path, device="cuda:1")
    with pytest.raises(UserError, match="cuda:0"):
        ray_runs.choose_resources(SimpleNamespace(nodes=lambda: MACHINES), [config], None, None)


def test_claim_run_held_by_another_process_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_for(tmp_path / "out")
    monkeypatch.setattr("protoseal.simulation.run_folder.LOCK_SECONDS", 0.0)
    with claim_folder(config) as folder:
        with (
            folder.claim_run(0, config.method),
            pytest.raises(OtherSimulation),
            folder.claim_run(0, config.method),
        ):
            pass
        with folder.claim_run(0, config.method), folder.claim_run(1, config.method):
            pass


def test_simulate_beside_a_task_of_an_earlier_start_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_for(tmp_path / "out")
    monkeypatch.setattr("protoseal.simulation.run_folder.LOCK_SECONDS", 0.0)
    with RunFolder(config).claim_run(0, config.method), pytest.raises(OtherSimulation, match="lease"):
        simulate_here(config)


def test_simulate_takes_the_run_that_a_task_ended_while_it_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_for(tmp_path / "out")
    elsewhere = config_for(tmp_path / "elsewhere")
    expected = simulate_here(elsewhere)
    completed: list[CompletedRound] = []
    watcher = Watcher()
    monkeypatch.setattr(watcher, "on_completed", completed.append)
    with ExitStack() as task:
        task.enter_context(RunFolder(config).claim_run(0, config.method))

        def end_task(_: float) -> None:
            shutil.copytree(elsewhere.out / "runs", config.out / "runs")
            task.close()

        monkeypatch.setattr("protoseal.simulation.run_folder.time.sleep", end_task)
        assert simulate_here(config, watcher) == expected
    assert completed == []


def test_claim_of_a_start_that_completed_a_round_outlives_an_error(tmp_path: Path) -> None:
    """One machine that does not see the folder deletes nothing of what the others have trained."""
    config = config_for(tmp_path / "out")

    class Stop(Watcher):
        def on_completed(self, completed: CompletedRound) -> None:
            """Raise the error of a machine without the folder."""
            raise FolderNotShared(f"after round {completed.round}")

    divided = divide_data(config, 0)
    folder = RunFolder(config)
    with pytest.raises(FolderNotShared), folder.claim():
        run_method(config, 0, config.method, divided, Stop())
    assert (config.out / CLAIM).exists()
    assert any(folder.state(0, config.method).iterdir())


# A cluster that runs its tasks in this process


@dataclass(frozen=True, eq=False)
class Reference:
    """Result of a task that has ended."""

    value: Any


class TaskLostError(Exception):
    """Error of Ray, not of a task."""


class InlineRay:
    """Functions of Ray that a command calls; with ``lost`` no task returns."""

    exceptions = SimpleNamespace(
        RayError=TaskLostError, RayTaskError=type("RayTaskError", (TaskLostError,), {})
    )

    def __init__(self, *, lost: bool = False) -> None:
        self._lost = lost

    def init(self, *_: Any, **__: Any) -> None:
        """Join no cluster."""

    def shutdown(self) -> None:
        """Leave no cluster."""

    def nodes(self) -> list[dict[str, Any]]:
        """Return the machines."""
        return MACHINES

    def remote(self, num_returns: int = 1, **_: Any) -> Callable[[Callable[..., Any]], Any]:
        """Return a decorator of tasks."""

        def bind(task: Callable[..., Any]) -> Any:
            def start(*arguments: Any) -> Any:
                result = task(*(each.value if isinstance(each, Reference) else each for each in arguments))
                return Reference(result) if num_returns == 1 else [Reference(part) for part in result]

            return SimpleNamespace(remote=start)

        return bind

    def get(self, reference: Reference) -> Any:
        """Return a task's result."""
        if self._lost:
            raise TaskLostError("its machine is lost")
        return reference.value

    def wait(self, references: list[Reference], num_returns: int) -> tuple[list[Reference], list[Reference]]:
        """Return so many tasks that have ended, and the others."""
        return references[:num_returns], references[num_returns:]


def test_start_ray_runs_refused_folder_spares_other_simulations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, config = config_for(tmp_path / "refused"), config_for(tmp_path / "out")
    simulate_here(config_in(FILE, refused.out, rounds=1))
    monkeypatch.setitem(sys.modules, "ray", InlineRay())
    with start_ray_runs([refused, config], "10.0.0.1:6379") as runs:
        with pytest.raises(RayRunsFailed, match="another configuration"):
            runs.wait(refused)
        runs.wait(config)
    assert RunFolder(config).record(0, config.method).exists()


def test_start_ray_runs_lost_task_fails_in_rays_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_for(tmp_path / "out")
    monkeypatch.setitem(sys.modules, "ray", InlineRay(lost=True))
    with (
        start_ray_runs([config], "10.0.0.1:6379") as runs,
        pytest.raises(RayRunsFailed, match="its machine is lost"),
    ):
        runs.wait(config)


# Whole commands


def simulate(
    folder: Path, name: str, *words: str, environment: Mapping[str, str] = os.environ
) -> subprocess.CompletedProcess[str]:
    """Run the command in ``folder``, with results in ``folder/name``."""
    (folder / "s.toml").write_text(FILE, encoding="utf-8")
    command = [sys.executable, "-m", "protoseal", "simulate", "--config", "s.toml", "--out", name, *words]
    paths = {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "proto")))}
    return subprocess.run(
        command, cwd=folder, env={**environment, **paths}, capture_output=True, text=True, check=False
    )


NOTING = ("--set", "training.model=tests.support.ray_model:build")


def notes_in(folder: Path, name: str) -> str:
    """Make the folder of the notes of :mod:`tests.support.ray_model` in the command ``name``."""
    notes = folder / f"notes-{name}"
    notes.mkdir()
    return str(notes)


def facts_in(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in (folder / f"notes-{name}").iterdir()]


@pytest.mark.full
def test_simulate_on_ray_equals_simulate_without(tmp_path: Path) -> None:
    """One of two combinations has no data: it fails in both, and spares the other one in both."""
    words = (*NOTING, "--seeds", "0,1", "--method", "fedavg", "--sweep", "dataset=npz:missing.npz,digits")
    here, ray = (
        simulate(
            tmp_path,
            name,
            *words,
            *more,
            environment={**os.environ, ray_model.NOTES: notes_in(tmp_path, name)},
        )
        for name, more in (("here", ()), ("ray", ("--ray",)))
    )
    assert (here.returncode, ray.returncode) == (1, 1), ray.stderr
    assert "1 of 2 simulations failed" in here.stderr
    assert "1 of 2 simulations failed" in ray.stderr
    for name in (CSV, JSON):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "ray" / name).read_bytes()
    models = sorted(
        path.relative_to(tmp_path / "here") for path in (tmp_path / "here").rglob("*.safetensors")
    )
    assert len(models) == 2 * 4 * 2  # fedavg's: seeds, sites, models and prototypes
    for path in models:
        assert (tmp_path / "here" / path).read_bytes() == (tmp_path / "ray" / path).read_bytes()
    assert {fact["threads"] for fact in facts_in(tmp_path, "ray")} == {torch.get_num_threads()}
    for fact in facts_in(tmp_path, "ray"):
        assert fact["listening"]
        assert set(fact["listening"]) <= {"127.0.0.1", "::ffff:127.0.0.1"}


@pytest.mark.full
def test_simulate_on_ray_shares_a_declared_gpu(tmp_path: Path) -> None:
    """Three runs that take half a GPU each run two at a time, though the machine's CPUs would hold all."""
    notes = {ray_model.NOTES: notes_in(tmp_path, "out")}
    shares = ("--gpus-per-run", "0.5", "--cpus-per-run", "0.5")
    with start_machines(1, cpus=2, gpus=1, **notes) as machines:
        ended = simulate(
            tmp_path,
            "out",
            *NOTING,
            *("--seeds", "0-2", "--ray", machines.address, *shares),
            environment=machines.environment,
        )
    assert ended.returncode == 0, ended.stderr
    facts = facts_in(tmp_path, "out")
    assert [(fact["gpus"], fact["threads"]) for fact in facts] == [("0", torch.get_num_threads())] * 3
    starts = sorted(fact["start"] for fact in facts)
    ends = sorted(path.stat().st_mtime for path in (tmp_path / "out").glob("seed-*/runs/local.json"))
    beside = [sum(begin <= start for begin in starts) - sum(end < start for end in ends) for start in starts]
    assert max(beside) == 2


@pytest.mark.full
def test_simulate_on_ray_survives_a_lost_machine(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(FILE, encoding="utf-8")
    words = ("--config", str(tmp_path / "s.toml"), "--rounds", "40", "--seeds", "0,1", "--sweep", "dim=4,6")
    ray_sweep.run_sweep(tmp_path / "here", words)
    facts = ray_sweep.run_sweep_and_lose_machine(tmp_path / "ray", words, after=1)
    assert ray_sweep.tables_equal(tmp_path / "here", tmp_path / "ray")
    assert (facts["runs"], facts["repeated"], facts["running_at_loss"]) == (4, 0, 2)
    assert 1 <= int(str(facts["ended_at_loss"])) <= 2
