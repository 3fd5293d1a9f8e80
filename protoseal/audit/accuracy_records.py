"""Records in ``evaluate.json``: a configuration's accuracy at each ε, run by run and as means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any, Literal

from pydantic import Field

from agreement.sections.privacy import Extractor
from agreement.storage.run_files import Record, Share, write_text
from protoseal.reports.result_files import Accuracies, Paired, RunResult, SiteFigures
from protoseal.reports.seed_statistics import paired

EVALUATION = "evaluate.json"
EXACT = "exact"
"""Kind of noise of a run without noise."""
MEASURES = ("accuracy", "accuracy_classifier", "accuracy_prototype")


class SiteAt(Record):
    """A site's accuracies after the last round, and the ε that its ledger had by then; None without noise."""

    name: str
    train_samples: int
    epsilon: float | None
    accuracy: Share | None
    accuracy_classifier: Share | None
    accuracy_prototype: Share | None


class RunAt(Record):
    """One simulated run. ``epsilon`` is the wanted limit, ``planned`` the ε of its agreement; None is ∞.

    ``spent`` is the largest ε in any site's ledger. Noise multipliers are those of the configuration times ``factor``.
    ``guaranteed`` is true if that ε holds for a record. ``folder`` is relative to the evaluation's folder. ``features``
    is the configuration's ``extractor``; at ∞ features are always trained.
    """

    epsilon: float | None
    noise: str
    features: str
    seed: int
    folder: str
    factor: float | None
    noise_multiplier: float | None
    training_noise_multiplier: float | None
    planned: float | None
    spent: float | None
    guaranteed: bool
    metrics: dict[str, Accuracies]
    """Metrics of the method, and of each that ran beside it: means over the sites."""
    sites: tuple[SiteAt, ...]


class RunsAtEpsilon(Record):
    """All seeds at one ε with one kind of noise. ``loss`` is the accuracy at ∞ less this one, paired by seed.

    If ``features`` differ from those at ∞, the loss includes that difference, not only the noise.
    """

    epsilon: float | None
    noise: str
    features: str
    seeds: tuple[int, ...]
    mean: dict[str, Share]
    standard_deviation: dict[str, float]
    loss: dict[str, Paired]


class Evaluation(Record):
    """Content of ``evaluate.json``; ``complete`` is true once every requested run has ended.

    ``config_at_inf`` is the configuration of runs at ∞ if it is not just ``config`` without ``[privacy]``.
    """

    schema_version: Literal[1] = Field(default=1, alias="schema")
    method: str
    protection: str
    dataset: str
    delta: Annotated[float, Field(gt=0, lt=1)]
    unit: str
    config: dict[str, Any]
    config_at_inf: dict[str, Any] | None = None
    runs: tuple[RunAt, ...]
    levels: tuple[RunsAtEpsilon, ...]
    complete: bool

    @property
    def freezes(self) -> bool:
        """True if a loss includes the cost of frozen features beside that of noise."""
        return any(level.loss and level.features == Extractor.FROZEN for level in self.levels)

    @property
    def lacks_prototypes(self) -> bool:
        """True if a run has no accuracy by the method's own inference, since no prototype was released."""
        means = [run.metrics[self.method] for run in self.runs if self.method in run.metrics]
        return any(mean.accuracy is None and mean.accuracy_classifier is not None for mean in means)


def to_site_at(figures: SiteFigures) -> SiteAt:
    """Return the figures of a result's site."""
    return SiteAt(**figures.model_dump(include=set(SiteAt.model_fields)))


def largest_spent(result: RunResult) -> float | None:
    """Return the largest spending of a site; None without any spending."""
    return max((site.epsilon for site in result.sites if site.epsilon is not None), default=None)


def group_by_epsilon(method: str, runs: Sequence[RunAt]) -> tuple[RunsAtEpsilon, ...]:
    """Return the levels of the runs, from the least ε to ∞."""
    places = sorted({(run.epsilon or math.inf, run.noise) for run in runs})
    exact = [run for run in runs if run.epsilon is None]
    return tuple(
        _summarise(method, [run for run in runs if (run.epsilon or math.inf, run.noise) == place], exact)
        for place in places
    )


def write_evaluation(folder: Path, evaluation: Evaluation) -> Path:
    """Write ``evaluate.json`` and return its path."""
    text = evaluation.model_dump_json(by_alias=True, indent=2) + "\n"
    return write_text(folder / EVALUATION, text)


def _summarise(method: str, runs: Sequence[RunAt], exact: Sequence[RunAt]) -> RunsAtEpsilon:
    values = {measure: _by_seed(method, measure, runs) for measure in MEASURES}
    numbers = {measure: list(by_seed.values()) for measure, by_seed in values.items() if by_seed}
    losses = {measure: paired(_by_seed(method, measure, exact), values[measure]) for measure in numbers}
    return RunsAtEpsilon(
        epsilon=runs[0].epsilon,
        noise=runs[0].noise,
        features=runs[0].features,
        seeds=tuple(sorted(run.seed for run in runs)),
        mean={measure: fmean(shares) for measure, shares in numbers.items()},
        standard_deviation={measure: stdev(shares) for measure, shares in numbers.items() if len(shares) > 1},
        loss={} if runs[0].epsilon is None else {name: pair for name, pair in losses.items() if pair},
    )


def _by_seed(method: str, measure: str, runs: Sequence[RunAt]) -> dict[int, float]:
    values = {run.seed: getattr(run.metrics[method], measure) for run in runs if method in run.metrics}
    return {seed: value for seed, value in values.items() if value is not None}
