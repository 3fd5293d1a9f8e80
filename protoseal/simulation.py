"""``protoseal simulate``: methods and controls on one data set and split, for one seed or several."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from algorithms.pfpl.objective import Control
from protoseal.config import CONTROLS, Agreement, ConfigError, Method, Protection
from protoseal.config.simulation import SimulationConfig
from protoseal.federation import run_control, run_federation
from protoseal.files import RunResult, SeedFigures, SiteLog, SiteRound, Spread, write_result
from protoseal.results import Controls, run_result
from protoseal.site_files import divide
from secure_client.data import SiteData
from secure_server.coordinator import CoordinatorRound
from secure_server.workers import Workers


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

    With several seeds each has a folder ``seed-N`` of that form, and the result on top has the sites and rounds of
    the first seed with the mean and spread over all. Raises what a site or the coordinator raises.
    """
    seeds = config.all_seeds
    with _workers(config) as executor:
        folders = {seed: config.out if len(seeds) == 1 else config.out / f"seed-{seed}" for seed in seeds}
        results = {seed: _one_seed(config, seed, folders[seed], executor, on_progress) for seed in seeds}
    if len(seeds) == 1:
        return results[seeds[0]]
    first = results[seeds[0]]
    figures = tuple(
        SeedFigures(seed=seed, mean_accuracy=result.mean_accuracy, compared=result.compared)
        for seed, result in results.items()
    )
    return _written(config.out, first.model_copy(update={"seeds": figures, "spread": _spread(results)}))


def _one_seed(
    config: SimulationConfig, seed: int, out: Path, executor: Executor | None, on_progress: OnProgress
) -> RunResult:
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
    methods = tuple(dict.fromkeys((config.method, *config.compare)))
    agreements = {
        method: config.agreement(
            method=method, seed=seed, classes=divided.classes, preprocessing=divided.preprocessing
        )
        for method in methods
    }
    controls: Controls = {
        Control(method.value): run_control(
            agreements[method], Control(method.value), data, device=config.device
        )
        for method in methods
        if method in CONTROLS
    }
    main = agreements[config.method]
    if config.method in CONTROLS:
        result = _control_result(main, controls, data, config.dataset, seed)
    else:
        outcome = run_federation(
            main,
            data,
            out,
            device=config.device,
            executor=executor,
            on_round=lambda site, figures: on_progress(Progress(seed, config.method, site, figures)),
        )
        result = run_result(main, outcome.sites, outcome.rounds, controls, dataset=config.dataset, seed=seed)
    return _written(out, result)


def _control_result(
    agreement: Agreement, controls: Controls, data: Mapping[str, SiteData], dataset: str, seed: int
) -> RunResult:
    """A control as the method itself: no rounds of a coordinator, no bytes."""
    own = controls[Control(agreement.method.value)]
    logs = {
        name: SiteLog(
            name=name,
            model=agreement.training.model,
            train_samples=data[name].train_samples,
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
    return run_result(agreement, logs, rounds, controls, dataset=dataset, seed=seed)


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
    if config.protection is not Protection.CKKS or config.method in CONTROLS:
        yield None
        return
    with Workers(config.workers or os.cpu_count() or 1) as executor:
        yield executor
