"""Page ``report.html`` of an attack folder: a self-contained report of which attacks succeeded against what.

All statements follow from the records alone. Limit: the page repeats verdicts on the attacks that ran, and no attack
that did not run counts in favour of a configuration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from protoseal.attacks.cases import Verdict
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
from protoseal.reports.pages import (
    STYLE,
    Filters,
    data_uri,
    draw_legend,
    json_text,
    legend_handle,
    new_figure,
    series_colour,
    svg_text,
)

Panels = Mapping[str, Mapping[str, Sequence[CaseRecord]]]
"""Cases by panel (adversary), and in a panel by line (configuration)."""

ALLOWED = "allowed by ε"
"""Name of the curve that the claimed ε allows at most."""
UNDEFENDED = "undefended"
"""Name of the line that is drawn in black."""
_MARKS = {
    Verdict.DEFENDED: ("#0b6b2e", "o"),
    Verdict.NOT_DEFENDED: ("#a31515", "X"),
    Verdict.NOISY_VALUES: ("#55555f", "s"),
    Verdict.TOO_WEAK: ("#7a5c00", "D"),
}
_MARKERS = "osD^vP*h"
_COLUMNS = 2
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
class ReportSection:
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

    def distinct(self, name: str) -> list[Any]:
        """Return the distinct values of a field over all cases."""
        return list(dict.fromkeys(getattr(case, name) for case in self.cases))


@dataclass(frozen=True)
class Topic:
    """Attacks on one subject: the columns of their matrix, and a section for each."""

    subject: Subject
    columns: list[Column] = field(repr=False)
    sections: list[ReportSection] = field(repr=False)

    @property
    def questions(self) -> list[str]:
        """Questions of all attacks."""
        return [question for section in self.sections for question in section.distinct("question")]

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
    def suites(self) -> list[tuple[str, list[ReportSection]]]:
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


def _make_topics(columns: Sequence[Column], sections: Sequence[ReportSection]) -> Iterator[Topic]:
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
) -> ReportSection:
    """Return the section of an attack, of whose undefended cases some ``ran`` and others were made."""
    of_attack = [(column, cases) for column in columns if (cases := column.of(name))]
    baseline = find_worst(undefended)
    rows = [(UNDEFENDED, baseline.case)]
    panels: dict[str, dict[str, Sequence[CaseRecord]]] = {}
    for column, cases in of_attack:
        rows.append((f"{column.adversary}: {column.configuration}", pick_worst(cases)))
        panels.setdefault(column.adversary, {UNDEFENDED: undefended})[column.configuration] = cases
    return ReportSection(
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
    if rates := _filter_panels(panels, _pick_curves):
        yield Drawing(
            "ROC: share of members that are recognised, over the share of others that are taken for members",
            data_uri(roc_curves(rates)),
            "true-positive over false-positive rate, both axes logarithmic, a panel for each adversary",
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
    """Return the worst reading with curves, if there is one."""
    drawn = [case for case in cases if case.curves]
    return [pick_worst(drawn)] if drawn else []


def _pick_by_samples(cases: Sequence[CaseRecord]) -> list[CaseRecord]:
    """Return the worst reading for each number of samples, none if there are fewer than two numbers."""
    counts = sorted({case.samples_behind for case in cases if case.samples_behind})
    if len(counts) < 2:
        return []
    return [pick_worst(case for case in cases if case.samples_behind == count) for count in counts]


# Figures


def values_by_configuration(rows: Sequence[tuple[str, CaseRecord]]) -> str:
    """Draw the value and interval of each named case, from top to bottom, between lines of chance and of success."""
    with mpl.rc_context(STYLE):
        figure = new_figure(1.1 + 0.24 * len(rows))
        axes = figure.add_subplot()
        for place, (_, case) in enumerate(rows):
            colour, marker = _MARKS[case.verdict]
            axes.errorbar(
                case.value,
                place,
                xerr=_interval([case]),
                color=colour,
                marker=marker,
                capsize=3,
                linestyle="none",
            )
        # Beside each row, since adversaries may differ in chance and margin.
        for place, (_, case) in enumerate(rows):
            axes.vlines(case.chance, place - 0.5, place + 0.5, color="grey", linestyle=":")
            success = case.chance + case.margin
            axes.vlines(success, place - 0.5, place + 0.5, color="black", linestyle="--", linewidth=1)
        for handle in _threshold_handles():
            axes.add_line(handle)
        for verdict in dict.fromkeys(case.verdict for _, case in rows):
            axes.plot([], [], color=_MARKS[verdict][0], marker=_MARKS[verdict][1], label=WORDS[verdict])
        axes.set_yticks(range(len(rows)), [name for name, _ in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlabel(rows[0][1].metric if rows else "")
        axes.grid(visible=False, axis="y")
        draw_legend(figure, loc="outside lower center", ncols=3)
        return svg_text(figure)


def values_over_samples(panels: Panels) -> str:
    """Draw the value over the number of samples behind a prototype; a panel for each adversary."""
    metric = next(cases[0].metric for lines in panels.values() for cases in lines.values())
    with mpl.rc_context(STYLE):
        figure, places = _panels(panels, "samples behind a prototype", metric)
        styles = _styles(panels)
        for axes, lines in zip(places, panels.values(), strict=True):
            for name, cases in lines.items():
                ordered = sorted(cases, key=lambda case: case.samples_behind or 0)
                counts = [case.samples_behind or 0 for case in ordered]
                values = [case.value for case in ordered]
                axes.errorbar(counts, values, _interval(ordered), capsize=2, **styles[name])
            drawn = [case for cases in lines.values() for case in cases]
            axes.set_xscale("log", base=2)
            axes.set_xticks(sorted({case.samples_behind or 1 for case in drawn}))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:g}"))
            axes.axhline(drawn[0].chance, color="grey", linestyle=":")
            axes.axhline(drawn[0].chance + drawn[0].margin, color="black", linestyle="--", linewidth=1)
        return _with_legend(figure, styles, _threshold_handles())


def roc_curves(panels: Panels) -> str:
    """Draw true- over false-positive rates on logarithmic axes; a broken line is what the claimed ε allows."""
    with mpl.rc_context(STYLE):
        figure, places = _panels(panels, "false-positive rate", "true-positive rate")
        styles = _styles(panels)
        drawn = [cases[0] for lines in panels.values() for cases in lines.values()]
        least = min(min(curve.x) for case in drawn for curve in case.curves.values())
        for axes, lines in zip(places, panels.values(), strict=True):
            axes.plot([least, 1], [least, 1], color="grey", linestyle=":")
            for name, cases in lines.items():
                for words, line in cases[0].curves.items():
                    kind = {"linestyle": "--", "marker": ""} if words == ALLOWED else {"markevery": 0.15}
                    # Logarithmic axes have no zero, which is the rate of an attack that recognises nobody.
                    axes.plot(line.x, np.maximum(line.y, least), **{**styles[name], **kind})
            axes.set(xscale="log", yscale="log", xlim=(least, 1.05), ylim=(least * 0.95, 1.05))
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))
                axis.set_minor_formatter(NullFormatter())
        handles = [legend_handle("chance", color="grey", linestyle=":")]
        if any(ALLOWED in case.curves for case in drawn):
            handles.append(legend_handle(ALLOWED, color="black", linestyle="--"))
        return _with_legend(figure, styles, handles)


def _interval(cases: Sequence[CaseRecord]) -> Any:
    return [[case.value - case.low for case in cases], [case.high - case.value for case in cases]]


def _threshold_handles() -> list[Line2D]:
    return [
        legend_handle("chance", color="grey", linestyle=":"),
        legend_handle("success begins", color="black", linestyle="--", linewidth=1),
    ]


def _styles(panels: Panels) -> dict[str, Any]:
    """Return a colour and a marker for each line's name: the same in every panel."""
    names = sorted({name for lines in panels.values() for name in lines} - {UNDEFENDED})
    styles = {
        name: {"color": series_colour(index), "marker": _MARKERS[index % len(_MARKERS)], "markersize": 4}
        for index, name in enumerate(names)
    }
    return {UNDEFENDED: {"color": "black", "marker": "x", "markersize": 4}} | styles


def _panels(panels: Panels, horizontal: str, vertical: str) -> tuple[Figure, list[Axes]]:
    """Return a figure with one named panel for each adversary, all with the same axes."""
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(0.8 + 2.5 * rows)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, name in zip(grid, panels, strict=False):
        axes.set_title(name, fontsize=9)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    figure.supxlabel(horizontal, fontsize=9)
    figure.supylabel(vertical, fontsize=9)
    return figure, list(grid[: len(panels)])


def _with_legend(figure: Figure, styles: Mapping[str, Any], handles: Sequence[Line2D]) -> str:
    lines = [legend_handle(name, **style) for name, style in styles.items()]
    draw_legend(figure, [*lines, *handles], loc="outside upper center", ncols=3)
    return svg_text(figure)


# Text


def number_text(number: float) -> str:
    """Return the number with three digits after the point, or three significant ones if it is large or tiny."""
    if float(number).is_integer():
        return f"{int(number)}"
    return f"{number:.3f}" if 0.001 <= abs(number) < 100 else f"{number:.3g}"


def samples_text(samples: Sequence[int]) -> str:
    """Return "of 1 or 2 records"; empty without numbers."""
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
