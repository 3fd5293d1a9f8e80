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
from protoseal.audit.accuracy_records import (
    EXACT,
    Evaluation,
    RunAt,
    levels_of,
    site_at,
    spent_of,
    write_evaluation,
)
from protoseal.reports.result_files import RESULT, RunResult, read_result
from protoseal.simulation.config import SimulationConfig
from protoseal.simulation.experiment import Watcher, scene_of, simulate
from secure_client.privacy.cost import SIMULATED_DELTA, planned_epsilon

_NEAR = 1.0001
"""Largest ratio of the found factor to the least factor."""
_FARTHEST = 2.0**20

Planned = Callable[[PrivacySection], float]
"""Function from a configuration's noise to the ε of a run."""


@dataclass(frozen=True)
class Scaled:
    """Agreed noise times ``factor``; a run takes ε = ``planned``."""

    privacy: PrivacySection
    factor: float
    planned: float


def scaled(agreed: PrivacySection, factor: float) -> PrivacySection:
    """Multiply all noise multipliers by ``factor``, with six digits."""
    changes: dict[str, object] = {"noise_multiplier": _times(agreed.noise_multiplier, factor)}
    training = agreed.dp_sgd
    if training is not None:
        noise = _times(training.noise_multiplier, factor)
        changes["dp_sgd"] = training.model_copy(update={"noise_multiplier": noise})
    return agreed.model_copy(update=changes)


def fitted(agreed: PrivacySection, epsilon: float, planned: Planned) -> Scaled:
    """Return the least noise with which a run takes ``epsilon`` at most, within 0.01 %; raise ``UserError``."""
    fits = _at(agreed, 1.0, planned)
    step = 0.5 if fits.planned <= epsilon else 2.0
    other = fits
    while (fits.planned <= epsilon) == (other.planned <= epsilon):
        if not 1 / _FARTHEST <= other.factor * step <= _FARTHEST:
            raise UserError(
                f"noise multipliers from {1 / _FARTHEST:.0e} to {_FARTHEST:.0e} times the given multipliers do "
                f"not give ε = {epsilon:g}: change the rounds, release_every or the noise multipliers"
            )
        fits, other = other, _at(agreed, other.factor * step, planned)
    low, high = sorted((fits, other), key=lambda each: each.factor)
    while high.factor > _NEAR * low.factor:
        middle = _at(agreed, (low.factor * high.factor) ** 0.5, planned)
        low, high = (low, middle) if middle.planned <= epsilon else (middle, high)
    return high


def _at(agreed: PrivacySection, factor: float, planned: Planned) -> Scaled:
    privacy = scaled(agreed, factor)
    return Scaled(privacy, factor, planned(privacy))


def _times(noise: float, factor: float) -> float:
    return float(f"{noise * factor:.6g}")


LOCAL = "local"
RUNS = "runs"
_NOISELESS: dict[str, Any] = {"privacy": None, "keep_releases": False}
"""Changes that leave a configuration without noise, and so without releases to keep."""

Watched = Callable[[SimulationConfig], AbstractContextManager[Watcher]]


@dataclass(frozen=True)
class Asked:
    """One requested run: ``epsilon`` may be infinite, and then ``noise`` is :data:`EXACT`."""

    epsilon: float
    noise: str
    seed: int

    @property
    def folder(self) -> str:
        """Path of the run under the evaluation's folder."""
        place = "epsilon-inf" if math.isinf(self.epsilon) else f"epsilon-{self.epsilon:g}-{self.noise}"
        return f"{RUNS}/{place}/seed-{self.seed}"


def asked_for(epsilons: Sequence[float], noises: Sequence[str], seeds: Sequence[int]) -> tuple[Asked, ...]:
    """Return all requested runs, every seed at the largest ε first, so that a comparison is possible soon."""
    return tuple(
        Asked(epsilon, noise, seed)
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
        self._config, self._agreed, self._out = config, config.privacy, out
        self._exact = exact
        self._fitted: dict[tuple[float, str], Scaled] = {}

    @property
    def noise(self) -> str:
        """Kind of noise in the configuration."""
        return str(getattr(self._agreed, "noise", LOCAL))

    def run(self, asked: Sequence[Asked], watched: Watched) -> Iterator[Evaluation]:
        """Yield the evaluation after each run. Existing runs are read; the last evaluation is complete.

        ``watched`` makes the watcher of a missing run. Raises the errors of
        :func:`protoseal.simulation.experiment.simulate`; ``UserError`` before anything runs.
        """
        configs = [self.config_of(each) for each in asked]  # all noise is found before any run
        runs: list[RunAt] = []
        for each, config in zip(asked, configs, strict=True):
            runs.append(self._as_run(each, _simulated(config, watched)))
            evaluation = self._evaluation(runs, complete=len(runs) == len(asked))
            write_evaluation(self._out, evaluation)
            yield evaluation

    def _noise_of(self, asked: Asked) -> Scaled | None:
        """Return the noise of a run, computed once for each ε and kind of noise: it does not depend on the seed."""
        if math.isinf(asked.epsilon):
            return None
        key = asked.epsilon, asked.noise
        if key not in self._fitted:
            agreement = scene_of(self._config, self._config.seeds[0]).agreement(self._config.method)

            def planned(privacy: PrivacySection) -> float:
                agreed = agreement.model_copy(update={"privacy": privacy})
                return planned_epsilon(agreed, privacy, SIMULATED_DELTA)

            self._fitted[key] = fitted(self._with_noise(asked.noise), asked.epsilon, planned)
        return self._fitted[key]

    def _with_noise(self, kind: str) -> PrivacySection:
        """Return the configuration's own noise, of one kind."""
        if kind == self.noise:
            return self._agreed
        table = self._agreed.model_dump(mode="json") | {"noise": kind}
        return validate(PrivacySection, table, source="evaluate: [privacy]", directory=Path())

    def config_of(self, asked: Asked) -> SimulationConfig:
        """Return the configuration of a requested run, with the noise that its ε needs; raise ``UserError``."""
        noise = self._noise_of(asked)
        changes: dict[str, Any] = {"seeds": [asked.seed], "out": str(self._out / asked.folder)}
        if noise is None:
            return self._without_privacy(changes)
        return changed(self._config, changes | {"privacy": noise.privacy.model_dump(mode="json")})

    def _without_privacy(self, changes: dict[str, Any]) -> SimulationConfig:
        return changed(self._exact or self._config, _NOISELESS | changes)

    def _as_run(self, asked: Asked, result: RunResult) -> RunAt:
        noise = self._noise_of(asked)
        training = None if noise is None else noise.privacy.dp_sgd
        return RunAt(
            epsilon=None if noise is None else asked.epsilon,
            noise=asked.noise,
            features=(Extractor.TRAINED if noise is None else noise.privacy.extractor).value,
            seed=asked.seed,
            folder=asked.folder,
            factor=None if noise is None else noise.factor,
            noise_multiplier=None if noise is None else noise.privacy.noise_multiplier,
            training_noise_multiplier=None if training is None else training.noise_multiplier,
            planned=None if noise is None else noise.planned,
            spent=spent_of(result),
            guaranteed=noise is not None and all(site.guaranteed for site in result.sites),
            metrics=result.metrics,
            sites=tuple(map(site_at, result.sites)),
        )

    def _evaluation(self, runs: Sequence[RunAt], *, complete: bool) -> Evaluation:
        config = self._config
        return Evaluation(
            method=config.method.value,
            protection=config.protection.value,
            dataset=config.dataset,
            delta=SIMULATED_DELTA,
            unit=self._agreed.unit.value,
            config=_settings_of(config),
            config_at_inf=self._settings_at_inf(),
            runs=tuple(runs),
            levels=levels_of(config.method.value, runs),
            complete=complete,
        )

    def _settings_at_inf(self) -> dict[str, Any] | None:
        """Return the settings of runs at ∞; None if they differ by the lack of ``[privacy]`` alone."""
        exact, config = (_settings_of(each) for each in (self._without_privacy({}), self._config))
        return None if exact == config | _NOISELESS else exact


def changed(config: SimulationConfig, changes: dict[str, Any]) -> SimulationConfig:
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


def _settings_of(config: SimulationConfig) -> dict[str, Any]:
    return config.model_dump(mode="json", by_alias=True, exclude={"out"})


def _simulated(config: SimulationConfig, watched: Watched) -> RunResult:
    """Return the result, simulated now or read from an earlier start."""
    if (config.out / RESULT).exists() and read_result(config.out).complete:
        return simulate(config)
    with watched(config) as watcher:
        return simulate(config, watcher)
