"""Runs in which processes are killed at set points and restarted by the plain command."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby

from protoseal_wire.messages import Phase
from secure_server.rounds.state import STEPS
from tests.conformance.drop_outs import Loss
from tests.e2e.expected_run import Expected
from tests.support.killed_party import Point, When
from tests.support.processes import Federation, Running, wait_until

COORDINATOR = "coordinator"
Killings = tuple[tuple[str, Point], ...]
"""Pairs of a party (a site's name or :data:`COORDINATOR`) and a point at which it dies, in the order of the run."""

_ORDER = (Phase.PRESENCE, *STEPS, Phase.RESULT)
A_DAY = 86_400.0
"""One day in seconds; every deadline is shorter."""


class _Processes:
    """All of a federation's, each started for the next point at which it is to die."""

    def __init__(self, federation: Federation, killings: Killings) -> None:
        self._federation = federation
        self._left = {name: [point for who, point in killings if who == name] for name, _ in killings}
        self._running: dict[str, Running] = {}
        for name in (COORDINATOR, *federation.names):
            self.start(name)

    def start(self, name: str) -> Running:
        """Start a party with its next point of death, or without one if none is left."""
        left = self._left.get(name)
        point = left.pop(0) if left else None
        if name == COORDINATOR:
            self._running[name] = self._federation.start_coordinator(point)
        else:
            self._running[name] = self._federation.start_site(name, point)
        return self._running[name]

    def first_over(self, names: Sequence[str]) -> str:
        """Return the first of these parties whose process ends, or the first named if none ends in time."""
        with suppress(AssertionError):  # whoever waits for one of them to die shows everyone's log
            wait_until(lambda: any(self._running[name].is_over() for name in names), "the next death")
        return next((name for name in names if self._running[name].is_over()), names[0])

    def wait_for_death(self, name: str) -> None:
        """Wait for the party to die at its point; fail the test if its process ends in another way."""
        assert self._running[name].exit_code() == -signal.SIGKILL, self._running[name].log()

    def wait_for_answers(self, sites: Sequence[str], phase: Phase, round_number: int) -> None:
        """Wait until the coordinator has taken the answers of these sites."""
        for site in sites:
            self._running[site].wait_for_log(f"uploaded {phase.name} of round {round_number}")

    def wait_for_round(self, number: int) -> None:
        """Wait until the round has begun."""
        self._running[COORDINATOR].wait_for_log(f"PRESENCE: round {number}, attempt 1")

    def check_ended(self) -> None:
        """Everyone well, and died everywhere before that."""
        assert not any(self._left.values())
        codes = {name: each.exit_code() for name, each in self._running.items()}
        assert codes == dict.fromkeys(codes, 0)


def see_through(federation: Federation, killings: Killings) -> None:
    """Run to the end; a party that dies is started again at once."""
    processes = _Processes(federation, killings)
    to_die = [name for name, _ in killings]
    while to_die:
        name = processes.first_over([*dict.fromkeys(to_die)])
        processes.wait_for_death(name)
        processes.start(name)
        to_die.remove(name)
    processes.check_ended()


def see_through_without(federation: Federation, losses: Sequence[Loss], wanted: Expected, gate: str) -> None:
    """A run to its end; who dies is back as the next round begins, which ``gate``, a site that never dies, holds up.

    A phase's time passes once everybody else has answered it: all those who do in ``wanted``.
    """
    processes = _Processes(federation, tuple((loss.site, point_of(loss)) for loss in losses))
    for _, of_round in groupby(losses, key=lambda loss: loss.round):
        lost = list(of_round)
        federation.release(gate)
        _let_go_on_without(lost, federation, processes, wanted, gate)
        processes.wait_for_round(lost[0].round + 1)  # in this one they might still be given its result
        for returning in [processes.start(loss.site) for loss in lost]:
            returning.wait_for_log("joined as")  # from now on the round is not begun without it
    federation.release(gate)
    processes.check_ended()


def _let_go_on_without(
    lost: Sequence[Loss], federation: Federation, processes: _Processes, wanted: Expected, gate: str
) -> None:
    """Let the time pass of each phase that these sites, all of one round, are lost in."""
    number = lost[0].round
    for phase in [phase for phase in _ORDER if phase in {loss.phase for loss in lost}]:
        processes.wait_for_answers(wanted.answered(number, phase), phase, number)
        for loss in lost:
            if loss.phase is phase:
                processes.wait_for_death(loss.site)
        # It has trained in this round. It counts those that had a result.
        federation.hold(gate, wanted.results_of(gate, up_to=number) + 1)
        federation.let_pass(A_DAY)


def point_of(loss: Loss) -> Point:
    """Return the point at which a process dies for this loss: once its answer is in its journal, or before."""
    return Point(When.KEPT if loss.answer_lost else When.MADE, loss.phase, loss.round)
