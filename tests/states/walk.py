"""A walk: one plan after the other, what came of them, and the shortest plan that shows a violation."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from secure_server.rounds.state import RoundStage
from tests.states.ending import Ending
from tests.states.faults import FaultPlan, draw_plan
from tests.states.federations import casts_of
from tests.states.invariants import Promise, Violation
from tests.states.play import play

_PLANS_OF_A_SEED = 1_000_000


@dataclass
class Report:
    """Report of a walk over one federation."""

    federation: str
    plans: int = 0
    seconds: float = 0.0
    states: set[int] = field(default_factory=set)
    faults: Counter[str] = field(default_factory=Counter)
    missed: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    found: dict[Promise, tuple[FaultPlan, Violation]] = field(default_factory=dict)

    def add(self, plan: FaultPlan, ending: Ending) -> None:
        """Take in one run."""
        self.plans += 1
        self.states |= ending.states
        self.faults.update(fault.kind for fault in plan.faults)
        self.missed += ending.unused
        self.ends[
            f"{ending.stage} ({ending.reason})" if ending.stage is RoundStage.STOPPED else ending.stage
        ] += 1
        for violation in ending.violations:
            self.found.setdefault(violation.promise, (plan, violation))

    def __str__(self) -> str:
        hit = self.faults.total() - self.missed
        ends = ", ".join(f"{count} {stage}" for stage, count in sorted(self.ends.items()))
        lines = [
            f"{self.federation}: {self.plans} plans with {self.faults.total()} faults ({hit} came to pass) in"
            f" {self.seconds:.0f} s, {len(self.states)} states; {ends}"
        ]
        for promise, (plan, violation) in self.found.items():
            lines += [
                f"VIOLATION of {promise.name} ({promise}): {violation.text}",
                f"  python -m tests.states --config {self.federation} --plan '{plan}'",
            ]
        return "\n".join(lines)


def walk(
    federation: str,
    seed: int,
    *,
    first: int = 0,
    plans: int | None = None,
    seconds: float | None = None,
    until: Collection[Promise] = (),
) -> Report:
    """Play as many plans, or for as long, as is said, or until one of some promises is broken.

    The plans follow from ``seed`` alone; the walk begins with number ``first`` of them.
    """
    casts, report, start = casts_of(federation), Report(federation), time.monotonic()
    last = None if plans is None else first + plans
    for plan in itertools.islice(_plans(seed, casts[0].sites, len(casts)), first, last):
        if (seconds is not None and time.monotonic() - start > seconds) or report.found.keys() & set(until):
            break
        report.add(plan, play(casts, plan))
    report.seconds = time.monotonic() - start
    return report


def shortened(federation: str, plan: FaultPlan, promise: Promise) -> tuple[FaultPlan, Violation] | None:
    """Leave out every fault without which the promise is broken all the same; None if it is not broken again."""
    best = _replayed(federation, plan, promise)
    best = _replayed(federation, FaultPlan(plan.faults), promise) or best
    for fault in plan.faults:
        if best is not None:
            best = _replayed(federation, best[0].without(fault), promise) or best
    return best


def _replayed(federation: str, plan: FaultPlan, promise: Promise) -> tuple[FaultPlan, Violation] | None:
    violation = _broken(play(casts_of(federation), plan).violations, promise)
    return None if violation is None else (plan, violation)


def _broken(violations: Iterable[Violation], promise: Promise) -> Violation | None:
    return next((each for each in violations if each.promise is promise), None)


def _plans(seed: int, sites: tuple[str, ...], runs: int) -> Iterator[FaultPlan]:
    for number in itertools.count():
        yield draw_plan(_PLANS_OF_A_SEED * seed + number, sites, runs=runs)
