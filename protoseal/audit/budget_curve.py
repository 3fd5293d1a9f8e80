"""Accuracy against ε: one simulation for each ε, kind of noise and seed, with as much noise as that ε needs.

All noise multipliers of a configuration are scaled by one factor, until a run costs the wanted ε.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agreement import CONTROLS, ConfigError
from agreement.errors import UserError
from agreement.sections.privacy import Extractor, PrivacySection
from agreement.toml_loading import validate
from protoseal.audit.accuracy_report import (
    EXACT,
    AccuracyReport,
    RunAt,
    SiteAt,
    group_by_epsilon,
    write_evaluation,
)
from protoseal.reports.result_files import RESULT, RunResult, read_result
from protoseal.simulation.config import SimulationConfig
from protoseal.simulation.experiment import Watcher, load_scene, simulate
from secure_client.privacy.cost import SIMULATED_DELTA, planned_epsilon

_PRECISION = 1.0001
"""Largest ratio of the factor to the least one that would do."""
_LARGEST_FACTOR = 2.0**20

PlanEpsilon = Callable[[PrivacySection], float]
"""Function from a configuration's noise to the ε of a run."""


@dataclass(frozen=True)
class ScaledNoise:
    """Agreed noise times ``factor``; a run takes ε = ``planned``."""

    privacy: PrivacySection
    factor: float
    planned: float


def scale_noise(agreed: PrivacySection, factor: float) -> PrivacySection:
    """Multiply all noise multipliers by ``factor``, with six digits."""
    changes: dict[str, object] = {"noise_multiplier": _multiply(agreed.noise_multiplier, factor)}
    training = agreed.dp_sgd
    if training is not None:
        noise = _multiply(training.noise_multiplier, factor)
        changes["dp_sgd"] = training.model_copy(update={"noise_multiplier": noise})
    return agreed.model_copy(update=changes)


def fit_noise(agreed: PrivacySection, epsilon: float, planned: PlanEpsilon) -> ScaledNoise:
    """Return the least noise with which a run takes ``epsilon`` at most, within 0.01 %; raise ``UserError``."""
    fits = _try_factor(agreed, 1.0, planned)
    # ε falls with the noise: double the factor while a run costs too much, halve it while there is room.
    step = 0.5 if fits.planned <= epsilon else 2.0
    other = fits
    while (fits.planned <= epsilon) == (other.planned <= epsilon):
        if not 1 / _LARGEST_FACTOR <= other.factor * step <= _LARGEST_FACTOR:
            raise UserError(
                f"noise multipliers from {1 / _LARGEST_FACTOR:.0e} to {_LARGEST_FACTOR:.0e} times the given multipliers"
                f" do not give ε = {epsilon:g}: change the rounds, release_every or the noise multipliers"
            )
        fits, other = other, _try_factor(agreed, other.factor * step, planned)
    # One of the two costs more than ε and the other less: halve the interval between them, by ratios.
    low, high = sorted((fits, other), key=lambda tried: tried.factor)
    while high.factor > _PRECISION * low.factor:
        middle = _try_factor(agreed, (low.factor * high.factor) ** 0.5, planned)
        low, high = (low, middle) if middle.planned <= epsilon else (middle, high)
    return high


def _try_factor(agreed: PrivacySection, factor: float, planned: PlanEpsilon) -> ScaledNoise:
    privacy = scale_noise(agreed, factor)
    return ScaledNoise(privacy, factor, planned(privacy))


def _multiply(noise: float, factor: float) -> float:
    return float(f"{noise * factor:.6g}")


LOCAL = "local"
RUNS = "runs"
_NOISELESS: dict[str, Any] = {"privacy": None, "keep_releases": False}
"""Changes that leave a configuration without noise, and so without releases to keep."""

WatchRun = Callable[[SimulationConfig], AbstractContextManager[Watcher]]


@dataclass(frozen=True)
class RequestedRun:
    """One requested run: ``epsilon`` may be infinite, and then ``noise`` is :data:`EXACT`."""

    epsilon: float
    noise: str
    seed: int

    @property
    def folder(self) -> str:
        """Path of the run under the evaluation's folder."""
        place = "epsilon-inf" if math.isinf(self.epsilon) else f"epsilon-{self.epsilon:g}-{self.noise}"
        return f"{RUNS}/{place}/seed-{self.seed}"


def request_runs(
    epsilons: Sequence[float], noises: Sequence[str], seeds: Sequence[int]
) -> tuple[RequestedRun, ...]:
    """Return all requested runs, every seed at the largest ε first, to compare with; at ∞ a seed has one, exact run."""
    return tuple(
        RequestedRun(epsilon, noise, seed)
        for epsilon in sorted(set(epsilons), reverse=True)
        for noise in ([EXACT] if math.isinf(epsilon) else noises)
        for seed in seeds
    )


class BudgetCurve:
    """Runs of one configuration, each with the noise that its ε requires."""

    def __init__(self, config: SimulationConfig, out: Path, exact: SimulationConfig | None = None) -> None:
        """``config`` needs a ``[privacy]``, whose noise is scaled; results go to ``out``. Raises ``ConfigError``.

        Runs at ∞ use ``exact`` if given, since settings that suit noisy training need not suit exact training.
        """
        if config.privacy is None:
            raise ConfigError(
                "evaluate", ["the configuration has no [privacy] section with noise to scale: add one"]
            )
        if config.method in CONTROLS:
            raise ConfigError(
                "evaluate", [f"{config.method.value} releases nothing, so it has no ε: choose another method"]
            )
        if exact is not None:
            _check_comparable(config, exact)
        self._config = config
        self._agreed = config.privacy
        self._out = out
        self._exact = exact
        self._fitted: dict[tuple[float, str], ScaledNoise] = {}

    @property
    def noise(self) -> str:
        """Kind of noise in the configuration."""
        return str(getattr(self._agreed, "noise", LOCAL))

    def run(self, requests: Sequence[RequestedRun], watch: WatchRun) -> Iterator[AccuracyReport]:
        """Yield the evaluation after each run. Existing runs are read; the last evaluation is complete.

        ``watch`` makes the watcher of a missing run. Raises the errors of
        :func:`protoseal.simulation.experiment.simulate`; ``UserError`` before anything runs.
        """
        configs = [self.configure(request) for request in requests]  # all noise is found before any run
        runs: list[RunAt] = []
        for request, config in zip(requests, configs, strict=True):
            runs.append(self._record(request, _read_or_simulate(config, watch)))
            evaluation = self._evaluate(runs, complete=len(runs) == len(requests))
            write_evaluation(self._out, evaluation)
            yield evaluation

    def _fit_request(self, request: RequestedRun) -> ScaledNoise | None:
        """Return the noise of a run, computed once for each ε and kind of noise: it does not depend on the seed."""
        if math.isinf(request.epsilon):
            return None
        key = request.epsilon, request.noise
        if key not in self._fitted:
            # The cost depends on rounds and sampling alone, which are the same for every seed.
            agreement = load_scene(self._config, self._config.seeds[0]).agreement(self._config.method)

            def planned(privacy: PrivacySection) -> float:
                agreed = agreement.model_copy(update={"privacy": privacy})
                return planned_epsilon(agreed, privacy, SIMULATED_DELTA)

            self._fitted[key] = fit_noise(self._with_noise(request.noise), request.epsilon, planned)
        return self._fitted[key]

    def _with_noise(self, kind: str) -> PrivacySection:
        if kind == self.noise:
            return self._agreed
        table = self._agreed.model_dump(mode="json") | {"noise": kind}
        return validate(PrivacySection, table, source="evaluate: [privacy]", directory=Path())

    def configure(self, request: RequestedRun) -> SimulationConfig:
        """Return the configuration of a requested run, with the noise that its ε needs; raise ``UserError``."""
        noise = self._fit_request(request)
        changes: dict[str, Any] = {"seeds": [request.seed], "out": str(self._out / request.folder)}
        if noise is None:
            return self._without_privacy(changes)
        return change_config(self._config, changes | {"privacy": noise.privacy.model_dump(mode="json")})

    def _without_privacy(self, changes: dict[str, Any]) -> SimulationConfig:
        return change_config(self._exact or self._config, _NOISELESS | changes)

    def _record(self, request: RequestedRun, result: RunResult) -> RunAt:
        """Return the report's record of a finished run: its accuracies, and the noise that its ε took."""
        noise = self._fit_request(request)
        training = None if noise is None else noise.privacy.dp_sgd
        return RunAt(
            epsilon=None if noise is None else request.epsilon,
            noise=request.noise,
            features=(Extractor.TRAINED if noise is None else noise.privacy.extractor).value,
            seed=request.seed,
            folder=request.folder,
            factor=None if noise is None else noise.factor,
            noise_multiplier=None if noise is None else noise.privacy.noise_multiplier,
            training_noise_multiplier=None if training is None else training.noise_multiplier,
            planned=None if noise is None else noise.planned,
            spent=max((site.epsilon for site in result.sites if site.epsilon is not None), default=None),
            guaranteed=noise is not None and all(site.guaranteed for site in result.sites),
            metrics=result.metrics,
            sites=tuple(SiteAt(**site.model_dump(include=set(SiteAt.model_fields))) for site in result.sites),
        )

    def _evaluate(self, runs: Sequence[RunAt], *, complete: bool) -> AccuracyReport:
        config = self._config
        exact = _settings(self._without_privacy({}))
        return AccuracyReport(
            method=config.method.value,
            protection=config.protection.value,
            dataset=config.dataset,
            delta=SIMULATED_DELTA,
            unit=self._agreed.unit.value,
            config=_settings(config),
            config_at_inf=None if exact == _settings(config) | _NOISELESS else exact,
            runs=tuple(runs),
            levels=group_by_epsilon(config.method.value, runs),
            complete=complete,
        )


def change_config(config: SimulationConfig, changes: dict[str, Any]) -> SimulationConfig:
    """Return the configuration with changes, and with defaults that follow from them."""
    table = config.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return validate(SimulationConfig, table | changes, source="evaluate", directory=Path())


def _check_comparable(config: SimulationConfig, exact: SimulationConfig) -> None:
    """Raise ``ConfigError`` if runs at ∞ would have another method, other records or other sites."""
    for name in ("method", "dataset", "split", "sites"):
        if getattr(config, name) != getattr(exact, name):
            raise ConfigError(
                "evaluate",
                [f"a loss against a run with another {name} has no meaning: do not change {name} at ∞"],
            )


def _settings(config: SimulationConfig) -> dict[str, Any]:
    return config.model_dump(mode="json", by_alias=True, exclude={"out"})


def _read_or_simulate(config: SimulationConfig, watch: WatchRun) -> RunResult:
    if (config.out / RESULT).exists() and read_result(config.out).complete:
        return simulate(config)
    with watch(config) as watcher:
        return simulate(config, watcher)
