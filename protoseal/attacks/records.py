"""Records in ``attacks.json``: each attack by each adversary on each configuration, with its verdict.

A run's file has outcomes, one for each attack, adversary and reading. The report combines the outcomes of all seeds and
judges them beside the undefended system.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from agreement.storage.run_files import Record
from protoseal.attacks.cases import Case, Curve, Measurement, Picture, Verdict
from secure_client.data.sources import is_public

ATTACKS, REPORT = "attacks.json", "report.html"
REFERENCE = "undefended"
"""Adversary of the outcome of a case's own undefended system."""


class CaseOutcome(Measurement):
    """Measurement of one case by one adversary with one reading, in one run."""

    attack: str
    adversary: str


class RunOutcomes(Record):
    """Content of a run's file: all outcomes, and the configuration that they belong to."""

    config: dict[str, Any]
    data_sha256: str
    epsilon: float | None
    attacks: tuple[str, ...]
    outcomes: tuple[CaseOutcome, ...]
    seconds: float = Field(ge=0)


class CaseRecord(Record):
    """One attack by one adversary, with one reading of its view, on one configuration.

    ``epsilon`` is None without noise. ``value`` has a 95 % interval from ``low`` to ``high`` over ``trials``
    independent releases or runs; the attack succeeds at ``chance`` + ``margin``; ``undefended`` is its value under
    ``plain`` without noise, or with ``own_reference`` that of the case's own undefended system. ``defended`` is None if
    the attack is too weak to tell, and false if it succeeds, also where it reads noisy values alone. ``by_design`` is
    true if the protocol itself tells every member what was asked. Attacks of a ``family`` differ in ``samples_behind``
    alone.
    """

    attack: str
    family: str
    suite: str
    question: str
    ability: str
    adversary: str
    reading: str
    protection: str
    epsilon: float | None
    by_design: bool = False
    samples_behind: int | None = None
    metric: str
    value: float
    low: float
    high: float
    trials: int
    undefended: float
    undefended_low: float
    undefended_high: float
    own_reference: bool
    chance: float
    margin: float
    defended: bool | None
    verdict: Verdict
    not_covered: str
    details: dict[str, float] = Field(default_factory=dict)
    curves: dict[str, Curve] = Field(default_factory=dict)
    pictures: tuple[Picture, ...] = ()

    @property
    def configuration(self) -> str:
        """Return protection and noise in words."""
        return f"{self.protection}, " + ("no noise" if self.epsilon is None else f"ε = {self.epsilon:.3g}")


class AttackReport(Record):
    """Content of ``attacks.json``; ``complete`` is true once every requested case has run.

    ``public_records`` is true for bundled and published data sets. ``pictures`` is true if cases may hold pictures of
    training images and of their reconstructions.
    """

    schema_version: Literal[1] = Field(default=1, alias="schema")
    method: str
    protection: str
    dataset: str
    public_records: bool
    pictures: bool
    sites: int
    seeds: tuple[int, ...]
    delta: float
    command: str
    config: dict[str, Any]
    seconds: float
    cases: tuple[CaseRecord, ...]
    complete: bool


def list_notices(dataset: str, *, pictures: bool) -> tuple[str, str]:
    """Return two sentences for the first screen: whose records results show, and whether they hold pictures of them."""
    if is_public(dataset):
        whose = f"These results are computed from public records: {dataset}."
    else:
        whose = (
            f"These results are computed from private records: {dataset}. No ε covers the results. Whoever sees them,"
            " or settings that were chosen because of them, learns something about the records. To choose settings, run"
            " these tests on public records that resemble yours instead."
        )
    if pictures:
        return whose, "The results hold pictures of training images and reconstructions of them (--pictures)."
    return whose, "No pictures of records are stored in the results (--pictures would store them)."


def holds_no_pictures(folder: Path) -> bool:
    """Return True if ``attacks.json`` in the folder says that the results hold no pictures of records."""
    try:
        content = json.loads((folder / ATTACKS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("pictures") is False


# From outcomes to records


def combine_seeds(outcomes: Sequence[CaseOutcome]) -> CaseOutcome:
    """Return the mean over seeds, weighted by trials; half widths of the intervals add up as independent errors."""
    weights = np.array([float(max(outcome.trials, 1)) for outcome in outcomes])
    weights /= weights.sum()
    values, lows, highs = (
        np.array([getattr(outcome, name) for outcome in outcomes]) for name in ("value", "low", "high")
    )
    # Seeds are independent: errors of the weighted mean add up as squares.
    value = float(weights @ values)
    below, above = (float(np.linalg.norm(weights * width)) for width in (values - lows, highs - values))
    details = {
        name: float(np.mean([outcome.details[name] for outcome in outcomes if name in outcome.details]))
        for name in outcomes[0].details
    }
    update = {
        "value": value,
        "low": value - below,
        "high": value + above,
        "trials": sum(outcome.trials for outcome in outcomes),
        "details": details,
    }
    return outcomes[0].model_copy(update=update)


def make_record(
    suite: str,
    case: Case,
    protection: str,
    epsilon: float | None,
    outcome: CaseOutcome,
    undefended: CaseOutcome,
    *,
    covers: bool,
) -> CaseRecord:
    """Return the record of a case; ``covers`` says whether ε, if there is one, covers the values of one site."""
    verdict = case.judge(outcome, undefended)
    # What was read carries the site's own noise, and ε bounds what it shows: no break of a protection.
    if verdict is Verdict.NOT_DEFENDED and case.reads_values and covers and epsilon is not None:
        verdict = Verdict.NOISY_VALUES
    reading = outcome.reading
    return CaseRecord(
        **dict(outcome)
        | {"reading": reading if "round" in reading or not reading else f"{reading}, of one round"},
        family=case.family,
        suite=suite,
        question=case.question,
        ability=case.ability,
        protection=protection,
        epsilon=epsilon,
        by_design=case.by_design,
        samples_behind=case.samples,
        metric=case.metric,
        undefended=undefended.value,
        undefended_low=undefended.low,
        undefended_high=undefended.high,
        own_reference=undefended.adversary == REFERENCE,
        chance=case.chance,
        margin=case.margin,
        defended=None if verdict is Verdict.TOO_WEAK else verdict is Verdict.DEFENDED,
        verdict=verdict,
        not_covered=case.not_covered,
    )
