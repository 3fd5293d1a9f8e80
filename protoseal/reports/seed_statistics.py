"""Statistics over several seeds: mean and spread of each figure, and differences paired by seed."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean, stdev

from agreement.storage.run_files import FileError
from protoseal.reports.result_files import Accuracies, Paired, RunResult, SeedFigures, Spread
from secure_client.diagnosis.diagnoses import Diagnosis

METRICS = tuple(Accuracies.model_fields)
"""Names of the figures that are compared over seeds."""


def over_seeds(results: Mapping[int, RunResult]) -> RunResult:
    """Return the first seed's result with the statistics over all; ``results`` maps seeds to theirs.

    Raises ``ValueError`` without results.
    """
    if not results:
        raise ValueError("results has no seed")
    first = next(iter(results.values()))
    seeds = tuple(_figures(seed, result) for seed, result in results.items())
    return first.model_copy(
        update={
            "seeds": seeds,
            "spread": _spread([result.mean_accuracy for result in results.values()]),
            "summary": {name: _summary(name, seeds) for name in first.metrics},
            "differences": {
                name: _differences(first.method, name, seeds)
                for name in first.metrics
                if name != first.method
            },
            "complete": all(result.complete for result in results.values()),
            "diagnoses": _diagnoses(results) if len(results) > 1 else first.diagnoses,
        }
    )


def between_runs(result: RunResult, other: RunResult) -> dict[str, dict[str, Paired]]:
    """Return differences of a run's method from each method of another run, by common seeds and method name.

    Raises :class:`FileError` if the runs have no common seed, if one has not ended, or if their data, splits or numbers
    of rounds differ. Deployments do not record data, so results of deployments are refused.
    """
    own, others = _seeds_of(result), _seeds_of(other)
    _check_comparable(result, other)
    _check_same_data(own, others)
    differences = {
        name: {
            metric: pair
            for metric in METRICS
            if (pair := paired(_by_seed(result.method, metric, own), _by_seed(name, metric, others)))
        }
        for name in other.metrics
    }
    if not any(differences.values()):
        raise FileError("the two runs have no common seed: run both with the same --seeds")
    return differences


def _check_comparable(result: RunResult, other: RunResult) -> None:
    if not (result.complete and other.complete):
        raise FileError("one of the two runs has not ended: resume it with the command that started it")
    rounds, others = result.config.get("rounds"), other.config.get("rounds")
    if rounds != others:
        raise FileError(f"the two runs have {rounds} and {others} rounds: run both with the same --rounds")


def _check_same_data(own: tuple[SeedFigures, ...], others: tuple[SeedFigures, ...]) -> None:
    data = {run.seed: run.data_sha256 for run in others}
    for figures in own:
        one, other = figures.data_sha256, data.get(figures.seed, figures.data_sha256)
        if one != other and None in (one, other):
            raise FileError(
                f"one of the two runs has no hash of its data in seed {figures.seed}, as is usual for deployments: "
                "simulate both"
            )
        if one != other:
            raise FileError(
                f"the two runs have different data in seed {figures.seed}: run both with the same --dataset, "
                "--data-root, --split, --sites, --tests and preprocessing"
            )


def _seeds_of(result: RunResult) -> tuple[SeedFigures, ...]:
    return result.seeds or (_figures(result.seed, result),)


def paired(values: Mapping[int, float], others: Mapping[int, float]) -> Paired | None:
    """Return ``values`` less ``others`` by common seeds; None without a common seed.

    The standard error is that of the mean of the differences, s/√n, and None for one seed.
    """
    gains = {seed: values[seed] - others[seed] for seed in values if seed in others}
    if not gains:
        return None
    error = stdev(gains.values()) / len(gains) ** 0.5 if len(gains) > 1 else None
    return Paired(by_seed=gains, mean=fmean(gains.values()), standard_error=error)


def _diagnoses(results: Mapping[int, RunResult]) -> tuple[Diagnosis, ...]:
    """Return each method's symptoms once for each remedy, with the seeds that have them."""
    found: dict[tuple[str, ...], Diagnosis] = {}
    for seed, result in results.items():
        for diagnosis in result.diagnoses:
            key = (diagnosis.method, diagnosis.symptom, diagnosis.remedy)
            earlier = found.get(key, diagnosis)
            found[key] = earlier.model_copy(update={"seeds": (*earlier.seeds, seed)})
    return tuple(found.values())


def _figures(seed: int, result: RunResult) -> SeedFigures:
    return SeedFigures(
        seed=seed,
        mean_accuracy=result.mean_accuracy,
        compared=result.compared,
        metrics=result.metrics,
        data_sha256=result.data_sha256,
    )


def _summary(method: str, seeds: tuple[SeedFigures, ...]) -> dict[str, Spread]:
    spreads = {metric: _spread([*_by_seed(method, metric, seeds).values()]) for metric in METRICS}
    return {metric: spread for metric, spread in spreads.items() if spread is not None}


def _differences(method: str, other: str, seeds: tuple[SeedFigures, ...]) -> dict[str, Paired]:
    pairs = {
        metric: paired(_by_seed(method, metric, seeds), _by_seed(other, metric, seeds)) for metric in METRICS
    }
    return {metric: pair for metric, pair in pairs.items() if pair is not None}


def _by_seed(method: str, metric: str, seeds: tuple[SeedFigures, ...]) -> dict[int, float]:
    """Return the method's figure by seed, for the seeds that have it."""
    values = {
        figures.seed: getattr(figures.metrics[method], metric)
        for figures in seeds
        if method in figures.metrics
    }
    return {seed: value for seed, value in values.items() if value is not None}


def _spread(values: list[float | None] | list[float]) -> Spread | None:
    """Return the spread, or None for fewer than two numbers."""
    known = [value for value in values if value is not None]
    return Spread(mean=fmean(known), standard_deviation=stdev(known)) if len(known) > 1 else None
