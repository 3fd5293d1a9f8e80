"""Experiment of ``protoseal simulate``: methods and controls on one data set and split, for one or more seeds."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import OutOfMemoryError
from torch.utils.data import Dataset

from agreement import CONTROLS, Agreement, ConfigError, Method
from crypto.protection import Pool
from protoseal.reports.result_files import RunResult, write_result
from protoseal.reports.run_results import over_seeds, run_result
from protoseal.reports.split_report import write_split
from protoseal.simulation.batched.training import Batching, Precision, allow_tf32, runs_at_once
from protoseal.simulation.config import ScheduleSection, SimulationConfig
from protoseal.simulation.local_federation import LocalFederation, RunOutcome
from protoseal.simulation.run_folder import COMPARED, RUN_ERRORS, RunFolder, SavedRun
from protoseal.simulation.site_datasets import DividedData, divide
from protoseal.simulation.site_pool import SiteTesting, SiteTraining
from protoseal.simulation.tensors.federation import TensorFederation
from protoseal.simulation.tensors.lockstep import run_in_lockstep
from secure_client.checkpoints.learner_factory import build_agreed_model
from secure_client.data import SiteData
from secure_client.output.site_log import SiteRound
from secure_client.privacy.kept_releases import FOLDER as RELEASES
from secure_client.training.averaged_parameters import AveragedPart
from secure_client.training.learner import choose_device
from secure_server.process_pool import Workers

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CompletedRound:
    """A round that every site has reported; ``reports`` maps sites to their figures."""

    seed: int
    method: Method
    round: int
    reports: Mapping[str, SiteRound]


@dataclass(frozen=True)
class EndedRun:
    """A run that has ended; ``anew`` is false if an earlier start had completed it and its record was read."""

    seed: int
    method: Method
    outcome: RunOutcome
    anew: bool


@dataclass(frozen=True)
class WrittenResult:
    """A ``result.json`` with the results so far, and the folder to which it was written."""

    folder: Path
    result: RunResult


class Watcher:
    """Observer of a simulation's events. The base class does nothing."""

    def on_completed(self, completed: CompletedRound) -> None:
        """Handle a round that every site has reported."""

    def on_run(self, ended: EndedRun) -> None:
        """Handle the end of a run."""

    def on_result(self, written: WrittenResult) -> None:
        """Handle results that were written."""


def simulate(config: SimulationConfig, watcher: Watcher | None = None, *, fresh: bool = False) -> RunResult:
    """Run a simulation, writing ``result.json`` and ``sites/NAME/`` to ``config.out``.

    Each further method of ``compare`` that is no control writes the same files to ``compared/METHOD``. With several
    seeds, each seed has a folder ``seed-N`` of that form, and the top result has the sites and rounds of the first seed
    with means, spreads and paired differences over all. The runs of one method go in lockstep for
    :attr:`SeedRuns.seeds_at_once` seeds.

    An interrupted or killed simulation resumes: completed runs are read, and the unfinished run resumes, by sessions in
    its last round, on tensors after its last checkpoint. The results are the same, bit for bit on a CPU, except by
    sessions without ``batched = "never"``: there the sites that had not trained in that round form a smaller batched
    program, which rounds differently, and training amplifies this. ``fresh``
    starts over, after the first seed's data and models are known to load. Raises the errors of a site or the
    coordinator, and :class:`protoseal.simulation.run_folder.OtherSimulation` if the folder belongs to another
    configuration.
    """
    watcher = watcher or Watcher()
    with claim_folder(config, fresh=fresh) as folder, _workers(config) as executor:
        results: dict[int, RunResult] = {}
        while waiting := config.seeds[len(results) :]:
            seeds = [SeedRuns(config, waiting[0], folder, executor, watcher)]
            others = waiting[1 : seeds[0].seeds_at_once]
            seeds += [SeedRuns(config, seed, folder, executor, watcher) for seed in others]
            results |= zip(waiting, _run_seeds(config.methods, seeds), strict=False)
            del seeds  # before the next seed's data are read
            if len(config.seeds) > 1:
                over = over_seeds(results)
                whole = len(results) == len(config.seeds)
                over = over.model_copy(update={"complete": whole})
                write_result(config.out, over)
                watcher.on_result(WrittenResult(config.out, over))
        folder.drop_all_state()
    return over_seeds(results) if len(results) > 1 else results[config.seeds[0]]


@contextmanager
def claim_folder(config: SimulationConfig, *, fresh: bool = False) -> Iterator[RunFolder]:
    """Yield the simulation's folder, locked for this process; with ``fresh`` its earlier results are deleted.

    Raises the errors of :func:`simulate` for a folder of another configuration.
    """
    folder = RunFolder(config)
    if fresh:  # any error of the first seed's data, split or models comes before existing results are deleted
        scene = load_scene(config, config.seeds[0])
        for agreement in map(scene.agreement, config.methods):
            build_agreed_model(agreement, agreement.training.model)
    with folder.claim(fresh=fresh):
        yield folder


def run_method(
    config: SimulationConfig, seed: int, method: Method, divided: DividedData, watcher: Watcher
) -> None:
    """Run one method on one seed's data, or resume its run, in a folder that another process has claimed.

    The other process has compared the data with those of earlier runs. A run that has ended is left as it is. A
    simulation with the same configuration afterwards reads the run and publishes results.
    """
    folder = RunFolder(config, data_checked=True)
    with _workers(config) as executor:
        _run_method(method, [SeedRuns(config, seed, folder, executor, watcher, divided)])


def _run_seeds(methods: Sequence[Method], seeds: list[SeedRuns]) -> list[RunResult]:
    """Run methods for some seeds, one method after the other, and return each seed's result.

    A seed that is refused, and those after it, are removed from ``seeds``, unless it is the first.
    """
    for method in methods:
        _run_method(method, seeds)
        results = [runs.publish(method) for runs in seeds]
    for runs, result in zip(seeds, results, strict=True):
        if len(runs.ended_runs) < len(methods):  # finished runs are shown without reading their data
            runs.warn_of_withheld_classes(result)
    return results


def _run_method(method: Method, seeds: list[SeedRuns]) -> None:
    """Run a method for some seeds, or resume its runs, and write their records; remove seeds as :func:`_run_seeds`."""
    with ExitStack() as stack:
        federations: list[tuple[SeedRuns, TensorFederation | LocalFederation]] = []
        for index, runs in enumerate(seeds):
            try:
                stack.enter_context(runs.claim(method))
                if method not in runs.ended_runs:
                    stack.enter_context(federation := runs.open(method))
                    federations.append((runs, federation))
            except (*RUN_ERRORS, OutOfMemoryError):
                if index == 0:
                    raise
                # The seeds before it run; then it is the first, and the error is raised.
                del seeds[index:]
                break
        if not federations:
            return
        training = federations[0][0].training
        stack.enter_context(allow_tf32(training.precision))
        on_tensors = [run.rounds() for _, run in federations if isinstance(run, TensorFederation)]
        run_in_lockstep(on_tensors, training)
        for runs, federation in federations:
            if isinstance(federation, LocalFederation):
                federation.run()
            runs.save(method, federation)


@dataclass(frozen=True)
class Scene:
    """One seed's data, and the state that all methods on these data share."""

    config: SimulationConfig
    seed: int
    divided: DividedData
    data: Mapping[str, SiteData]
    overall: Dataset[Any]

    def agreement(self, method: Method) -> Agreement:
        """Return the agreement of a method's run; the sizes of the averaged part are those of the model."""
        make = partial(
            self.config.agreement,
            method=method,
            seed=self.seed,
            classes=self.divided.classes,
            preprocessing=self.divided.preprocessing,
        )
        if not method.averages:
            return make()
        # The model follows from the agreement, and its size goes into the agreement: build it from one of any size.
        unsized = make(averaged=(1, 0))
        model = build_agreed_model(unsized, unsized.training.model)
        return make(averaged=AveragedPart(model, method.traits.averaged).sizes)

    @property
    def training(self) -> SiteTraining:
        """Return the settings of the sites' training."""
        config = self.config
        return SiteTraining(
            device=config.device,
            batching=Batching(config.batched),
            precision=Precision(config.precision),
            models=config.models,
            pretrained=config.pretrained,
            accept_dark_or_constant_inputs=config.accept_dark_or_constant_inputs,
            class_names=config.class_names,
            schedule=config.schedule,
        )

    @property
    def testing(self) -> SiteTesting:
        """Return the tests of the sites' models."""
        config = self.config
        return SiteTesting(self.overall, config.evaluate_every, config.per_class, config.early_stopping)


def load_scene(config: SimulationConfig, seed: int, divided: DividedData | None = None) -> Scene:
    """Prepare one seed's data, read and divided unless given; raise the errors of :func:`simulate` for bad data."""
    divided = divided or divide_data(config, seed)
    if len(divided.sites) < config.fewest_sites:
        raise ConfigError(
            config.dataset,
            [
                f"the data have {len(divided.sites)} sites, but min_holders and min_sites require "
                f"{config.fewest_sites}"
            ],
        )
    data = {site.name: site.to_data(divided.preprocessing) for site in divided.sites}
    overall = divided.overall(where=config.dataset)
    return Scene(config, seed, divided, data, overall)


def divide_data(config: SimulationConfig, seed: int) -> DividedData:
    """Read one seed's data and divide them among the sites, with the errors of :func:`divide`."""
    return divide(**data_settings(config, seed))


def data_settings(config: SimulationConfig, seed: int) -> dict[str, Any]:
    """Return the arguments of :func:`divide`: runs for which they are equal have the same data."""
    return {
        "dataset": config.dataset,
        "split": config.split,
        "sites": config.sites,
        "seed": seed,
        "data_root": config.data_root,
        "agreed": config.inputs,
        "classes": config.classes,
        "class_names": config.class_names,
        "tests": config.tests,
    }


class SeedRuns:
    """Runs of all methods on one seed's data."""

    def __init__(
        self,
        config: SimulationConfig,
        seed: int,
        folder: RunFolder,
        executor: Pool | None,
        watcher: Watcher,
        divided: DividedData | None = None,
    ) -> None:
        self._config = config
        self._seed = seed
        self._folder = folder
        self._executor = executor
        self._watcher = watcher
        self._divided = divided
        self._out = folder.of_seed(seed)
        self._runs: dict[Method, SavedRun] = {}

    @property
    def seeds_at_once(self) -> int:
        """Number of seeds, this one first, for which the runs of a method go in lockstep.

        It is 1 unless the tensor engine trains sites as one program on another device than a CPU. See
        :func:`protoseal.simulation.batched.training.runs_at_once` for that device's limits.
        """
        config = self._config
        stacks = config.uses_tensors and config.batched != "never"
        has_ended = len(self.ended_runs) == len(config.methods)  # its data are not read
        if not stacks or has_ended or choose_device(config.device).type == "cpu":
            return 1
        agreement = self._agreement(config.method)
        models = [build_agreed_model(agreement, name) for name in config.models or [config.training.model]]
        sizes = [sum(value.numel() for value in model.parameters()) for model in models]
        return runs_at_once(self._scene.data.values(), max(sizes), choose_device(config.device))

    @cached_property
    def ended_runs(self) -> dict[Method, SavedRun]:
        """Runs that had ended before this start, all read before another begins, since any may be refused."""
        paths = {method: self._folder.record(self._seed, method) for method in self._config.methods}
        # Listed: a client of NFS remembers for a minute that it has looked for a name in vain.
        ended = {name: SavedRun.read(path) for name, path in paths.items() if path in path.parent.glob("*")}
        for method, run in ended.items():
            self._folder.check_settings(paths[method], run.agreement)
        return ended

    @cached_property
    def _scene(self) -> Scene:
        scene = load_scene(self._config, self._seed, self._divided)
        self._folder.check_data(
            lambda seed: (scene.divided if seed == self._seed else divide_data(self._config, seed)).sha256
        )
        write_split(self._out, scene.divided.sites, scene.divided.classes)
        return scene

    def _warn_without_releases(self, method: Method) -> None:
        folder = self._method_folder(method)
        if not any(folder.glob(f"sites/*/{RELEASES}")):
            _log.warning(
                "%s has a finished run that kept no releases: --fresh deletes it and runs it again with "
                "--keep-releases",
                folder,
            )

    def warn_of_withheld_classes(self, result: RunResult) -> None:
        """Log a warning where every class, or every class of a site, was withheld in the reported round.

        Sites then exchange no prototypes, so that a comparison of protections, or of settings, shows no difference.
        """
        reason = f"fewer than min_holders = {result.config['min_holders']} sites hold each of them"
        remedy = (
            "no prototypes came back: simulate more sites, or choose a --split in which sites share classes"
        )
        if result.withheld and set(result.withheld) == set(result.classes):
            _log.warning("every class was withheld, since %s; %s", reason, remedy)
            return
        withheld = {site.name: set(site.withheld) for site in result.sites if site.withheld}
        for site in self._scene.divided.sites if withheld else ():
            held = {result.classes[k] for k in np.unique(site.train.labels)}
            if held <= withheld.get(site.name, set()):
                # A site's result may also have been discarded, and FedPC withholds a class in one group alone.
                _log.warning(
                    "no prototype of a class of %s came back: its results were refused, as messages above then say, or"
                    " every class was withheld, since %s",
                    site.name,
                    reason,
                )

    @contextmanager
    def claim(self, method: Method) -> Iterator[None]:
        """Lock a method's run for this process, as a task of an earlier start on Ray may still have it.

        If that task ends the run in the meantime, :attr:`ended_runs` has it. Raises the errors of
        :meth:`protoseal.simulation.run_folder.RunFolder.claim_run`.
        """
        if method in self.ended_runs:
            yield
            return
        with self._folder.claim_run(self._seed, method):
            if (path := self._folder.record(self._seed, method)).exists():
                self.ended_runs[method] = SavedRun.read(path)
            yield

    def open(self, method: Method) -> TensorFederation | LocalFederation:
        """Return the federation of a run, in the state that a killed process left of it."""
        scene, agreement = self._scene, self._agreement(method)
        # Before any state is written, so that a later start with other settings or data is refused.
        self._folder.keep_agreement(self._seed, method, agreement)
        self._folder.keep_claim(self._seed, scene.divided.sha256)
        settings: dict[str, Any] = {
            "method": method,
            "training": scene.training,
            "testing": scene.testing,
            "state": self._folder.state(self._seed, method),
            "on_completed": partial(self._report_round, method),
        }
        if self._runs_on_tensors(method):
            return TensorFederation(agreement, scene.data, **settings)
        return LocalFederation(
            agreement,
            scene.data,
            executor=self._executor,
            keep_releases=self._config.keep_releases,
            **settings,
        )

    def save(self, method: Method, federation: TensorFederation | LocalFederation) -> None:
        """Save a run whose rounds have ended, close its federation, and write its record."""
        with federation:
            if isinstance(federation, TensorFederation) and method in CONTROLS:
                outcome = federation.end()
            else:
                outcome = federation.save(self._method_folder(method))
        run = SavedRun(method, federation.agreement, outcome, self._scene.divided.sha256)
        run.write(self._folder.record(self._seed, method))
        self._folder.drop_state(self._seed, method)
        self._runs[method] = run

    def publish(self, method: Method) -> RunResult:
        """Report the end of a method's run, and publish and return the results so far."""
        earlier = self.ended_runs.get(method)
        run = self._runs[method] = earlier or self._runs[method]
        if earlier is not None and self._config.keep_releases and method not in CONTROLS:
            self._warn_without_releases(method)
        self._watcher.on_run(EndedRun(self._seed, method, run.outcome, anew=earlier is None))
        return self._publish_results(complete=len(self._runs) == len(self._config.methods))

    @property
    def training(self) -> SiteTraining:
        """Settings of the sites' training, which are those of all seeds."""
        return self._scene.training

    def _agreement(self, method: Method) -> Agreement:
        return self._scene.agreement(self._config.self_aligns_as if method is Method.SELF else method)

    def _runs_on_tensors(self, method: Method) -> bool:
        return method in CONTROLS or self._config.uses_tensors

    def _report_round(self, method: Method, run: LocalFederation | TensorFederation, number: int) -> None:
        self._folder.note_round(self._seed, method)
        self._watcher.on_completed(CompletedRound(self._seed, method, number, run.pool.reports(number)))

    def _method_folder(self, method: Method) -> Path:
        return self._out if method is self._config.method else self._out / COMPARED / method.value

    def _publish_results(self, *, complete: bool) -> RunResult:
        """Write the results so far; the method's own result comes first and therefore always exists."""
        for method, run in self._runs.items():
            if method is not self._config.method and method not in CONTROLS:
                write_result(self._method_folder(method), self._result(run, [], complete=True))
        main = self._runs[self._config.method]
        others = [run for run in self._runs.values() if run is not main]
        result = self._result(main, others, complete=complete)
        write_result(self._out, result)
        self._watcher.on_result(WrittenResult(self._out, result))
        return result

    def _result(self, run: SavedRun, others: Sequence[SavedRun], *, complete: bool) -> RunResult:
        best = {method.value: ended.outcome.best_round for method, ended in self._runs.items()}
        result = run_result(
            run.agreement,
            run.outcome.sites,
            run.outcome.rounds,
            {run.method.value: run.outcome.site_rounds for run in others},
            dataset=self._config.dataset,
            seed=self._seed,
            method=run.method,
            best={name: number for name, number in best.items() if number is not None},
            complete=complete,
            data_sha256=run.data_sha256,
            diagnoses=tuple(diagnosis for shown in (run, *others) for diagnosis in shown.diagnoses),
        )
        # The agreement, which makes up the rest of the result's configuration, has none of these.
        config = dict(result.config)
        if self._config.engine != "auto":
            config["engine"] = "tensors" if self._runs_on_tensors(run.method) else "sessions"
        if self._config.precision != "float32":
            config["precision"] = self._config.precision
        if self._config.schedule != ScheduleSection():
            config["schedule"] = self._config.schedule.model_dump(mode="json")
        return result.model_copy(update={"config": config})


@contextmanager
def _workers(config: SimulationConfig) -> Iterator[Pool | None]:
    """Yield worker processes for ciphertexts, or None without encryption."""
    if not config.protection.ckks_key or CONTROLS.issuperset(config.methods):
        yield None
        return
    with Workers(config.workers or os.cpu_count() or 1) as executor:
        yield executor
