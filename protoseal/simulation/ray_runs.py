"""Runs of simulations as tasks of a Ray cluster: a task for each method and seed of each simulation.

A task calls :func:`protoseal.simulation.experiment.run_method`, which writes the run's record to the folder of its
simulation. The process that started the tasks then simulates in the same folder, finds all runs ended, and publishes
their results. On a CPU tables are those of a simulation without Ray; on a GPU several seeds train in one program there,
which rounds differently. Folders have to be on storage that all machines share. A task whose machine is lost is started
again on another one, where its run resumes.

A task has as many torch threads as the process that started it, since rounding depends on the number of threads.

Security: clusters are for one's own machines. Ray unpickles whatever reaches its ports, so anyone who reaches them can
run programs, and it asks for no password by default. Tasks get settings and the sites' data, never a key; every
machine holds data in memory and may write them to its disk. Usage statistics are off, and a cluster that is started
here listens on the loopback address only.
"""

from __future__ import annotations

import copy
import os
import re
import secrets
import signal
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from agreement import Method, method_named
from agreement.errors import UserError
from agreement.toml_loading import validate
from protoseal.simulation.batched.training import share_gpu
from protoseal.simulation.config import SimulationConfig
from protoseal.simulation.experiment import (
    SeedRuns,
    Watcher,
    claim_folder,
    data_settings,
    divide_data,
    run_method,
)
from protoseal.simulation.run_folder import PROBE, RUN_ERRORS, STATE, RunFolder
from protoseal.simulation.site_datasets import DividedData
from protoseal.simulation.sweep import SweepStopped
from protoseal.simulation.tensorboard import Scalars

LOCAL = "local"
"""Address of a cluster on this machine that is started for the command and ends with it."""
MAX_RETRIES = 10
"""Most times that a task is started again after the loss of its process or machine."""
TASK_ERRORS = (*RUN_ERRORS, OSError, sqlite3.Error, torch.OutOfMemoryError)
"""Errors that end one task: another machine may have a smaller disk, or a GPU that others use."""


class RayRunsFailed(UserError):
    """Runs of one simulation failed."""


class FolderNotShared(SweepStopped):
    """A machine of the cluster does not see the simulation's folder."""


@dataclass(frozen=True)
class RunResources:
    """CPUs and GPUs that one run takes of its machine. A GPU's fraction lets several runs share the GPU."""

    cpus: float
    gpus: float


@dataclass(frozen=True)
class EndedTask:
    """A task that has ended: the folder of its simulation, its run, and the error by which it failed, if it did."""

    folder: Path
    seed: int
    method: str
    error: str | None


@dataclass(frozen=True)
class TaskConfig:
    """Configuration as a task gets it: a third party's method cannot be pickled, but its name can."""

    table: dict[str, Any]
    directory: str
    """Working directory, from which relative paths in ``table`` are taken."""
    token: str
    """Content of the probe file in the simulation's folder."""

    def load(self) -> SimulationConfig:
        """Return the configuration."""
        return validate(SimulationConfig, self.table, source="simulate", directory=Path(self.directory))

    def load_beside_folder(self) -> SimulationConfig:
        """Return the configuration; raise :class:`FolderNotShared` on a machine without the simulation's folder."""
        config = self.load()
        probe = config.out / STATE / PROBE
        if not probe.is_file() or probe.read_text(encoding="ascii") != self.token:
            raise FolderNotShared(
                f"{os.uname().nodename} does not see the files of {config.out}: give an --out on storage that all "
                "machines of the cluster share"
            )
        return config


@contextmanager
def start_ray_runs(
    configs: Sequence[SimulationConfig],
    address: str,
    *,
    cpus: float | None = None,
    gpus: float | None = None,
    fresh: bool = False,
    on_end: Callable[[EndedTask], None] = lambda ended: None,
) -> Iterator[RayRuns]:
    """Yield the unfinished runs of ``configs`` as tasks of the cluster at ``address``, or of one that is started here.

    A run takes ``cpus`` of its machine, by default as many as torch has threads here, and ``gpus`` of it, by default
    one if any machine has a GPU and ``device`` allows one. ``on_end`` is called at the end of every task. Tasks end
    with the context. Raises ``UserError`` without Ray, without the cluster, or if no machine is large enough.
    """
    with ExitStack() as stack:
        ray = stack.enter_context(_import_ray(address))
        # Before claims, which delete results if `fresh` is given.
        stack.enter_context(_connect(ray, address))
        resources = choose_resources(ray, configs, cpus, gpus)
        runs = RayRuns(
            ray, resources, {config.out: stack.enter_context(ExitStack()) for config in configs}, on_end
        )
        # Before the folders are free: a task that ends later has the lock of its run.
        stack.callback(ray.shutdown)
        runs.submit(configs, fresh=fresh)
        yield runs


class RayRuns:
    """Runs that are tasks of a cluster. Runs that have ended already get no task."""

    def __init__(
        self,
        ray: Any,
        resources: RunResources,
        claims: dict[Path, ExitStack],
        on_end: Callable[[EndedTask], None],
    ) -> None:
        self._ray = ray
        self._resources = resources
        self._claims = claims
        self._on_end = on_end
        self._threads = torch.get_num_threads()
        variables = {"OMP_NUM_THREADS": str(self._threads)}
        without_gpu = {**variables, "CUDA_VISIBLE_DEVICES": ""}  # or `device = "auto"` would take one unasked
        options = {"num_cpus": resources.cpus, "max_retries": MAX_RETRIES}
        self._divide = ray.remote(num_returns=2, runtime_env={"env_vars": without_gpu}, **options)(_divide)
        # With a GPU, a process ends with its run, which frees the GPU's memory for others.
        options |= {"num_gpus": resources.gpus, "max_calls": 1 if resources.gpus else 0}
        variables = variables if resources.gpus else without_gpu
        self._run = ray.remote(runtime_env={"env_vars": variables}, **options)(_run)
        self._divisions: dict[str, tuple[Any, Any]] = {}
        self._pending: dict[Any, EndedTask] = {}
        self._failures: dict[Path, list[str]] = {}

    def submit(self, configs: Sequence[SimulationConfig], *, fresh: bool) -> None:
        """Claim the simulations' folders, and start a task for each run that has not ended.

        :meth:`wait` raises what refuses one simulation, so that the others run.
        """
        begun = []
        for config in configs:
            with self._recording_failure(config):
                folder = self._claims[config.out].enter_context(claim_folder(config, fresh=fresh))
                if unfinished := _list_unfinished(config):
                    task = self._task_config(config)
                    # All of these before any run, which they would wait for.
                    self._division(task, config, unfinished[0][0])
                    begun.append((config, folder, task, unfinished))
        for config, folder, task, unfinished in begun:
            with self._recording_failure(config):
                # Once for all runs: a task would have to divide the data of another seed to compare them.
                folder.check_data(partial(self._data_digest, task, config))
                first = unfinished[0][0]
                folder.keep_claim(first, self._data_digest(task, config, first))
        for config, _, task, unfinished in begun:
            for seed, method in unfinished if config.out not in self._failures else ():
                _, divided = self._division(task, config, seed)
                reference = self._run.remote(
                    task, seed, method.value, divided, self._threads, self._resources.gpus
                )
                self._pending[reference] = EndedTask(config.out, seed, method.value, None)

    @contextmanager
    def _recording_failure(self, config: SimulationConfig) -> Iterator[None]:
        try:
            yield
        except RUN_ERRORS as error:
            self._failures[config.out] = [str(error)]

    def wait(self, config: SimulationConfig) -> None:
        """Wait until all runs of a simulation have ended, and free its folder.

        Raises :class:`RayRunsFailed` if any failed, after all have ended, and :class:`FolderNotShared` at once.
        """
        while any(task.folder == config.out for task in self._pending.values()):
            (reference,), _ = self._ray.wait(list(self._pending), num_returns=1)
            ended = self._pending.pop(reference)
            try:
                ended = replace(ended, error=self._get(reference))
            except RayRunsFailed as lost:
                ended = replace(ended, error=str(lost))
            if ended.error is not None:
                text = f"seed {ended.seed}, {ended.method}: {ended.error}"
                self._failures.setdefault(ended.folder, []).append(text)
            self._on_end(ended)
        with self._claims[config.out]:  # an error of a simulation without a round frees its folder for others
            failures = self._failures.get(config.out) or [
                f"seed {seed}, {method.value}: {config.out} has no record of it: start the command again"
                for seed, method in _list_unfinished(config)
            ]
            if failures:
                raise RayRunsFailed("\n".join(failures))

    def _task_config(self, config: SimulationConfig) -> TaskConfig:
        token = secrets.token_hex(16)
        (config.out / STATE / PROBE).write_text(token, encoding="ascii")
        # Every run would start a process for each core of its machine.
        config = config.model_copy(update={"workers": config.workers or max(1, int(self._resources.cpus))})
        table = config.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return TaskConfig(table, str(Path.cwd()), token)

    def _division(self, task: TaskConfig, config: SimulationConfig, seed: int) -> tuple[Any, Any]:
        """Return references to the digest and the data of a seed, divided once for all runs on these data."""
        key = repr(data_settings(config, seed))
        if key not in self._divisions:
            self._divisions[key] = self._divide.remote(task, seed)
        return self._divisions[key]

    def _data_digest(self, task: TaskConfig, config: SimulationConfig, seed: int) -> str:
        digest, divided = self._division(task, config, seed)
        sha256: str | None = self._get(digest)
        if sha256 is None:
            raise RayRunsFailed(str(self._get(divided)))
        return sha256

    def _get(self, reference: Any) -> Any:
        """Return a task's result; raise :class:`RayRunsFailed` if Ray ended it, as after the loss of its machines."""
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, FolderNotShared):
                raise error.cause from None
            raise  # a fault of the program, with the traceback of its machine
        except self._ray.exceptions.RayError as error:
            raise RayRunsFailed(f"Ray ended the task: {error}") from error


def _list_unfinished(config: SimulationConfig) -> list[tuple[int, Method]]:
    """Return the seeds and methods of the runs that have not ended."""
    folder = RunFolder(config)
    ended = {seed: SeedRuns(config, seed, folder, None, Watcher()).ended_runs for seed in config.seeds}
    return [(seed, method) for seed in config.seeds for method in config.methods if method not in ended[seed]]


# Tasks


def _divide(task: TaskConfig, seed: int) -> tuple[str | None, DividedData | str]:
    """Return the SHA-256 of one seed's divided data and the data, or None and the error."""
    _end_by_sigterm()
    try:
        # The task may be another simulation's, whose folder has been published: it is not looked at.
        divided = divide_data(task.load(), seed)
    except TASK_ERRORS as error:
        return None, str(error)
    return divided.sha256, divided


def _run(
    task: TaskConfig, seed: int, method: str, divided: DividedData | str, threads: int, gpus: float
) -> str | None:
    """Run one method on one seed's data; return the error, or None."""
    _end_by_sigterm()
    if 0.0 < gpus < 1.0:
        try:
            share_gpu(gpus)
        except RuntimeError as error:  # others fill its memory, or one of them has it alone
            return f"the GPU cannot be used: {error}"
    if isinstance(divided, str):
        return divided
    torch.set_num_threads(threads)
    try:
        config = task.load_beside_folder()
        # Arrays in the object store cannot be written, and tensors would share them.
        divided = copy.deepcopy(divided)
        with Scalars(config.out / "tensorboard") if config.tensorboard else nullcontext(Watcher()) as watcher:
            run_method(config, seed, method_named(method), divided, watcher)
    except FolderNotShared:
        raise
    except TASK_ERRORS as error:
        return str(error)
    return None


def _end_by_sigterm() -> None:
    """Let SIGTERM kill this process, after which Ray starts the task again.

    Ray's handler raises ``SystemExit``, and a run would contain it as the failure of a site's training and continue.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


# Clusters


@contextmanager
def _import_ray(address: str) -> Iterator[Any]:
    # Ray reads these variables when it is imported, and gives them to the processes of a cluster that it starts.
    variables = {"RAY_USAGE_STATS_ENABLED": "0"}
    if address == LOCAL:
        # Without a token here Ray keeps one in the home folder, for all later clusters.
        variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        # Ray listens on all interfaces, unless it believes that machines cannot form clusters.
        variables |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    earlier = {name: os.environ.get(name) for name in variables}
    os.environ |= variables
    try:
        yield import_module("ray")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise UserError("--ray needs the ray package: run pip install 'protoseal[ray]'") from error
    finally:
        for name, value in earlier.items():
            os.environ.pop(name)
            os.environ |= {} if value is None else {name: value}


@contextmanager
def _connect(ray: Any, address: str) -> Iterator[None]:
    """Join the cluster at ``address``, or start one, whose files are deleted at the end."""
    with ExitStack() as stack:
        options: dict[str, Any] = {}
        if address == LOCAL:
            folder = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
            options = {"_temp_dir": stack.enter_context(folder), "include_dashboard": False}
        try:
            ray.init(address, logging_level="warning", **options)
        except ConnectionError as error:
            raise UserError(
                f"--ray {address}: there is no cluster, or this machine is none of its machines; run `ray start` on "
                f"this machine ({error})"
            ) from error
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise UserError(f"--ray {address}: {error}") from error
        stack.callback(ray.shutdown)
        # Ray's own handler aborts the process, and would leave the cluster's files. SIGTERM interrupts as Ctrl-C does,
        # since ``SystemExit`` from a user's model or data counts as an error of theirs.
        handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
        stack.callback(signal.signal, signal.SIGTERM, handler)
        yield


def choose_resources(
    ray: Any, configs: Sequence[SimulationConfig], cpus: float | None, gpus: float | None
) -> RunResources:
    """Return what a run takes; raise ``UserError`` if no machine has as much."""
    if others := {config.device for config in configs if re.fullmatch("cuda:[1-9][0-9]*", config.device)}:
        raise UserError(
            f"device {min(others)}: a task has the GPU that Ray gives it, as cuda:0: give auto or cuda"
        )
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if cpus is None:
        cpus = min(torch.get_num_threads(), max(machine.get("CPU", 0) for machine in machines))
    if gpus is None:
        allowed = any(config.device != "cpu" for config in configs)
        gpus = 1.0 if allowed and any(machine.get("GPU", 0) >= 1 for machine in machines) else 0.0
    if not any(machine.get("CPU", 0) >= cpus and machine.get("GPU", 0) >= gpus for machine in machines):
        raise UserError(
            f"no machine of the cluster has {cpus:g} CPUs and {gpus:g} GPUs for a run: lower --cpus-per-run or "
            "--gpus-per-run"
        )
    return RunResources(cpus, gpus)
