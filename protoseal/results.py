"""From the logs of sites and coordinator to ``result.json``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from algorithms.pfpl.objective import Control
from protoseal.config import Agreement, Method
from protoseal.files import (
    Personalised,
    RoundFigures,
    RunResult,
    Seconds,
    SiteFigures,
    SiteLog,
    SiteRound,
    ViewLine,
)
from secure_server.coordinator import CoordinatorRound

Compared = Mapping[str, Mapping[str, Sequence[SiteRound]]]
"""For each method and control that ran beside the one in question: each site's rounds."""


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
) -> RunResult:
    """The result of one federated run, with the methods and controls that ran beside it.

    ``method`` is its name where that is not the agreement's, as of a control that is an agreement on another method.
    """
    name = (method or agreement.method).value
    figures = tuple(_site_figures(sites[name], compared) for name in sorted(sites))
    own = {name: {site: log.rounds for site, log in sites.items()}}
    return RunResult(
        method=name,
        protection=agreement.protection.value,
        dataset=dataset,
        seed=seed,
        sites=figures,
        rounds=tuple(_round_figures(each, sites, compared) for each in rounds),
        mean_accuracy=mean(each.accuracy for each in figures),
        config=agreement.model_dump(mode="json", by_alias=True),
        classes=agreement.classes,
        withheld=rounds[-1].withheld if rounds else (),
        compared=_means(compared, lambda log: log[-1:]),
        metrics={str(each): _personalised(logs) for each, logs in {**own, **compared}.items()},
        groups=rounds[-1].groups if rounds else (),
        coordinator_view=view,
    )


def mean(values: Iterable[float | None]) -> float | None:
    """Of those that are numbers; None if none is."""
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers else None


def _means(
    compared: Compared, part: Callable[[Sequence[SiteRound]], Sequence[SiteRound]]
) -> dict[str, float]:
    """Each method's mean accuracy over the sites, after the last of the rounds that ``part`` chooses."""
    means = {name: mean(_accuracy(part(log)) for log in logs.values()) for name, logs in compared.items()}
    return {str(name): value for name, value in means.items() if value is not None}


def _personalised(logs: Mapping[str, Sequence[SiteRound]]) -> Personalised:
    last = [log[-1] for log in logs.values() if log]
    return Personalised(
        **{name: mean(getattr(each, name) for each in last) for name in Personalised.model_fields}
    )


def _site_figures(log: SiteLog, compared: Compared) -> SiteFigures:
    last = log.rounds[-1] if log.rounds else None
    beside = _means(
        {name: {log.name: logs[log.name]} for name, logs in compared.items()}, lambda one: one[-1:]
    )
    own = last.model_dump(include=set(Personalised.model_fields)) if last else {}
    return SiteFigures(
        name=log.name,
        train_samples=log.train_samples,
        accuracy=last.accuracy_classifier if last else None,
        bytes_up=log.bytes_up,
        bytes_down=log.bytes_down,
        accuracy_classifier=last.accuracy_classifier if last else None,
        accuracy_prototype=last.accuracy_prototype if last else None,
        accuracy_local=beside.get(Control.LOCAL),
        accuracy_self=beside.get(Control.SELF),
        compared=beside,
        withheld=last.withheld if last else (),
        **own,
    )


def _round_figures(
    completed: CoordinatorRound, sites: Mapping[str, SiteLog], compared: Compared
) -> RoundFigures:
    here = {name: _of_round(log.rounds, completed.round) for name, log in sites.items()}
    accuracies = {name: value for name, rounds in here.items() if (value := _accuracy(rounds)) is not None}
    beside = _means(compared, lambda log: _of_round(log, completed.round))
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
        mean_accuracy_local=beside.get(Control.LOCAL),
        mean_accuracy_self=beside.get(Control.SELF),
        compared=beside,
    )


def _of_round(rounds: Sequence[SiteRound], number: int) -> Sequence[SiteRound]:
    return [each for each in rounds if each.round == number]


def _accuracy(rounds: Sequence[SiteRound]) -> float | None:
    return rounds[-1].accuracy_classifier if rounds else None


def _longest(rounds: Iterable[Sequence[SiteRound]], part: str) -> float:
    return max((each.seconds.get(part, 0.0) for site in rounds for each in site), default=0.0)
