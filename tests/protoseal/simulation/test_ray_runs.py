"""Runs of simulations as tasks of Ray: what a task refuses, and whole commands on clusters of this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
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
from click.testing import CliRunner

from agreement import ConfigError
from agreement.errors import UserError
from benchmarks import ray_sweep
from benchmarks.ray_machines import start_machines
from protoseal.cli import main
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
from protoseal.simulation.run_folder import CLAIM, PROBE, RUNS, STATE, OtherSimulation, RunFolder, lock_folder
from secure_client.error_containment import run_or_fallback
from tests.support import ray_model
from tests.support.simulations import DIGITS, config_in

ROOT = Path(__file__).parents[3]
CLUSTER = "10.0.0.1:6379"
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


@pytest.mark.parametrize("content", [None, "another token"])
def test_task_without_the_commands_folder_is_refused(tmp_path: Path, content: str | None) -> None:
    config = config_for(tmp_path / "out")
    table = config.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if content is not None:
        (config.out / STATE).mkdir(parents=True)
        (config.out / STATE / PROBE).write_text(content, encoding="ascii")
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
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
    assert "another process has" in caplog.text


def test_claim_folder_fresh_beside_a_task_of_an_earlier_start_deletes_nothing(tmp_path: Path) -> None:
    """The lock outlives a deletion: a new file of that name would not exclude the task."""
    config = config_for(tmp_path / "out")
    simulate_here(config)
    with RunFolder(config).claim_run(0, config.method):
        before = {*config.out.rglob("*")}
        with pytest.raises(OtherSimulation), claim_folder(config, fresh=True):
            pass
        assert before <= {*config.out.rglob("*")}
    (config.out / STATE / PROBE).write_text("token of the earlier start", encoding="ascii")
    with claim_folder(config, fresh=True):
        assert not (config.out / STATE / PROBE).exists()  # a task that begins later is refused
        assert not RunFolder(config).record(0, config.method).exists()
        assert [path.name for path in (config.out / STATE / "seed-0").iterdir()] == ["local.lock"]


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
    """Functions of Ray that a command calls; with ``lost`` no task returns.

    ``calls`` has the names of the tasks that were started, and an entry for each result that was read.
    """

    exceptions = SimpleNamespace(
        RayError=TaskLostError, RayTaskError=type("RayTaskError", (TaskLostError,), {})
    )

    def __init__(self, *, lost: bool = False, refusal: Exception | None = None) -> None:
        self._lost = lost
        self._refusal = refusal
        self.calls: list[str] = []

    def init(self, *_: Any, **__: Any) -> None:
        """Join no cluster; raise the refusal, if any."""
        if self._refusal is not None:
            raise self._refusal

    def shutdown(self) -> None:
        """Leave no cluster."""

    def nodes(self) -> list[dict[str, Any]]:
        """Return the machines."""
        return MACHINES

    def remote(self, num_returns: int = 1, **_: Any) -> Callable[[Callable[..., Any]], Any]:
        """Return a decorator of tasks."""

        def bind(task: Callable[..., Any]) -> Any:
            def start(*arguments: Any) -> Any:
                self.calls.append(task.__name__)
                values = [value.value if isinstance(value, Reference) else value for value in arguments]
                handler = signal.getsignal(signal.SIGTERM)
                try:
                    result = task(*values)
                finally:  # the task's process has a handler of its own
                    signal.signal(signal.SIGTERM, handler)
                return Reference(result) if num_returns == 1 else [Reference(part) for part in result]

            return SimpleNamespace(remote=start)

        return bind

    def get(self, reference: Reference) -> Any:
        """Return a task's result."""
        self.calls.append("get")
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
    with start_ray_runs([refused, config], CLUSTER) as runs:
        with pytest.raises(RayRunsFailed, match="another configuration"):
            runs.wait(refused)
        runs.wait(config)
    assert RunFolder(config).record(0, config.method).exists()


@pytest.mark.parametrize(
    ("refusal", "cpus"),
    [(ConnectionError("no cluster"), None), (ValueError("no address"), None), (None, 64.0)],
    ids=["no cluster", "another error of Ray", "no machine is large enough"],
)
def test_start_ray_runs_fresh_refused_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Exception | None, cpus: float | None
) -> None:
    config = config_for(tmp_path / "out")
    simulate_here(config)
    before = sorted(config.out.rglob("*"))
    monkeypatch.setitem(sys.modules, "ray", InlineRay(refusal=refusal))
    with pytest.raises(UserError), start_ray_runs([config], CLUSTER, fresh=True, cpus=cpus):
        pass
    assert sorted(config.out.rglob("*")) == before


def test_start_ray_runs_divide_data_once_and_before_any_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command waits for the data. Runs that have ended get no task at the next start."""
    configs = [config_in(FILE, tmp_path / name, rounds=1, compare=("fedavg",)) for name in ("a", "b")]
    monkeypatch.setitem(sys.modules, "ray", first := InlineRay())
    with start_ray_runs(configs, CLUSTER) as runs:
        assert first.calls == ["_divide", "get", "get", *["_run"] * 4]
        for config in configs:
            runs.wait(config)
    monkeypatch.setitem(sys.modules, "ray", second := InlineRay())
    with start_ray_runs(configs, CLUSTER) as runs:
        runs.wait(configs[0])
    assert second.calls == []


ENDS = {
    "the disk's": OSError("no space"),
    "the GPU's": torch.OutOfMemoryError("memory"),
    "the configuration's": ConfigError("simulate", ["an extension is not installed here"]),
}


@pytest.mark.parametrize("end", [*ENDS, "none, and no record"])
def test_start_ray_runs_error_of_a_run_spares_others_and_frees_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    refused, config = config_for(tmp_path / "refused"), config_for(tmp_path / "out")
    load = TaskConfig.load_beside_folder

    def load_or_raise(task: TaskConfig) -> SimulationConfig:
        if task.load().out == refused.out and end in ENDS:
            raise ENDS[end]
        return load(task)

    def run(config: SimulationConfig, *arguments: Any) -> None:
        if config.out != refused.out:
            run_method(config, *arguments)

    monkeypatch.setattr(TaskConfig, "load_beside_folder", load_or_raise)
    monkeypatch.setattr(ray_runs, "run_method", run)
    monkeypatch.setitem(sys.modules, "ray", InlineRay())
    with start_ray_runs([refused, config], CLUSTER) as runs:
        with pytest.raises(RayRunsFailed, match="seed 0, local"):
            runs.wait(refused)
        runs.wait(config)
    assert not (refused.out / CLAIM).exists()
    assert RunFolder(config).record(0, config.method).exists()


def test_start_ray_runs_sigterm_ends_the_command_and_no_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", InlineRay())
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), start_ray_runs([config_for(tmp_path / "out")], CLUSTER):
        run_or_fallback(lambda: os.kill(os.getpid(), signal.SIGTERM), lambda: None, "a user's model")
    assert signal.getsignal(signal.SIGTERM) is before


def test_simulate_fresh_on_ray_beside_another_sweep_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", InlineRay())
    words = arguments(tmp_path, "out", "--sweep", "dim=4,8", "--ray", CLUSTER)
    assert CliRunner().invoke(main, words, catch_exceptions=False).exit_code == 0
    out = tmp_path / "out"
    before = sorted(out.rglob("*"))
    with lock_folder(out, ".sweep.lock"):
        refused = CliRunner().invoke(main, [*words, "--fresh"])
    assert refused.exit_code == 1
    assert "another process" in refused.output
    assert sorted(out.rglob("*")) == before


@pytest.mark.parametrize("gpus", [0.0, 0.25, 1.0])
def test_start_ray_runs_on_a_part_of_a_gpu_takes_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: float
) -> None:
    shares: list[float] = []
    monkeypatch.setattr(ray_runs, "share_gpu", shares.append)
    monkeypatch.setattr(ray_runs, "run_method", lambda *_: None)
    monkeypatch.setitem(sys.modules, "ray", InlineRay())
    with start_ray_runs([config_for(tmp_path / "out")], CLUSTER, gpus=gpus):
        assert set(shares) == ({gpus} if gpus == 0.25 else set())


def test_start_ray_runs_gpu_that_cannot_be_used_fails_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: float) -> None:
        raise RuntimeError("all devices are busy")

    config = config_for(tmp_path / "out")
    monkeypatch.setattr(ray_runs, "share_gpu", refuse)
    monkeypatch.setitem(sys.modules, "ray", InlineRay())
    with (
        start_ray_runs([config], CLUSTER, gpus=0.25) as runs,
        pytest.raises(RayRunsFailed, match=r"seed 0, local: .*are busy"),
    ):
        runs.wait(config)


def test_start_ray_runs_record_that_was_looked_up_in_vain_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client of NFS answers from memory that a file does not exist which another machine has written since."""
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: path.parent.name != RUNS and exists(path))
    config = config_for(tmp_path / "out")
    monkeypatch.setitem(sys.modules, "ray", InlineRay())
    with start_ray_runs([config], CLUSTER) as runs:
        runs.wait(config)


def test_start_ray_runs_lost_task_fails_in_rays_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_for(tmp_path / "out")
    monkeypatch.setitem(sys.modules, "ray", InlineRay(lost=True))
    with (
        start_ray_runs([config], CLUSTER) as runs,
        pytest.raises(RayRunsFailed, match="its machine is lost"),
    ):
        runs.wait(config)


# Whole commands


def arguments(folder: Path, name: str, *words: str) -> list[str]:
    """Return the words of a command with results in ``folder/name``."""
    file = folder / "s.toml"
    file.write_text(FILE, encoding="utf-8")
    return ["simulate", "--config", str(file), "--out", str(folder / name), *words]


def simulate(
    folder: Path, name: str, *words: str, environment: Mapping[str, str] = os.environ
) -> subprocess.CompletedProcess[str]:
    """Run the command in a process, with results in ``folder/name``."""
    command = [sys.executable, "-m", "protoseal", *arguments(folder, name, *words)]
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
def test_simulate_on_ray_equals_simulate_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Combinations without data fail in both, and spare the others. On Ray, SIGTERM ends the process of a run."""
    sweeps = ("--sweep", "engine=tensors,sessions", "--sweep", "dataset=npz:missing.npz,digits")
    words = (*NOTING, "--method", "fedavg", *sweeps)
    notes = notes_in(tmp_path, "ray")
    (Path(notes) / ray_model.TERMINATE).touch()
    ray = simulate(tmp_path, "ray", *words, "--ray", environment={**os.environ, ray_model.NOTES: notes})
    monkeypatch.setenv(ray_model.NOTES, notes_in(tmp_path, "here"))
    here = CliRunner().invoke(main, arguments(tmp_path, "here", *words))
    assert (here.exit_code, ray.returncode) == (1, 1), ray.stderr
    assert "2 of 4 simulations failed" in here.output
    assert "2 of 4 simulations failed" in ray.stderr
    assert not (tmp_path / "notes-ray" / ray_model.TERMINATE).exists()
    for name in (CSV, JSON):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "ray" / name).read_bytes()
    models = sorted(
        path.relative_to(tmp_path / "here") for path in (tmp_path / "here").rglob("*.safetensors")
    )
    assert len(models) == 2 * 4 * 2  # engines, sites, models and prototypes
    for path in models:
        assert (tmp_path / "here" / path).read_bytes() == (tmp_path / "ray" / path).read_bytes()
    given = {(fact["threads"], fact["statistics"]) for fact in facts_in(tmp_path, "ray")}
    assert given == {(torch.get_num_threads(), "0")}
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
