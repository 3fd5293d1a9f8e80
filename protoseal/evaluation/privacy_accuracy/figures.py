"""Figures of accuracy over ε, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from protoseal.evaluation.privacy_accuracy.records import EXACT, Evaluation, RunsAtEpsilon
from protoseal.reports.figures import STYLE, svg_of

LINES = {"accuracy_classifier": ("by classifier", "-"), "accuracy_prototype": ("by prototype", "--")}
_BEYOND = 2.0
"""Factor by which ∞ is drawn to the right of the largest ε."""
_MARGIN = 1.3


def accuracy_over_epsilon(evaluation: Evaluation) -> str:
    """Draw a line for each kind of noise and prediction, ± one standard deviation over seeds; ∞ to the right."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 3.8), layout="constrained")
        axes = figure.add_subplot()
        axes.set(xlabel=f"ε at δ = {evaluation.delta:g}", xscale="log")
        axes.set_ylabel("accuracy on the sites' own test sets, %")
        noises = sorted({level.noise for level in evaluation.levels} - {EXACT}) or [EXACT]
        places = _places(evaluation.levels)
        for index, noise in enumerate(noises):
            levels = [level for level in evaluation.levels if level.noise in (noise, EXACT)]
            for measure, (words, dashes) in LINES.items():
                points = [(places[_of(each)], each) for each in levels if measure in each.mean]
                if points:
                    label = words if noise == EXACT else f"{noise} noise, {words}"
                    _line(axes, measure, points, color=f"C{index}", linestyle=dashes, label=label)
        exact = "∞\n(features\ntrain)" if evaluation.freezes else "∞"
        axes.set_xticks(
            list(places.values()), [exact if math.isinf(each) else f"{each:g}" for each in places]
        )
        axes.set_xlim(
            min(places.values()) / _MARGIN, max(places.values()) * _MARGIN
        )  # a single ε has no width
        axes.minorticks_off()
        if axes.get_legend_handles_labels()[0]:
            figure.legend(loc="outside right upper")
        return svg_of(figure)


def _of(level: RunsAtEpsilon) -> float:
    return level.epsilon or math.inf


def _places(levels: Sequence[RunsAtEpsilon]) -> dict[float, float]:
    every = sorted({_of(level) for level in levels})
    finite = [each for each in every if math.isfinite(each)]
    return {each: each if math.isfinite(each) else _BEYOND * max(finite, default=1.0) for each in every}


def _line(axes: Any, measure: str, points: Sequence[tuple[float, RunsAtEpsilon]], **style: Any) -> None:
    heights = [100 * level.mean[measure] for _, level in points]
    spreads = [100 * level.standard_deviation.get(measure, 0.0) for _, level in points]
    axes.errorbar([place for place, _ in points], heights, spreads, marker="o", capsize=3, **style)
