"""From the logs of sites and coordinator to ``result.json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from algorithms.pfpl.objective import Control
from protoseal.config import Agreement
from protoseal.files import RoundFigures, RunResult, Seconds, SiteFigures, SiteLog, SiteRound, ViewLine
from secure_server.coordinator import CoordinatorRound

Controls = Mapping[Control, Mapping[str, Sequence[SiteRound]]]
"""For each control that ran: each site's rounds."""


def run_result(
    agreement: Agreement,
    sites: Mapping[str, SiteLog],
    rounds: Sequence[CoordinatorRound],
    controls: Controls,
    *,
    dataset: str,
    seed: int,
    view: tuple[ViewLine, ...] = (),
) -> RunResult:
    """The result of one federated run, with the controls that ran beside it."""
    figures = tuple(_site_figures(sites[name], controls) for name in sorted(sites))
    return RunResult(
        method=agreement.method.value,
        protection=agreement.protection.value,
        dataset=dataset,
        seed=seed,
        sites=figures,
        rounds=tuple(_round_figures(each, sites, controls) for each in rounds),
        mean_accuracy=mean(each.accuracy for each in figures),
        config=agreement.model_dump(mode="json", by_alias=True),
        classes=agreement.classes,
        withheld=rounds[-1].withheld if rounds else (),
        compared={
            control.value: value
            for control, logs in controls.items()
            if (value := mean(_accuracy(log[-1:]) for log in logs.values())) is not None
        },
        coordinator_view=view,
    )


def mean(values: Iterable[float | None]) -> float | None:
    """Of those that are numbers; None if none is."""
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers else None


def _site_figures(log: SiteLog, controls: Controls) -> SiteFigures:
    last = log.rounds[-1] if log.rounds else None
    beside = {control: _accuracy(logs[log.name][-1:]) for control, logs in controls.items()}
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
        withheld=last.withheld if last else (),
    )


def _round_figures(
    completed: CoordinatorRound, sites: Mapping[str, SiteLog], controls: Controls
) -> RoundFigures:
    here = {name: _of_round(log.rounds, completed.round) for name, log in sites.items()}
    accuracies = {name: value for name, rounds in here.items() if (value := _accuracy(rounds)) is not None}
    beside = {
        control: mean(_accuracy(_of_round(log, completed.round)) for log in logs.values())
        for control, logs in controls.items()
    }
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
    )


def _of_round(rounds: Sequence[SiteRound], number: int) -> Sequence[SiteRound]:
    return [each for each in rounds if each.round == number]


def _accuracy(rounds: Sequence[SiteRound]) -> float | None:
    return rounds[-1].accuracy_classifier if rounds else None


def _longest(rounds: Iterable[Sequence[SiteRound]], part: str) -> float:
    return max((each.seconds.get(part, 0.0) for site in rounds for each in site), default=0.0)
