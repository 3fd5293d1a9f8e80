"""Report of the GPU check: tables in Markdown, and the same figures as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.limits import LIMITS
from benchmarks.gpu.speed import PLAIN, PRODUCT, START

AIM_OF_STEP, AIM_OF_ROUND = 1.5, 0.8
"""Aims: time of a step over that of the fastest limit, and the share of a round that is training."""
Row = Mapping[str, Any]


@dataclass(frozen=True)
class PartReport:
    """Result of one part: its rows, its seconds, and the reason why it ended early, if it did."""

    part: str
    seconds: float
    rows: Sequence[Row]
    failure: str = ""

    @property
    def problems(self) -> list[str]:
        """Everything that makes the check fail."""
        wrong = [
            f"{row['name']}: {problem}" for row in self.of_kind("Comparison") for problem in row["problems"]
        ]
        return wrong + ([self.failure] if self.failure else [])

    def of_kind(self, kind: str) -> list[Row]:
        """Return the rows of one kind of figure."""
        return [row for row in self.rows if row["kind"] == kind]

    @property
    def line(self) -> str:
        """One line for the terminal."""
        state = "ok" if not self.problems else f"{len(self.problems)} WRONG"
        return f"{self.part:20} {state:10} {len(self.rows):4} figures {self.seconds:7.1f} s  {self.failure}".rstrip()


def markdown(reports: Sequence[PartReport], machine: Mapping[str, object]) -> str:
    """Return the report as Markdown."""
    parts = [
        "# GPU check",
        ", ".join(f"{name} {value}" for name, value in machine.items() if value is not None),
        "\n".join(_paths(reports)),
        "\n".join(_steps(reports)),
        "\n".join(_rounds(reports)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _paths(reports: Sequence[PartReport]) -> Iterator[str]:
    yield "## Paths beside the CPU\n"
    yield "| part | paths | wrong | largest distance, of its tolerance | seconds |\n|---|---|---|---|---|"
    for report in reports:
        rows = report.of_kind("Comparison")
        if rows or report.failure:
            shares = [
                distance / tolerance for row in rows for distance, tolerance, _ in row["distances"].values()
            ]
            largest = f"{max(shares):.2g}" if shares else ""
            yield f"| {report.part} | {len(rows)} | {len(report.problems)} | {largest} | {report.seconds:.0f} |"
    for report in reports:
        yield from (f"- {report.part}: {problem}" for problem in report.problems)


def _steps(reports: Sequence[PartReport]) -> Iterator[str]:
    ways = (PLAIN, *LIMITS, PRODUCT)
    timed = [report for report in reports if report.of_kind("Timing")]
    if timed:
        yield "## A step of all sites, in milliseconds\n"
        yield f"Aim: `{PRODUCT}` within {AIM_OF_STEP} times of the fastest limit of its precision.\n"
        yield f"| workload | precision | {' | '.join(ways)} | over the limit | {START} |"
        yield "|---" * (len(ways) + 4) + "|"
    for report in timed:
        rows = report.of_kind("Timing")
        for precision in dict.fromkeys(row["precision"] for row in rows):
            times = {row["way"]: row["milliseconds"] for row in rows if row["precision"] == precision}
            limits = [times[way] for way in LIMITS if times.get(way)]
            over = times[PRODUCT] / min(limits) if limits and times.get(PRODUCT) else None
            cells = [*(times.get(way) for way in ways), over, times.get(START)]
            shown = " | ".join("–" if cell is None else f"{cell:.3g}" for cell in cells)
            yield f"| {report.part.removeprefix('speed-')} | {precision} | {shown} |"
        yield from (
            f"| {report.part.removeprefix('speed-')} | {row['precision']} | {row['way']}: {row['reason']} |"
            for row in rows
            if row["milliseconds"] is None
        )


def _rounds(reports: Sequence[PartReport]) -> Iterator[str]:
    rows = [row for report in reports for row in report.of_kind("RoundShare")]
    if rows:
        yield "## A round of `simulate`\n"
        yield f"Aim: {AIM_OF_ROUND:.0%} of a round is training. The rest is from a second run, under a profiler.\n"
        yield "| run | seconds | training | rest, in seconds |\n|---|---|---|---|"
    for row in rows:
        rest = ", ".join(f"{group} {seconds:.2g}" for group, seconds in row["groups"].items())
        yield f"| {row['run']} | {row['seconds']:.3g} | {row['training'] / row['seconds']:.0%} | {rest} |"
