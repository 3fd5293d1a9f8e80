"""Report of accuracy against ε: the records of ``evaluate.json``, and the page ``evaluate.html`` with its figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any, Literal

import matplotlib as mpl
from pydantic import Field

from agreement.sections.privacy import Extractor
from agreement.storage.run_files import Record, Share, write_text
from protoseal.reports.pages import (
    STYLE,
    Filters,
    data_uri,
    draw_legend,
    json_text,
    new_figure,
    series_colour,
    svg_text,
    write_page,
)
from protoseal.reports.result_files import Accuracies, Paired
from protoseal.reports.run_results import paired, values_by_seed
from protoseal.reports.tables import METRICS, NO_PROTOTYPE, paired_text, percent

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


class AccuracyReport(Record):
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


def group_by_epsilon(method: str, runs: Sequence[RunAt]) -> tuple[RunsAtEpsilon, ...]:
    """Return the levels of the runs, from the least ε to ∞."""
    places = sorted({(run.epsilon or math.inf, run.noise) for run in runs})
    # Every level is compared with the exact runs of the same seeds, which have the same data and initial model.
    exact = [run for run in runs if run.epsilon is None]
    return tuple(
        _summarise(method, [run for run in runs if (run.epsilon or math.inf, run.noise) == place], exact)
        for place in places
    )


def write_evaluation(folder: Path, evaluation: AccuracyReport) -> Path:
    """Write ``evaluate.json`` and return its path."""
    text = evaluation.model_dump_json(by_alias=True, indent=2) + "\n"
    return write_text(folder / EVALUATION, text)


def _summarise(method: str, runs: Sequence[RunAt], exact: Sequence[RunAt]) -> RunsAtEpsilon:
    metrics, exact_metrics = ({run.seed: run.metrics for run in level} for level in (runs, exact))
    values = {measure: values_by_seed(method, measure, metrics) for measure in MEASURES}
    numbers = {measure: list(by_seed.values()) for measure, by_seed in values.items() if by_seed}
    losses = {
        measure: paired(values_by_seed(method, measure, exact_metrics), values[measure])
        for measure in numbers
    }
    return RunsAtEpsilon(
        epsilon=runs[0].epsilon,
        noise=runs[0].noise,
        features=runs[0].features,
        seeds=tuple(sorted(run.seed for run in runs)),
        mean={measure: fmean(shares) for measure, shares in numbers.items()},
        standard_deviation={measure: stdev(shares) for measure, shares in numbers.items() if len(shares) > 1},
        loss={} if runs[0].epsilon is None else {name: pair for name, pair in losses.items() if pair},
    )


# Page

PAGE = "evaluate.html"
LINES = {"accuracy_classifier": ("by classifier", "-"), "accuracy_prototype": ("by prototype", "--")}
_BEYOND = 2.0
"""Factor by which ∞ is drawn to the right of the largest ε."""
_MARGIN = 1.3


def accuracy_over_epsilon(evaluation: AccuracyReport) -> str:
    """Draw a line for each kind of noise and prediction, ± one standard deviation over seeds; ∞ to the right."""
    with mpl.rc_context(STYLE):
        figure = new_figure()
        axes = figure.add_subplot()
        axes.set(xlabel=f"ε at δ = {evaluation.delta:g}", xscale="log")
        axes.set_ylabel("accuracy on the sites' own test sets, %")
        noises = sorted({level.noise for level in evaluation.levels} - {EXACT}) or [EXACT]
        places = _place_epsilons(evaluation.levels)
        for index, noise in enumerate(noises):
            levels = [level for level in evaluation.levels if level.noise in (noise, EXACT)]
            for measure, (words, dashes) in LINES.items():
                drawn = [level for level in levels if measure in level.mean]
                if drawn:
                    axes.errorbar(
                        [places[_epsilon(level)] for level in drawn],
                        [100 * level.mean[measure] for level in drawn],
                        [100 * level.standard_deviation.get(measure, 0.0) for level in drawn],
                        marker="o",
                        capsize=3,
                        color=series_colour(index),
                        linestyle=dashes,
                        label=words if noise == EXACT else f"{noise} noise, {words}",
                    )
        exact = "∞\n(features\ntrain)" if evaluation.freezes else "∞"
        axes.set_xticks(
            list(places.values()), [exact if math.isinf(epsilon) else f"{epsilon:g}" for epsilon in places]
        )
        # A single ε has no width, which a logarithmic axis needs.
        axes.set_xlim(min(places.values()) / _MARGIN, max(places.values()) * _MARGIN)
        axes.minorticks_off()
        draw_legend(figure)
        return svg_text(figure)


def _epsilon(level: RunsAtEpsilon) -> float:
    return level.epsilon or math.inf


def _place_epsilons(levels: Sequence[RunsAtEpsilon]) -> dict[float, float]:
    epsilons = sorted({_epsilon(level) for level in levels})
    finite = [epsilon for epsilon in epsilons if math.isfinite(epsilon)]
    infinity = _BEYOND * max(finite, default=1.0)
    return {epsilon: epsilon if math.isfinite(epsilon) else infinity for epsilon in epsilons}


FREEZING = (
    "The runs at ∞ have no [privacy] section, so their features train, while all other runs keep the features "
    "frozen and predict by prototype: a loss is the joint cost of noise, clipping and freezing. Runs at ε = 100 "
    "have frozen features and hardly any noise: their loss is due to freezing and clipping, and any further loss "
    "of other runs to noise."
)
"""Note on the page if :attr:`AccuracyReport.freezes` is true."""


def write_accuracy_page(folder: Path, evaluation: AccuracyReport) -> Path:
    """Write the page and return its path. The page loads nothing from elsewhere."""
    # The settings of runs at ∞ that differ from the others', apart from [privacy].
    differences = {
        key: value
        for key, value in (evaluation.config_at_inf or {}).items()
        if key != "privacy" and value != evaluation.config.get(key)
    }
    return write_page(
        folder / PAGE,
        PAGE,
        _FILTERS,
        evaluation=evaluation,
        figure=data_uri(accuracy_over_epsilon(evaluation)),
        measures={name: METRICS[name] for name in MEASURES},
        spread=spread_text,
        freezing=FREEZING,
        no_prototype=NO_PROTOTYPE,
        config=json_text(evaluation.config),
        at_inf=json_text(differences) if differences else None,
    )


def spread_text(level: RunsAtEpsilon, measure: str) -> str:
    """Return mean ± standard deviation over the seeds in per cent; "-" without a value."""
    if measure not in level.mean:
        return "-"
    spread = level.standard_deviation.get(measure)
    return percent(level.mean[measure]) + ("" if spread is None else f" ± {percent(spread)}")


def epsilon_text(figures: RunsAtEpsilon | RunAt) -> str:
    """Return ε as text, ∞ without noise."""
    return "∞" if figures.epsilon is None else f"{figures.epsilon:g}"


def number_text(number: float | None) -> str:
    """Return the number with four digits; "-" for none."""
    return "-" if number is None else f"{number:.4g}"


_FILTERS: Filters = {
    "percent": percent,
    "paired": paired_text,
    "number": number_text,
    "epsilon": epsilon_text,
    "seeds": lambda level: ", ".join(map(str, level.seeds)),
}
