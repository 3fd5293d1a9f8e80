"""A small run on disk, for the tests of what reads one."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from protoseal.files import (
    RoundFigures,
    RunResult,
    Seconds,
    SeedFigures,
    SiteFigures,
    SiteLog,
    SitePrototypes,
    SiteRound,
    Spread,
    ViewLine,
    site_folder,
    write_prototypes,
    write_result,
    write_site_log,
)

SITES = ("clinic-a", "clinic-b", "clinic-c")
CLASSES = ("cat", "<b>dog</b>", "$bird$")
SECONDS = Seconds(train=1.5, protect=0.5, aggregate=0.25, total=2.5)


def sample_result() -> RunResult:
    """Three sites, two rounds, both controls, two seeds."""
    accuracies = {1: (0.5, 0.6, 0.7), 2: (0.7, 0.75, 0.8)}
    return RunResult(
        method="pfpl",
        protection="ckks",
        dataset="digits",
        seed=0,
        sites=tuple(_figures(index) for index in range(len(SITES))),
        rounds=tuple(_round(number, values) for number, values in accuracies.items()),
        mean_accuracy=0.75,
        config={"note": "</pre><script>alert(1)</script>"},
        classes=CLASSES,
        withheld=("$bird$",),
        compared={"local": 0.6, "self": 0.7},
        seeds=(
            SeedFigures(seed=0, mean_accuracy=0.75, compared={"local": 0.6, "self": 0.7}),
            SeedFigures(seed=1, mean_accuracy=0.71, compared={"local": 0.62, "self": 0.72}),
        ),
        spread=Spread(mean=0.73, standard_deviation=0.028),
        coordinator_view=(ViewLine(what="prototype values", seen=False, evidence="best cosine as at random"),),
    )


def write_sample_run(run: Path) -> Path:
    """Write the sample result and its sites' folders below ``run``, and return that."""
    write_result(run, sample_result())
    for index, site in enumerate(SITES):
        folder = site_folder(run, site)
        folder.mkdir(parents=True)
        write_prototypes(folder, sample_prototypes(index))
        write_site_log(folder, _log(site))
    return run


def sample_prototypes(seed: int) -> SitePrototypes:
    """Three classes of four features; the last one is withheld."""
    generator = np.random.default_rng(seed)
    local = generator.normal(size=(len(CLASSES), 4))
    return SitePrototypes(
        local=local,
        personal=local + generator.normal(scale=0.3, size=local.shape),
        has_personal=np.array([True, True, False]),
        counts=np.array([9, 8, 7], dtype=np.int64),
    )


def _figures(index: int) -> SiteFigures:
    return SiteFigures(
        name=SITES[index],
        train_samples=24,
        accuracy=0.7 + 0.05 * index,
        bytes_up=3_000_000 + index,
        bytes_down=1_000_000,
        accuracy_classifier=0.7 + 0.05 * index,
        accuracy_local=0.55 + 0.05 * index,
        accuracy_self=0.65 + 0.05 * index,
        withheld=("$bird$",),
    )


def _round(number: int, values: tuple[float, ...]) -> RoundFigures:
    mean = sum(values) / len(values)
    return RoundFigures(
        round=number,
        mean_accuracy=mean,
        seconds=SECONDS,
        accuracies=dict(zip(SITES, values, strict=True)),
        mean_accuracy_local=mean - 0.15,
        mean_accuracy_self=mean - 0.05,
    )


def _log(site: str) -> SiteLog:
    rounds = tuple(
        SiteRound(
            round=number,
            attempt=1,
            sites=3,
            withheld=("$bird$",),
            accuracy_classifier=0.7,
            accuracy_prototype=0.6,
            seconds={"train": 1.5, "protect": 0.25 * number},
        )
        for number in (1, 2)
    )
    return SiteLog(
        name=site, model="small-cnn", train_samples=24, bytes_up=3_000_000, bytes_down=1_000_000, rounds=rounds
    )
