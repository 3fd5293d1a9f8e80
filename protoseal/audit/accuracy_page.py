"""Page ``evaluate.html``: a self-contained report of accuracy against ε, with its figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

from protoseal.audit.accuracy_records import EXACT, MEASURES, Evaluation, RunAt, RunsAtEpsilon
from protoseal.reports.figures import STYLE, draw_legend, new_figure, series_colour, svg_text
from protoseal.reports.pages import Filters, data_uri, json_text, write_page
from protoseal.reports.tables import METRICS, NO_PROTOTYPE, paired_text, percent

LINES = {"accuracy_classifier": ("by classifier", "-"), "accuracy_prototype": ("by prototype", "--")}
_BEYOND = 2.0
"""Factor by which ∞ is drawn to the right of the largest ε."""
_MARGIN = 1.3


def accuracy_over_epsilon(evaluation: Evaluation) -> str:
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
                points = [(places[_epsilon(level)], level) for level in levels if measure in level.mean]
                if points:
                    label = words if noise == EXACT else f"{noise} noise, {words}"
                    _draw_line(
                        axes, measure, points, color=series_colour(index), linestyle=dashes, label=label
                    )
        exact = "∞\n(features\ntrain)" if evaluation.freezes else "∞"
        axes.set_xticks(
            list(places.values()), [exact if math.isinf(epsilon) else f"{epsilon:g}" for epsilon in places]
        )
        axes.set_xlim(
            min(places.values()) / _MARGIN, max(places.values()) * _MARGIN
        )  # a single ε has no width
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


def _draw_line(axes: Any, measure: str, points: Sequence[tuple[float, RunsAtEpsilon]], **style: Any) -> None:
    heights = [100 * level.mean[measure] for _, level in points]
    spreads = [100 * level.standard_deviation.get(measure, 0.0) for _, level in points]
    axes.errorbar([place for place, _ in points], heights, spreads, marker="o", capsize=3, **style)


PAGE = "evaluate.html"
FREEZING = (
    "The runs at ∞ have no [privacy] section, so their features train, while all other runs keep the features "
    "frozen and predict by prototype: a loss is the joint cost of noise, clipping and freezing. Runs at ε = 100 "
    "have frozen features and hardly any noise: their loss is due to freezing and clipping, and any further loss "
    "of other runs to noise."
)
"""Note on the page if :attr:`Evaluation.freezes` is true."""


def write_accuracy_page(folder: Path, evaluation: Evaluation) -> Path:
    """Write the page and return its path. The page loads nothing from elsewhere."""
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
        at_inf=json_text(otherwise) if (otherwise := _differences_at_inf(evaluation)) else None,
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


def _seeds_text(level: RunsAtEpsilon) -> str:
    return ", ".join(map(str, level.seeds))


def _differences_at_inf(evaluation: Evaluation) -> dict[str, Any]:
    """Return the settings of runs at ∞ that differ from the others', apart from ``[privacy]``."""
    exact = evaluation.config_at_inf or {}
    return {
        key: value for key, value in exact.items() if key != "privacy" and value != evaluation.config.get(key)
    }


_FILTERS: Filters = {
    "percent": percent,
    "paired": paired_text,
    "number": number_text,
    "epsilon": epsilon_text,
    "seeds": _seeds_text,
}
