"""``protoseal simulate``: methods and controls on one data set and split, for one seed or several."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from torch.utils.data import Dataset

from algorithms.pfpl.objective import Control
from protoseal.config import CONTROLS, Agreement, ConfigError, Method, Protection
from protoseal.config.simulation import SimulationConfig
from protoseal.federation import run_control, run_federation
from protoseal.files import RunResult, SeedFigures, SiteLog, SiteRound, Spread, write_result
from protoseal.results import Compared, run_result
from protoseal.site_files import DividedData, divide
from secure_client.build import build_agreed_model
from secure_client.data import SiteData
from secure_client.data.preprocess import to_dataset
from secure_client.extractor import Extractor
from secure_server.coordinator import CoordinatorRound
from secure_server.workers import Workers

COMPARED = "compared"
"""The folder, in that of a run, of the full methods that it is compared with."""


@dataclass(frozen=True)
class Progress:
    """A round of one site in one of the runs that a simulation consists of."""

    seed: int
    method: Method
    site: str
    figures: SiteRound


OnProgress = Callable[[Progress], None]


def simulate(config: SimulationConfig, on_progress: OnProgress = lambda progress: None) -> RunResult:
    """Run it, leaving ``result.json`` and ``sites/NAME/`` in ``config.out``.

    Each further method of ``compare`` that is no control leaves the same in ``compared/METHOD``. With several seeds
    each has a folder ``seed-N`` of that form, and the result on top has the sites and rounds of the first seed with
    the mean and spread over all. Raises what a site or the coordinator raises.
    """
    seeds = config.all_seeds
    with _workers(config) as executor:
        folders = {seed: config.out if len(seeds) == 1 else config.out / f"seed-{seed}" for seed in seeds}
        results = {seed: _one_seed(config, seed, folders[seed], executor, on_progress) for seed in seeds}
    if len(seeds) == 1:
        return results[seeds[0]]
    first = results[seeds[0]]
    figures = tuple(
        SeedFigures(
            seed=seed,
            mean_accuracy=result.mean_accuracy,
            compared=result.compared,
            metrics=result.metrics,
        )
        for seed, result in results.items()
    )
    return _written(config.out, first.model_copy(update={"seeds": figures, "spread": _spread(results)}))


def _one_seed(
    config: SimulationConfig, seed: int, out: Path, executor: Executor | None, on_progress: OnProgress
) -> RunResult:
    scene = _scene(config, seed)
    methods = tuple(dict.fromkeys((config.method, *config.compare)))
    federated = {method: scene.agreement(method) for method in methods if method not in CONTROLS}
    # Controls train as the first of the federated methods does, without its peers.
    shared = next(iter(federated.values()), None) or scene.agreement(config.method)
    runs: dict[Method, Run] = {}
    for method in methods:
        if method in CONTROLS:
            runs[method] = _control_run(scene, shared, Control(method.value))
        else:
            folder = out if method is config.method else out / COMPARED / method.value
            runs[method] = _federated_run(scene, federated[method], method, folder, executor, on_progress)
    beside = {method.value: run.site_rounds for method, run in runs.items() if method is not config.method}
    if config.method in CONTROLS:
        beside = {config.method.value: runs[config.method].site_rounds, **beside}
    for method in federated:
        if method is not config.method:
            _written(out / COMPARED / method.value, runs[method].result({}))
    return _written(out, runs[config.method].result(beside))


@dataclass(frozen=True)
class Scene:
    """One seed's data, and what every method that runs on it shares. ``overall`` is a test set over all sites."""

    config: SimulationConfig
    seed: int
    divided: DividedData
    data: Mapping[str, SiteData]
    overall: Dataset[Any]

    def agreement(self, method: Method) -> Agreement:
        """The agreement of a method's run; the sizes of what it averages are those of the model."""
        make = partial(
            self.config.agreement,
            method=method,
            seed=self.seed,
            classes=self.divided.classes,
            preprocessing=self.divided.preprocessing,
        )
        if not method.is_grouped:
            return make()
        unsized = make(extractor=(1, 0))
        return make(extractor=Extractor(build_agreed_model(unsized, unsized.training.model)).sizes)


def _scene(config: SimulationConfig, seed: int) -> Scene:
    divided = divide(
        config.dataset,
        config.split,
        sites=config.sites,
        seed=seed,
        data_root=config.data_root,
        agreed=config.preprocessing,
        classes=config.classes,
    )
    if len(divided.sites) < config.fewest_sites:
        raise ConfigError(
            config.dataset,
            [f"{len(divided.sites)} sites, but min_holders and min_sites ask for {config.fewest_sites}"],
        )
    data = {site.name: site.to_data(divided.preprocessing) for site in divided.sites}
    overall = to_dataset(divided.test_of_all(), divided.preprocessing, where=config.dataset)
    return Scene(config, seed, divided, data, overall)


@dataclass(frozen=True)
class Run:
    """What one method did on one seed's data."""

    scene: Scene
    method: Method
    agreement: Agreement
    sites: Mapping[str, SiteLog]
    rounds: Sequence[CoordinatorRound]

    @property
    def site_rounds(self) -> dict[str, Sequence[SiteRound]]:
        """Each site's rounds."""
        return {name: log.rounds for name, log in self.sites.items()}

    def result(self, beside: Compared) -> RunResult:
        """The run's result, with what else ran on the same data."""
        return run_result(
            self.agreement,
            self.sites,
            self.rounds,
            beside,
            dataset=self.scene.config.dataset,
            seed=self.scene.seed,
            method=self.method,
        )


def _federated_run(
    scene: Scene,
    agreement: Agreement,
    method: Method,
    out: Path,
    executor: Executor | None,
    on_progress: OnProgress,
) -> Run:
    outcome = run_federation(
        agreement,
        scene.data,
        out,
        device=scene.config.device,
        executor=executor,
        overall=scene.overall,
        on_round=lambda site, figures: on_progress(Progress(scene.seed, method, site, figures)),
    )
    return Run(scene, method, agreement, outcome.sites, outcome.rounds)


def _control_run(scene: Scene, shared: Agreement, control: Control) -> Run:
    """A control as a run: no rounds of a coordinator, no bytes."""
    own = run_control(shared, control, scene.data, device=scene.config.device, overall=scene.overall)
    agreement = scene.agreement(Method(control.value))
    logs = {
        name: SiteLog(
            name=name,
            model=agreement.training.model,
            train_samples=scene.data[name].train_samples,
            bytes_up=0,
            bytes_down=0,
            rounds=tuple(rounds),
        )
        for name, rounds in own.items()
    }
    rounds = [
        CoordinatorRound(number, 1, tuple(sorted(logs)), (), 0.0, _slowest(logs, number))
        for number in range(1, agreement.rounds + 1)
    ]
    return Run(scene, Method(control.value), agreement, logs, rounds)


def _slowest(logs: Mapping[str, SiteLog], number: int) -> float:
    return max(log.rounds[number - 1].seconds["train"] for log in logs.values())


def _spread(results: Mapping[int, RunResult]) -> Spread | None:
    values = [result.mean_accuracy for result in results.values() if result.mean_accuracy is not None]
    return Spread(mean=fmean(values), standard_deviation=stdev(values)) if len(values) > 1 else None


def _written(out: Path, result: RunResult) -> RunResult:
    write_result(out, result)
    return result


@contextmanager
def _workers(config: SimulationConfig) -> Iterator[Executor | None]:
    """Processes for ciphertexts; none where nothing is encrypted."""
    if config.protection is not Protection.CKKS or CONTROLS.issuperset({config.method, *config.compare}):
        yield None
        return
    with Workers(config.workers or os.cpu_count() or 1) as executor:
        yield executor
