"""Construction of ``result.json`` from the logs of the sites and the coordinator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from agreement import Agreement, Method
from protoseal.reports.result_files import Accuracies, RoundFigures, RunResult, Seconds, SiteFigures, ViewLine
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
    known = {str(name): value for name, value in beside.items() if value is not None}
    own = here[method][-1] if here[method] else None
    accuracies = Accuracies() if own is None else _accuracies(own)
    return SiteFigures(
        name=log.name,
        train_samples=log.train_samples,
        bytes_up=log.bytes_up,
        bytes_down=log.bytes_down,
        model=log.model,
        compared=known,
        withheld=own.withheld if own else (),
        epsilon=max((done.epsilon for done in log.rounds if done.epsilon is not None), default=None),
        delta=max((done.delta for done in log.rounds if done.delta is not None), default=None),
        guaranteed=bool(log.rounds) and all(done.guaranteed for done in log.rounds),
        per_class=(own.per_class if own else None) or {},
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
