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
    choose_subject,
    describe_verdict,
    explain_undecided,
    find_worst,
    group_undefended,
    list_columns,
    list_judged,
    pick_worst,
)
from protoseal.attacks.poisoning import choose_malicious
from protoseal.attacks.readings import Adversary
from protoseal.attacks.records import REPORT, AttackReport, CaseRecord, list_notices
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
        return any(
            finding.samples for column in self.columns for finding in column.standing.findings.values()
        )

    @property
    def groups(self) -> list[tuple[str, list[Column]]]:
        """Columns by adversary."""
        return [(name, list(group)) for name, group in groupby(self.columns, lambda column: column.adversary)]

    @property
    def suites(self) -> list[tuple[str, list[Section]]]:
        """Sections by suite."""
        return [(name, list(group)) for name, group in groupby(self.sections, lambda section: section.suite)]


def write_report(folder: Path, report: AttackReport) -> Path:
    """Write the page and return its path. The page loads nothing from elsewhere."""
    columns = list_columns(report)
    ran = {id(case) for case in report.cases}
    sections = [
        _make_section(name, cases, [case for case in cases if id(case) in ran], columns)
        for name, cases in group_undefended(report.cases).items()
    ]
    filters: Filters = {**_FILTERS, "reason": partial(explain_undecided, seeds=report.seeds)}
    return pages.write_page(
        folder / REPORT,
        TEMPLATE,
        filters,
        report=report,
        notices=list_notices(report.dataset, pictures=report.pictures),
        judged=list_judged(report),
        topics=[topic for topic in _make_topics(columns, sections) if topic.sections],
        sections=sections,
        numbers={section.attack: number for number, section in enumerate(sections, 1)},
        who=WHO,
        Subject=Subject,
        told_by_design=TOLD_BY_DESIGN,
        noise_check=NOISE_CHECK,
        privacy=report.config.get("privacy") or {},
        Verdict=Verdict,
        malicious=len(choose_malicious([str(number) for number in range(report.sites)])),
        WORST_FIRST=WORST_FIRST,
        config=json_text(report.config),
    )


def _make_topics(columns: Sequence[Column], sections: Sequence[Section]) -> Iterator[Topic]:
    for subject in Subject:
        own = [
            replace(column, cases=[case for case in column.cases if choose_subject(case) is subject])
            for column in columns
        ]
        yield Topic(
            subject,
            [column for column in own if column.cases],
            [section for section in sections if choose_subject(section.undefended.case) is subject],
        )


def sort_worst_first(questions: Iterable[str], standings: Sequence[Standing]) -> list[str]:
    """Return each question once, the worst answered first and those without an answer last."""

    def rank(question: str) -> int:
        verdicts = [
            standing.findings[question].verdict for standing in standings if question in standing.findings
        ]
        return min(map(WORST_FIRST.index, verdicts), default=len(WORST_FIRST))

    return sorted(dict.fromkeys(questions), key=rank)


# Sections


def _make_section(
    name: str, undefended: Sequence[CaseRecord], ran: Sequence[CaseRecord], columns: Sequence[Column]
) -> Section:
    """Return the section of an attack, of whose undefended cases some ``ran`` and others were made."""
    of_attack = [(column, cases) for column in columns if (cases := column.of(name))]
    baseline = find_worst(undefended)
    rows = [(UNDEFENDED, baseline.case)]
    panels: dict[str, dict[str, Sequence[CaseRecord]]] = {}
    for column, cases in of_attack:
        rows.append((f"{column.adversary}: {column.configuration}", pick_worst(cases)))
        panels.setdefault(column.adversary, {UNDEFENDED: undefended})[column.configuration] = cases
    return Section(
        attack=name,
        suite=undefended[0].suite,
        undefended=baseline,
        cases=[*ran, *(case for _, cases in of_attack for case in cases)],
        drawings=list(_draw_section(rows, panels or {baseline.case.adversary: {UNDEFENDED: undefended}})),
    )


def _draw_section(rows: Sequence[tuple[str, CaseRecord]], panels: Panels) -> Iterator[Drawing]:
    yield Drawing(
        "Value by configuration, with its 95 % interval",
        data_uri(values_by_configuration(rows)),
        "value and interval for each adversary and configuration, beside chance and the threshold of success; "
        "the table below has the same numbers",
    )
    if sampled := _filter_panels(panels, _pick_by_samples):
        yield Drawing(
            "Value over the number of samples behind a prototype",
            data_uri(values_over_samples(sampled)),
            "value over the number of samples, a panel for each adversary; the table below has the same numbers",
        )
    curves = _filter_panels(panels, _pick_curves)
    if rates := _filter_panels(curves, lambda cases: [case for case in cases if is_roc(case)]):
        yield Drawing(
            "ROC: share of members that are recognised, over the share of others that are taken for members",
            data_uri(roc_curves(rates)),
            "true-positive over false-positive rate, both axes logarithmic, a panel for each adversary",
        )
    if others := _filter_panels(curves, lambda cases: [case for case in cases if not is_roc(case)]):
        yield Drawing(
            "Further curves",
            data_uri(other_curves(others)),
            "curves of the cases, a panel for each adversary",
        )


def _filter_panels(panels: Panels, keep: Callable[[Sequence[CaseRecord]], list[CaseRecord]]) -> Panels:
    """Return what ``keep`` leaves of each line, without empty lines and without panels that show nothing of their own.

    A panel with only the undefended line stays if there is no other panel.
    """
    filtered = {
        name: {line: remaining for line, cases in lines.items() if (remaining := keep(cases))}
        for name, lines in panels.items()
    }
    own = {name: lines for name, lines in filtered.items() if set(lines) - {UNDEFENDED}}
    return own or {name: lines for name, lines in list(filtered.items())[:1] if lines}


def _pick_curves(cases: Sequence[CaseRecord]) -> list[CaseRecord]:
    drawn = [case for case in cases if case.curves]
    return [pick_worst(drawn)] if drawn else []


def _pick_by_samples(cases: Sequence[CaseRecord]) -> list[CaseRecord]:
    """Return the worst reading for each number of samples, none if there are fewer than two numbers."""
    counts = sorted({case.samples_behind for case in cases if case.samples_behind})
    return (
        [pick_worst(c for c in cases if c.samples_behind == count) for count in counts]
        if len(counts) > 1
        else []
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
    "worst_first": sort_worst_first,
    "finding": lambda cases: find_worst(cases) if cases else None,
    "css": _CLASSES.__getitem__,
    "symbol": _SYMBOLS.__getitem__,
    "words": WORDS.__getitem__,
    "case_words": describe_verdict,
}
