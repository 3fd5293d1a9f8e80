"""Results of runs: ``result.json`` from the logs of the sites and the coordinator, and statistics over several seeds.

Methods are compared by differences that are paired by seed: equal seeds have equal data and splits, whose luck then
cancels in a difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev

from agreement import Agreement, Method
from agreement.storage.run_files import FileError
from protoseal.reports.result_files import (
    Accuracies,
    Paired,
    RoundFigures,
    RunResult,
    Seconds,
    SeedFigures,
    SeedSpread,
    SiteFigures,
    ViewLine,
)
from secure_client.diagnosis.diagnoses import Diagnosis
from secure_client.output.site_log import SiteLog, SiteRound
from secure_server.round_log import CoordinatorRound

Compared = Mapping[str, Mapping[str, Sequence[SiteRound]]]
"""Rounds of each site, by compared method or control."""
ByRound = Mapping[str, Mapping[str, Mapping[int, SiteRound]]]
"""Rounds of sites by method, site and number of the round."""


def run_result(
    agreement: Agreement,
    sites: Mapping[str, SiteLog],
    rounds: Sequence[CoordinatorRound],
    compared: Compared,
    *,
    dataset: str,
    seed: int,
    method: Method | None = None,
    view: tuple[ViewLine, ...] = (),
    best: Mapping[str, int] | None = None,
    complete: bool = True,
    data_sha256: str | None = None,
    diagnoses: tuple[Diagnosis, ...] = (),
) -> RunResult:
    """Return the result of one federated run, with the compared methods and controls.

    ``method`` is its name if it differs from the agreement's, as for a control that is an agreement on another method.
    ``best`` maps the names of methods that stopped early to the reported round.
    """
    name, best = (method or agreement.method).value, best or {}
    by_method = {
        name: {site: log.rounds for site, log in sites.items()},
        **{str(other): logs for other, logs in compared.items()},
    }
    last = {
        name: {site: _last(log, best.get(name)) for site, log in logs.items()}
        for name, logs in by_method.items()
    }
    by_round = {
        name: {site: {done.round: done for done in log} for site, log in logs.items()}
        for name, logs in by_method.items()
    }
    figures = tuple(_site_figures(sites[site], name, last) for site in sorted(sites))
    reported = [done for done in rounds if done.round <= best.get(name, done.round)][-1:]
    return RunResult(
        method=name,
        inference=agreement.inference,
        protection=agreement.protection.value,
        dataset=dataset,
        seed=seed,
        sites=figures,
        rounds=tuple(_round_figures(done, name, by_round) for done in rounds),
        mean_accuracy=mean(site.accuracy for site in figures),
        config=agreement.model_dump(mode="json", by_alias=True),
        classes=agreement.classes,
        withheld=reported[0].withheld if reported else (),
        compared=_means(last, [str(method) for method in compared]),
        metrics={name: _mean_accuracies(logs) for name, logs in last.items()},
        best_round=best.get(name),
        groups=reported[0].groups if reported else (),
        coordinator_view=view,
        complete=complete,
        data_sha256=data_sha256,
        diagnoses=diagnoses,
    )


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None; None without any."""
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers else None


def _last(log: Sequence[SiteRound], best: int | None) -> Sequence[SiteRound]:
    """Return the site's reported round in a list: the last tested round up to ``best``, or an empty list."""
    # Later rounds were trained before patience ran out, and their models were given up.
    considered = [done for done in log if best is None or done.round <= best]
    return ([done for done in considered if done.accuracy_classifier is not None] or considered)[-1:]


def _means(logs: Compared, names: Iterable[str]) -> dict[str, float]:
    """Return each method's mean accuracy over the sites, after the last of the rounds given."""
    means = {name: mean(_accuracy(log) for log in logs[name].values()) for name in names}
    return {name: value for name, value in means.items() if value is not None}


def _accuracies(figures: SiteRound) -> Accuracies:
    return Accuracies(**figures.model_dump(include=set(Accuracies.model_fields)))


def _mean_accuracies(logs: Mapping[str, Sequence[SiteRound]]) -> Accuracies:
    last = [_accuracies(log[-1]) for log in logs.values() if log]
    return Accuracies(
        **{name: mean(getattr(accuracies, name) for accuracies in last) for name in Accuracies.model_fields}
    )


def _site_figures(log: SiteLog, method: str, last: Compared) -> SiteFigures:
    """Return a site's figures; ``last`` has each method's last round, the site's own run included."""
    here = {name: logs[log.name] for name, logs in last.items() if log.name in logs}
    beside = {name: _accuracy(rounds) for name, rounds in here.items() if name != method}
    reported = here[method][-1] if here[method] else None
    accuracies = Accuracies() if reported is None else _accuracies(reported)
    return SiteFigures(
        name=log.name,
        train_samples=log.train_samples,
        bytes_up=log.bytes_up,
        bytes_down=log.bytes_down,
        model=log.model,
        compared={str(name): value for name, value in beside.items() if value is not None},
        withheld=reported.withheld if reported else (),
        epsilon=max((done.epsilon for done in log.rounds if done.epsilon is not None), default=None),
        delta=max((done.delta for done in log.rounds if done.delta is not None), default=None),
        guaranteed=bool(log.rounds) and all(done.guaranteed for done in log.rounds),
        per_class=(reported.per_class if reported else None) or {},
        **accuracies.model_dump(),
    )


def _round_figures(completed: CoordinatorRound, method: str, by_round: ByRound) -> RoundFigures:
    then = {
        name: {site: log[completed.round] for site, log in logs.items() if completed.round in log}
        for name, logs in by_round.items()
    }
    here = then.pop(method)
    accuracies = {site: one.accuracy for site, one in here.items() if one.accuracy is not None}
    beside = _means({name: {site: [one] for site, one in logs.items()} for name, logs in then.items()}, then)
    return RoundFigures(
        round=completed.round,
        mean_accuracy=mean(accuracies.values()),
        seconds=Seconds(
            train=_longest(here.values(), "train"),
            protect=_longest(here.values(), "protect"),
            aggregate=completed.aggregate_seconds,
            total=completed.total_seconds,
        ),
        accuracies=accuracies,
        compared=beside,
    )


def _accuracy(rounds: Sequence[SiteRound]) -> float | None:
    return rounds[-1].accuracy if rounds else None


def _longest(rounds: Iterable[SiteRound], part: str) -> float:
    return max((done.seconds.get(part, 0.0) for done in rounds), default=0.0)


# Several seeds

_METRIC_NAMES = tuple(Accuracies.model_fields)
"""Names of the figures that are compared over seeds."""


def over_seeds(results: Mapping[int, RunResult]) -> RunResult:
    """Return the first seed's result with the statistics over all; ``results`` maps seeds to theirs.

    Raises ``ValueError`` without results.
    """
    if not results:
        raise ValueError("results has no seed")
    first = next(iter(results.values()))
    seeds = tuple(_seed_figures(seed, result) for seed, result in results.items())
    return first.model_copy(
        update={
            "seeds": seeds,
            "spread": _spread(result.mean_accuracy for result in results.values()),
            "summary": {
                name: {
                    metric: spread
                    for metric in _METRIC_NAMES
                    if (spread := _spread(values_by_seed(name, metric, _metrics(seeds)).values()))
                }
                for name in first.metrics
            },
            "differences": {
                name: _pair_metrics(first.method, seeds, name, seeds)
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
    seeds, other_seeds = (run.seeds or (_seed_figures(run.seed, run),) for run in (result, other))
    if not (result.complete and other.complete):
        raise FileError("one of the two runs has not ended: resume it with the command that started it")
    rounds, other_rounds = result.config.get("rounds"), other.config.get("rounds")
    if rounds != other_rounds:
        raise FileError(
            f"the two runs have {rounds} and {other_rounds} rounds: run both with the same --rounds"
        )
    _check_same_data(seeds, other_seeds)
    differences = {name: _pair_metrics(result.method, seeds, name, other_seeds) for name in other.metrics}
    if not any(differences.values()):
        raise FileError("the two runs have no common seed: run both with the same --seeds")
    return differences


def _check_same_data(seeds: Sequence[SeedFigures], others: Sequence[SeedFigures]) -> None:
    data = {figures.seed: figures.data_sha256 for figures in others}
    for figures in seeds:
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


def paired(values: Mapping[int, float], others: Mapping[int, float]) -> Paired | None:
    """Return ``values`` less ``others`` by common seeds; None without a common seed.

    The standard error is that of the mean of the differences, s/√n, and None for one seed.
    """
    gains = {seed: values[seed] - others[seed] for seed in values if seed in others}
    if not gains:
        return None
    # Of the mean: a seed's luck with data and initial model is common to both and cancels in a difference.
    error = stdev(gains.values()) / len(gains) ** 0.5 if len(gains) > 1 else None
    return Paired(by_seed=gains, mean=fmean(gains.values()), standard_error=error)


def values_by_seed(
    method: str, metric: str, metrics: Mapping[int, Mapping[str, Accuracies]]
) -> dict[int, float]:
    """Return the method's figure by seed, for the seeds that have it; ``metrics`` are by seed and method."""
    values = {
        seed: getattr(by_method[method], metric) for seed, by_method in metrics.items() if method in by_method
    }
    return {seed: value for seed, value in values.items() if value is not None}


def _pair_metrics(
    method: str, seeds: Sequence[SeedFigures], other: str, others: Sequence[SeedFigures]
) -> dict[str, Paired]:
    """Return the differences of ``method`` from ``other``, for the metrics that both have in a common seed."""
    pairs = {
        metric: paired(
            values_by_seed(method, metric, _metrics(seeds)), values_by_seed(other, metric, _metrics(others))
        )
        for metric in _METRIC_NAMES
    }
    return {metric: pair for metric, pair in pairs.items() if pair is not None}


def _metrics(seeds: Sequence[SeedFigures]) -> dict[int, Mapping[str, Accuracies]]:
    return {figures.seed: figures.metrics for figures in seeds}


def _diagnoses(results: Mapping[int, RunResult]) -> tuple[Diagnosis, ...]:
    """Return each method's symptoms once for each remedy, with the seeds that have them."""
    merged: dict[tuple[str, ...], Diagnosis] = {}
    for seed, result in results.items():
        for diagnosis in result.diagnoses:
            key = (diagnosis.method, diagnosis.symptom, diagnosis.remedy)
            earlier = merged.get(key, diagnosis)
            merged[key] = earlier.model_copy(update={"seeds": (*earlier.seeds, seed)})
    return tuple(merged.values())


def _seed_figures(seed: int, result: RunResult) -> SeedFigures:
    return SeedFigures(
        seed=seed,
        mean_accuracy=result.mean_accuracy,
        compared=result.compared,
        metrics=result.metrics,
        data_sha256=result.data_sha256,
    )


def _spread(values: Iterable[float | None]) -> SeedSpread | None:
    numbers = [value for value in values if value is not None]
    return SeedSpread(mean=fmean(numbers), standard_deviation=stdev(numbers)) if len(numbers) > 1 else None
