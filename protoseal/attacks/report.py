"""Page ``report.html`` of an attack folder: a self-contained report of which attacks succeeded against what.

All statements follow from the records alone. Limit: the page repeats verdicts on the attacks that ran, and no attack
that did not run counts in favour of a configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from protoseal.attacks.cases import Verdict
from protoseal.attacks.figures import (
    UNDEFENDED,
    Panels,
    is_roc,
    other_curves,
    roc_curves,
    values_by_configuration,
    values_over_samples,
)
from protoseal.attacks.findings import (
    TOLD_BY_DESIGN,
    WORDS,
    WORST_FIRST,
    Column,
    Finding,
    Standing,
    Subject,
    columns_of,
    finding_of,
    judged_of,
    reason_text,
    subject_of,
    undefended_of,
    words_of,
    worst,
)
from protoseal.attacks.poisoning import malicious_of
from protoseal.attacks.readings import Adversary
from protoseal.attacks.records import REPORT, AttackReport, CaseRecord, notices_of
from protoseal.reports import pages
from protoseal.reports.pages import Filters, data_uri, json_text

TEMPLATE = "attacks.html"
WHO = {
    Adversary.COORDINATOR.value: "Runs the central server and reads all that sites send to it.",
    Adversary.PEER.value: "Takes part, and uses what it holds and receives.",
    Adversary.HALF.value: "Pool what they hold and receive against the other half.",
    Adversary.PEERS.value: "Pool what they hold and receive against the one site left.",
    Adversary.COLLUSION.value: "Runs the central server, with the keys and data of one site.",
}
"""Adversaries in everyday words."""
NOISE_CHECK = {
    Verdict.DEFENDED: "the noise agrees with the claim; this is no verdict on safety",
    Verdict.NOT_DEFENDED: "the noise does not agree with the claim",
    Verdict.TOO_WEAK: "the values are too few to tell",
}
"""Outcomes of the audit of the noise in everyday words."""


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


@dataclass(frozen=True)
class Topic:
    """Attacks on one subject: the columns of their matrix, and a section for each."""

    subject: Subject
    columns: list[Column] = field(repr=False)
    sections: list[Section] = field(repr=False)

    @property
    def questions(self) -> list[str]:
        """Questions of all attacks."""
        return [question for section in self.sections for question in section.each("question")]

    @property
    def partial(self) -> bool:
        """True if a finding holds for some numbers of samples alone."""
        return any(found.samples for each in self.columns for found in each.standing.findings.values())

    @property
    def groups(self) -> list[tuple[str, list[Column]]]:
        """Columns by adversary."""
        return [(name, list(group)) for name, group in groupby(self.columns, lambda each: each.adversary)]

    @property
    def suites(self) -> list[tuple[str, list[Section]]]:
        """Sections by suite."""
        return [(name, list(group)) for name, group in groupby(self.sections, lambda each: each.suite)]


def write_page(folder: Path, report: AttackReport) -> Path:
    """Write the page and return its path. The page loads nothing from elsewhere."""
    columns = columns_of(report)
    ran = {id(case) for case in report.cases}
    sections = [
        _section(name, cases, [case for case in cases if id(case) in ran], columns)
        for name, cases in undefended_of(report.cases).items()
    ]
    filters: Filters = {**_FILTERS, "reason": partial(reason_text, seeds=report.seeds)}
    return pages.write_page(
        folder / REPORT,
        TEMPLATE,
        filters,
        report=report,
        notices=notices_of(report.dataset, pictures=report.pictures),
        judged=judged_of(report),
        topics=[topic for topic in _topics(columns, sections) if topic.sections],
        sections=sections,
        numbers={section.attack: number for number, section in enumerate(sections, 1)},
        who=WHO,
        Subject=Subject,
        told_by_design=TOLD_BY_DESIGN,
        noise_check=NOISE_CHECK,
        privacy=report.config.get("privacy") or {},
        Verdict=Verdict,
        malicious=len(malicious_of([str(number) for number in range(report.sites)])),
        WORST_FIRST=WORST_FIRST,
        config=json_text(report.config),
    )


def _topics(columns: Sequence[Column], sections: Sequence[Section]) -> Iterator[Topic]:
    for subject in Subject:
        own = [
            replace(each, cases=[case for case in each.cases if subject_of(case) is subject])
            for each in columns
        ]
        yield Topic(
            subject,
            [each for each in own if each.cases],
            [each for each in sections if subject_of(each.undefended.case) is subject],
        )


def worst_first(questions: Iterable[str], standings: Sequence[Standing]) -> list[str]:
    """Return each question once, the worst answered first and those without an answer last."""

    def rank(question: str) -> int:
        found = [each.findings[question].verdict for each in standings if question in each.findings]
        return min(map(WORST_FIRST.index, found), default=len(WORST_FIRST))

    return sorted(dict.fromkeys(questions), key=rank)


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
    if float(number).is_integer():
        return f"{int(number)}"
    return f"{number:.3f}" if 0.001 <= abs(number) < 100 else f"{number:.3g}"


def samples_text(samples: Sequence[int]) -> str:
    """Return "with 1 or 2 samples"; empty without numbers."""
    if not samples:
        return ""
    numbers = " or ".join(filter(None, [", ".join(map(str, samples[:-1])), str(samples[-1])]))
    return f"of {numbers} record{'s' if list(samples) != [1] else ''}"


_SYMBOLS = {
    Verdict.DEFENDED: "✓",
    Verdict.NOT_DEFENDED: "✗",
    Verdict.NOISY_VALUES: "ε",
    Verdict.TOO_WEAK: "?",
    None: "–",
}
_CLASSES = {verdict: words.replace(" ", "-") for verdict, words in WORDS.items()}
"""Classes of the page's style sheet."""
_FILTERS: Filters = {
    "number": number_text,
    "short": lambda number: f"{round(number, 3):.3g}",
    "samples": samples_text,
    "worst_first": worst_first,
    "finding": lambda cases: finding_of(cases) if cases else None,
    "css": _CLASSES.__getitem__,
    "symbol": _SYMBOLS.__getitem__,
    "words": WORDS.__getitem__,
    "case_words": words_of,
}
