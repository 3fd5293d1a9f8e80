"""Page ``evaluate.html``: a self-contained report of accuracy against ε."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agreement.storage.atomic_files import write_text
from protoseal.evaluation.privacy_accuracy.figures import accuracy_over_epsilon
from protoseal.evaluation.privacy_accuracy.records import MEASURES, Evaluation, RunAt, RunsAtEpsilon
from protoseal.reports.figures import data_uri
from protoseal.reports.html_pages import Filters, template
from protoseal.reports.tables import METRICS, NO_PROTOTYPE, paired_text, percent

PAGE = "evaluate.html"
FREEZING = (
    "The runs at ∞ have no [privacy] section, so their features train, while all other runs keep the features "
    "frozen and predict by prototype: a loss is the joint cost of noise, clipping and freezing. Runs at ε = 100 "
    "have frozen features and hardly any noise: their loss is due to freezing and clipping, and any further loss "
    "of other runs to noise."
)
"""Note on the page if :attr:`Evaluation.freezes` is true."""


def write_page(folder: Path, evaluation: Evaluation) -> Path:
    """Write the page and return its path. The page loads nothing from elsewhere."""
    page = template(PAGE, _FILTERS).render(
        evaluation=evaluation,
        figure=data_uri(accuracy_over_epsilon(evaluation)),
        measures={name: METRICS[name] for name in MEASURES},
        spread=spread_of,
        freezing=FREEZING,
        no_prototype=NO_PROTOTYPE,
        config=_json(evaluation.config),
        at_inf=_json(otherwise) if (otherwise := _otherwise_at_inf(evaluation)) else None,
    )
    return write_text(folder / PAGE, page)


def spread_of(level: RunsAtEpsilon, measure: str) -> str:
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


def _otherwise_at_inf(evaluation: Evaluation) -> dict[str, Any]:
    """Return the settings of runs at ∞ that differ from the others', apart from ``[privacy]``."""
    exact = evaluation.config_at_inf or {}
    return {
        key: value for key, value in exact.items() if key != "privacy" and value != evaluation.config.get(key)
    }


def _json(table: dict[str, Any]) -> str:
    return json.dumps(table, indent=2, ensure_ascii=False, default=str)


_FILTERS: Filters = {
    "percent": percent,
    "paired": paired_text,
    "number": number_text,
    "epsilon": epsilon_text,
    "seeds": _seeds_text,
}
