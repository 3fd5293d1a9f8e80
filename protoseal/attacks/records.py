"""Records in ``attacks.json``: each attack by each adversary on each configuration, with its verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from agreement.storage.run_files import Record, write_text
from protoseal.attacks.cases import Verdict
from secure_client.data.sources import is_public

ATTACKS, REPORT = "attacks.json", "report.html"


class CurveLine(Record):
    """One line of a figure."""

    x: tuple[float, ...]
    y: tuple[float, ...]


class PictureFile(Record):
    """Images of one reconstruction: a caption for each PNG, base64 without a prefix."""

    title: str
    images: dict[str, str]


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
    curves: dict[str, CurveLine] = Field(default_factory=dict)
    pictures: tuple[PictureFile, ...] = ()

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


def notices_of(dataset: str, *, pictures: bool) -> tuple[str, str]:
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


def without_pictures(folder: Path) -> bool:
    """Return True if ``attacks.json`` in the folder says that the results hold no pictures of records."""
    try:
        content = json.loads((folder / ATTACKS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("pictures") is False


def write_attacks(folder: Path, report: AttackReport) -> Path:
    """Write ``attacks.json`` and return its path."""
    return write_text(folder / ATTACKS, report.model_dump_json(by_alias=True, indent=2) + "\n")
