"""Every interleaving of a few sites and a few faults, explored exhaustively: ``python -m tests.states.phases``.

The coordinator is the real, pure round machine (:func:`secure_server.rounds.machine.step`); sites keep
:mod:`site_rules`, which a walk holds to the real ones. A state is what the machine, the journals and the network know;
time is one deadline.

Free of charge: the first site by name that has something to do does it, sites that sleep wake, those that left are
started again, lost answers arrive late, and a deadline passes where nobody has anything to do. Each of these takes one
of the faults: a site sleeps, leaves by an error of its own, or is gone for good; an answer is lost; the deadline passes
early; the coordinator is started again. Who leaves may not be heard.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from agreement.registry.round_plan import MASKED_SUM
from crypto.pairwise.attempt import threshold
from protoseal_wire.messages import Phase, PhaseKey
from secure_server.errors import CoordinatorError
from secure_server.rounds import machine
from secure_server.rounds.machine import (
    Answered,
    Computed,
    Event,
    Joined,
    Left,
    Planned,
    Polled,
    Resumed,
    Tick,
)
from secure_server.rounds.rules import Rules
from secure_server.rounds.state import Quorum, RoundStage, State
from secure_server.rounds.task_assignment import task_for
from tests.secure_server.rounds.round_player import survivors_of
from tests.states.site_rules import Asked, Journal, Refused, answered

_LEAST = 3
_DEADLINE, _LATE = 10.0, 100.0
_UP, _ASLEEP, _LEFT, _GONE = "up", "asleep", "left", "gone"
_STEPS_TO_THE_END = 600
_WITH_RESULT, _WITHOUT = "with a result", "without a result, after its last round, which it says"
_TOO_FEW, _NOWHERE = "with too few healthy sites", "nowhere"
"""Ends of a run; the last one is the one that none with enough healthy sites may come to."""


class Site(NamedTuple):
    """A site's process, its journal, and an answer of its that is still on the way."""

    process: str = _UP
    journal: Journal = Journal()
    floating: PhaseKey | None = None


class Whole(NamedTuple):
    """All there is: the coordinator's state, the sites, the faults that are left, and released shares by their sum."""

    run: State
    sites: tuple[Site, ...]
    faults: int
    released: frozenset[tuple[int, int, tuple[str, ...]]] = frozenset()


@dataclass
class Found:
    """Result of an exploration; its traces are the shortest."""

    states: int = 0
    edges: int = 0
    complete: bool = True
    ends: Counter[str] = field(default_factory=Counter)
    problems: dict[str, list[str]] = field(default_factory=dict)


class Explorer:
    """All states of a run of so many ``sites``, three of which are enough, with so many ``faults``."""

    def __init__(self, sites: int, faults: int, *, attempts: int = 3, rounds_: int = 1) -> None:
        self._names = tuple("abcdefgh"[:sites])
        self._rules = Rules(
            run="r",
            roster=self._names,
            min_sites=_LEAST,
            rounds=rounds_,
            max_attempts=attempts,
            needs_secret=False,
            join_seconds=_DEADLINE,
            phase_seconds=dict.fromkeys(Phase, _DEADLINE),
            round_steps=MASKED_SUM,
            common_group=True,
            min_group_size=lambda members: _LEAST,
        )
        first = Whole(machine.start(self._rules, 0.0), (Site(),) * sites, faults)
        self._came: dict[Whole, tuple[Whole, str] | None] = {first: None}
        self._queue = deque([first])
        self._ends: dict[Whole, str] = {}
        self._steps: dict[tuple[State, Event, float], State] = {}
        self._found = Found()

    def explore(self, seconds: float | None = None, *, until: str | None = None) -> Found:
        """Search breadth first, until all is seen, the time is over, or the problem ``until`` is found."""
        end = None if seconds is None else time.monotonic() + seconds
        while self._queue and until not in self._found.problems:
            if end is not None and time.monotonic() > end:
                self._found.complete = False
                break
            self._expand(self._queue.popleft())
        self._found.states = len(self._came)
        return self._found

    def _expand(self, whole: Whole) -> None:
        for label, after, refusal in self._successors(whole):
            self._found.edges += 1
            if refusal:
                self._problem(f"refused: {refusal}", whole, label)
            if after not in self._came:
                self._came[after] = whole, label
                self._queue.append(after)
                self._check(after)
        alive = sum(site.process != _GONE for site in whole.sites)
        end = self._end_of(whole) if alive >= _LEAST else _TOO_FEW
        self._found.ends[end] += 1
        if end == _NOWHERE:
            self._problem(f"ends {end} with {alive} healthy sites", whole)

    def _check(self, whole: Whole) -> None:
        sums = Counter(number for number, _, _ in whole.released)
        if any(count > 1 for count in sums.values()):
            self._problem("two sums of a round may open", whole)
        if any(len(survivors) < _LEAST for _, _, survivors in whole.released):
            self._problem("a sum of too few may open", whole)

    def _problem(self, text: str, whole: Whole, last: str = "") -> None:
        if text in self._found.problems:
            return
        trace, at = [last] * bool(last), whole
        while (came := self._came[at]) is not None:
            at, label = came
            trace.append(label)
        self._found.problems[text] = trace[::-1]

    # Steps

    def _successors(self, whole: Whole) -> Iterator[tuple[str, Whole, str]]:
        if whole.run.over:
            return
        for at, site in enumerate(whole.sites):
            yield from self._comes_back(whole, at, site)
        worked = any(site.process == _LEFT for site in whole.sites)
        for at, name in enumerate(self._names):
            after, refusal = self._visit(whole, at)
            if after != whole:
                yield f"{name} acts", after, refusal
                worked = True
                break
        if not worked:
            yield "deadline", self._step(whole, Tick(), _LATE), ""
        if whole.faults:
            yield from self._faults(whole._replace(faults=whole.faults - 1), early=worked)

    def _comes_back(self, whole: Whole, at: int, site: Site) -> Iterator[tuple[str, Whole, str]]:
        name = self._names[at]
        if site.process == _ASLEEP:
            yield f"{name} is back", _woken(whole, at), ""
        if site.process == _LEFT:
            yield f"{name} is back", self._joins(_woken(whole, at), at), ""
        if site.floating is not None:
            arrived = _with(whole, at, site._replace(floating=None))
            yield (
                f"{name}'s {site.floating.phase.name} comes late",
                self._taken(arrived, at, site.floating),
                "",
            )

    def _faults(self, whole: Whole, *, early: bool) -> Iterator[tuple[str, Whole, str]]:
        for at, site in enumerate(whole.sites):
            name = self._names[at]
            if site.process in (_UP, _LEFT):
                yield f"{name} IS GONE", _with(whole, at, site._replace(process=_GONE)), ""
            if site.process != _UP:
                continue
            yield f"{name} SLEEPS", _with(whole, at, site._replace(process=_ASLEEP)), ""
            if name in whole.run.joined:
                yield f"{name} LEAVES", self._leaves(whole, at), ""
                yield f"{name}'s LEAVE IS LOST", _erases(whole, at), ""
            lost, refusal = self._visit(whole, at, lost=True)
            if lost != whole and not refusal and site.floating is None:
                yield f"{name}'s ANSWER IS LOST", lost, ""
        if early:
            yield "DEADLINE", self._step(whole, Tick(), _LATE), ""
        yield "COORDINATOR RESTARTS", self._step(whole, Resumed()), ""

    def _visit(self, whole: Whole, at: int, *, lost: bool = False) -> tuple[Whole, str]:
        """A site that is up joins, or does its task; (what follows, why it refused). The same where it waits."""
        name, site = self._names[at], whole.sites[at]
        if site.process != _UP or whole.run.over:
            return whole, ""
        if name not in whole.run.joined:
            return (whole if lost else self._joins(whole, at)), ""
        polled = self._step(whole, Polled(name))
        key = task_for(self._rules, polled.run, name)
        if key is None or polled.run.over:
            return (whole if lost else polled), ""
        try:
            journal = answered(name, site.journal, key, _request(polled.run, key), _LEAST)
        except Refused as refusal:
            return self._leaves(polled, at), str(refusal)
        told = _with(polled, at, site._replace(journal=journal))
        if key.phase is Phase.UNMASK:
            fact = key.round, key.attempt, survivors_of(polled.run, Phase.VALUES)
            told = told._replace(released=told.released | {fact})
        if lost:
            return _with(told, at, told.sites[at]._replace(floating=key)), ""
        return self._taken(told, at, key), ""

    def _joins(self, whole: Whole, at: int) -> Whole:
        try:
            return self._step(whole, Joined(self._names[at], self._left(whole.sites[at].journal)))
        except CoordinatorError:  # the run goes on without it
            return _with(whole, at, whole.sites[at]._replace(process=_GONE))

    def _leaves(self, whole: Whole, at: int) -> Whole:
        return self._step(_erases(whole, at), Left(self._names[at]))

    def _left(self, journal: Journal) -> PhaseKey | None:
        left = journal.left_attempt
        return None if left is None else PhaseKey(self._rules.run, *left, Phase.PRESENCE)

    def _taken(self, whole: Whole, at: int, key: PhaseKey) -> Whole:
        try:
            return self._step(whole, Answered(self._names[at], key))
        except CoordinatorError:
            return whole

    def _step(self, whole: Whole, event: Event, now: float = 0.0) -> Whole:
        """Return the machine's step, with the coordinator's own step after it."""
        step = whole.run, event, now
        if step not in self._steps:  # the machine is pure, and comes to a state with many states of the sites
            self._steps[step] = self._machine_step(*step)
        return whole._replace(run=self._steps[step])

    def _machine_step(self, run: State, event: Event, now: float) -> State:
        run = machine.step(self._rules, run, event, now)
        while run.stage in (RoundStage.PLANNING, RoundStage.COMPUTING):
            own = self._plan(run) if run.stage is RoundStage.PLANNING else Computed()
            run = machine.step(self._rules, run, own, now)
        return replace(run, deadline=_DEADLINE, reason=run.reason if run.over else "", sessions=())

    def _plan(self, run: State) -> Planned:
        members = frozenset(run.participants)
        least = threshold(len(members))
        sharing = (Phase.SHARES, Phase.VALUES)
        return Planned(
            tuple(
                Quorum(step, members, max(least, _LEAST) if step in sharing else least) for step in MASKED_SUM
            )
        )

    # Where it comes to

    def _end_of(self, whole: Whole) -> str:
        """Return how a run ends without another fault, once all remaining sites are back and stopped runs resume."""
        path: list[Whole] = []
        whole, end = whole._replace(faults=0), _NOWHERE
        for at in [at for at, site in enumerate(whole.sites) if site.process == _ASLEEP]:
            whole = _woken(whole, at)
        for _ in range(_STEPS_TO_THE_END):
            if whole in self._ends:
                end = self._ends[whole]
                break
            path.append(whole)
            if whole.run.stage is RoundStage.FINISHED or whole.run.round > self._rules.rounds:
                end = _WITH_RESULT if whole.run.last_result else _WITHOUT
                break
            if sum(site.process != _GONE for site in whole.sites) < _LEAST:  # one came too late to join
                end = _TOO_FEW
                break
            whole = self._free_step(whole)
        self._ends |= dict.fromkeys(path, end)
        return end

    def _free_step(self, whole: Whole) -> Whole:
        if whole.run.over:  # an operator starts it again
            return self._step(whole, Resumed())
        for at, site in enumerate(whole.sites):
            if site.process == _LEFT:
                return self._joins(_woken(whole, at), at)
            after, _ = self._visit(whole, at)
            if after != whole:
                return after
        return self._step(whole, Tick(), _LATE)


def _woken(whole: Whole, at: int) -> Whole:
    return _with(whole, at, whole.sites[at]._replace(process=_UP))


def _with(whole: Whole, at: int, site: Site) -> Whole:
    return whole._replace(sites=(*whole.sites[:at], site, *whole.sites[at + 1 :]))


def _erases(whole: Whole, at: int) -> Whole:
    """A site ends by an error of its own; nobody has been told."""
    site = whole.sites[at]
    return _with(whole, at, site._replace(process=_LEFT, journal=site.journal.left()))


def _request(run: State, key: PhaseKey) -> Asked:
    match key.phase:
        case Phase.PRESENCE:
            return run.last_result
        case Phase.SHARES:
            return run.participants
        case Phase.VALUES:
            return survivors_of(run, Phase.SHARES)
        case Phase.SURVIVORS:
            return survivors_of(run, Phase.VALUES)
        case Phase.UNMASK:
            return survivors_of(run, Phase.VALUES), survivors_of(run, Phase.SURVIVORS)
        case _:
            return None


def main() -> int:
    """Return the exit status: 1 where something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.states.phases", description=__doc__)
    for name, value in (("sites", 4), ("faults", 2), ("attempts", 3), ("rounds", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--seconds", type=float, help="stop then, complete or not")
    options = parser.parse_args()
    start = time.monotonic()
    explorer = Explorer(options.sites, options.faults, attempts=options.attempts, rounds_=options.rounds)
    found = explorer.explore(options.seconds)
    whole = "complete" if found.complete else "cut off"
    print(f"{found.states} states, {found.edges} steps, {time.monotonic() - start:.0f} s, {whole}")  # noqa: T201
    print(f"ends {dict(found.ends)}")  # noqa: T201
    for text, trace in found.problems.items():
        print(f"PROBLEM {text}\n  " + ", ".join(trace))  # noqa: T201
    return int(bool(found.problems))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
