"""Page ``report.html`` of an attack folder: a self-contained report of which attacks succeeded against what.

All statements follow from the records alone. Limit: the page repeats verdicts on the attacks that ran, and no attack
that did not run counts in favour of a configuration.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from agreement.storage.atomic_files import write_text
from protoseal.evaluation.attacks.adversaries import Adversary
from protoseal.evaluation.attacks.figures import (
    UNDEFENDED,
    Panels,
    is_roc,
    other_curves,
    roc_curves,
    values_by_configuration,
    values_over_samples,
)
from protoseal.evaluation.attacks.findings import (
    WORST_FIRST,
    Column,
    Finding,
    Judged,
    columns_of,
    finding_of,
    judged_of,
    succeeds_undefended,
    undefended_of,
    worst,
)
from protoseal.evaluation.attacks.records import AttackReport, CaseRecord
from protoseal.evaluation.attacks.verdicts import Verdict
from protoseal.reports.figures import data_uri
from protoseal.reports.html_pages import Filters, template

TEMPLATE = "attacks.html"
REPORT = "report.html"
WHO = {
    Adversary.COORDINATOR.value: "Runs the central server and reads all that sites send to it.",
    Adversary.PEER.value: "Takes part, and uses what it holds and receives.",
    Adversary.PEERS.value: "Pool what they hold and receive against the one site left.",
    Adversary.COLLUSION.value: "Runs the central server, with the keys and data of one site.",
}
"""Adversaries in everyday words."""
_PLACES = {"membership": 0, "inversion": 0, "models": 0, "poisoning": 2}
"""Places of suites among the questions; 1 for others."""


@dataclass(frozen=True)
class Drawing:
    """Figure with a title, an ``image`` as data URI, and a description for readers who do not see the image."""

    title: str
    image: str = field(repr=False)
    description: str


@dataclass(frozen=True)
class Section:
    """Section of one attack; its cases are in the order of the matrix, the undefended first."""

    attack: str
    suite: str
    undefended: Finding
    cases: list[CaseRecord] = field(repr=False)
    drawings: list[Drawing] = field(repr=False)

    @property
    def details(self) -> list[str]:
        """Names of further figures of any case."""
        return list(dict.fromkeys(name for case in self.cases for name in case.details))

    def each(self, name: str) -> list[Any]:
        """Return the distinct values of a field over all cases."""
        return list(dict.fromkeys(getattr(case, name) for case in self.cases))


def write_page(folder: Path, report: AttackReport) -> Path:
    """Write the page and return its path. The page loads nothing from elsewhere."""
    columns = columns_of(report)
    ran = {id(case) for case in report.cases}
    sections = [
        _section(name, cases, [case for case in cases if id(case) in ran], columns)
        for name, cases in undefended_of(report.cases).items()
    ]
    judged = judged_of(report)
    page = template(TEMPLATE, _FILTERS).render(
        report=report,
        judged=judged,
        questions={each.configuration: _questions(each, report) for each in judged},
        groups=[(name, list(group)) for name, group in groupby(columns, lambda column: column.adversary)],
        suites=[(name, list(group)) for name, group in groupby(sections, lambda section: section.suite)],
        partial=any(found.samples for each in columns for found in each.standing.findings.values()),
        numbers={section.attack: number for number, section in enumerate(sections, 1)},
        who=WHO,
        Verdict=Verdict,
        config=json.dumps(report.config, indent=2, ensure_ascii=False, default=str),
    )
    return write_text(folder / REPORT, page)


def _questions(judged: Judged, report: AttackReport) -> list[tuple[str, dict[str, Finding]]]:
    """Return every question with its finding by adversary: on records first, on sabotage last, else the worst first."""
    suites = {case.question: case.suite for case in report.cases}

    def rank(asked: tuple[str, dict[str, Finding]]) -> tuple[int, int]:
        question, found = asked
        place = _PLACES.get(suites[question], 1)
        return place, min(
            (WORST_FIRST.index(each.verdict) for each in found.values()), default=len(WORST_FIRST)
        )

    return sorted(((question, judged.answers(question)) for question in suites), key=rank)


# Sections


def _section(
    name: str, undefended: Sequence[CaseRecord], ran: Sequence[CaseRecord], columns: Sequence[Column]
) -> Section:
    """Return the section of an attack, of whose undefended cases some ``ran`` and others were made."""
    mine = [(column, cases) for column in columns if (cases := column.of(name))]
    baseline = finding_of(undefended)
    rows = [(UNDEFENDED, baseline.case)]
    panels: dict[str, dict[str, Sequence[CaseRecord]]] = {}
    for column, cases in mine:
        rows.append((f"{column.adversary}: {column.configuration}", worst(cases)))
        panels.setdefault(column.adversary, {UNDEFENDED: undefended})[column.configuration] = cases
    return Section(
        attack=name,
        suite=undefended[0].suite,
        undefended=baseline,
        cases=[*ran, *(case for _, cases in mine for case in cases)],
        drawings=list(_drawings(rows, panels or {baseline.case.adversary: {UNDEFENDED: undefended}})),
    )


def _drawings(rows: Sequence[tuple[str, CaseRecord]], panels: Panels) -> Iterator[Drawing]:
    yield Drawing(
        "Value by configuration, with its 95 % interval",
        data_uri(values_by_configuration(rows)),
        "value and interval for each adversary and configuration, beside chance and the threshold of success; "
        "the table below has the same numbers",
    )
    if sampled := _kept(panels, _by_samples):
        yield Drawing(
            "Value over the number of samples behind a prototype",
            data_uri(values_over_samples(sampled)),
            "value over the number of samples, a panel for each adversary; the table below has the same numbers",
        )
    curves = _kept(panels, _worst_with_curves)
    if rates := _kept(curves, lambda cases: [case for case in cases if is_roc(case)]):
        yield Drawing(
            "ROC: share of members that are recognised, over the share of others that are taken for members",
            data_uri(roc_curves(rates)),
            "true-positive over false-positive rate, both axes logarithmic, a panel for each adversary",
        )
    if others := _kept(curves, lambda cases: [case for case in cases if not is_roc(case)]):
        yield Drawing(
            "Further curves",
            data_uri(other_curves(others)),
            "curves of the cases, a panel for each adversary",
        )


def _kept(panels: Panels, keep: Callable[[Sequence[CaseRecord]], list[CaseRecord]]) -> Panels:
    """Return what ``keep`` leaves of each line, without empty lines and without panels that show nothing of their own.

    A panel with only the undefended line stays if there is no other panel.
    """
    kept = {
        name: {line: found for line, cases in lines.items() if (found := keep(cases))}
        for name, lines in panels.items()
    }
    own = {name: lines for name, lines in kept.items() if set(lines) - {UNDEFENDED}}
    return own or {name: lines for name, lines in list(kept.items())[:1] if lines}


def _worst_with_curves(cases: Sequence[CaseRecord]) -> list[CaseRecord]:
    drawn = [case for case in cases if case.curves]
    return [worst(drawn)] if drawn else []


def _by_samples(cases: Sequence[CaseRecord]) -> list[CaseRecord]:
    """Return the worst reading for each number of samples, none if there are fewer than two numbers."""
    counts = sorted({case.samples_behind for case in cases if case.samples_behind})
    return (
        [worst(c for c in cases if c.samples_behind == count) for count in counts] if len(counts) > 1 else []
    )


# Text


def number_text(number: float) -> str:
    """Return the number with three digits after the point, or three significant ones if it is large or tiny."""
    if float(number).is_integer() and abs(number) >= 1:
        return f"{number:.0f}"
    return f"{number:.3f}" if number == 0 or 0.001 <= abs(number) < 100 else f"{number:.3g}"


def samples_text(samples: Sequence[int]) -> str:
    """Return "with 1 or 2 samples"; empty without numbers."""
    if not samples:
        return ""
    numbers = " or ".join(filter(None, [", ".join(map(str, samples[:-1])), str(samples[-1])]))
    return f"with {numbers} sample{'s' if list(samples) != [1] else ''}"


def reason_text(case: CaseRecord) -> str:
    """Return why the attack is too weak to tell; empty for another verdict."""
    if case.verdict is not Verdict.TOO_WEAK:
        return ""
    if not succeeds_undefended(case):
        return "fails even undefended"
    return "the interval includes success and failure"


_SYMBOLS = {
    Verdict.DEFENDED: "✓",
    Verdict.NOT_DEFENDED: "✗",
    Verdict.TOO_WEAK: "?",
    None: "–",
}
_WORDS = {
    Verdict.DEFENDED: "defended",
    Verdict.NOT_DEFENDED: "not defended",
    Verdict.TOO_WEAK: "too weak to tell",
    None: "not run",
}
_CLASSES = {verdict: words.replace(" ", "-") for verdict, words in _WORDS.items()}
"""Classes of the page's style sheet."""
_FILTERS: Filters = {
    "number": number_text,
    "short": "{:.3g}".format,
    "reason": reason_text,
    "samples": samples_text,
    "finding": lambda cases: finding_of(cases) if cases else None,
    "css": _CLASSES.__getitem__,
    "symbol": _SYMBOLS.__getitem__,
    "words": _WORDS.__getitem__,
}
