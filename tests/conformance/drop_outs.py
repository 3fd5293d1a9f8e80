"""A federation in this process whose sites take turns, whose time passes on request, and whose sites can be lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from protoseal.simulation.local_federation import DirectTransport, LocalFederation, LocalSite
from protoseal_wire.messages import Finished, Phase, Stopped, Work
from secure_server.aggregator import Aggregator
from secure_server.coordinator import Coordinator
from secure_server.rounds.rules import build_rules
from secure_server.rounds.state import STAGE_OF_PHASE, RoundStage, State

SECONDS = 10.0
"""Seconds of every phase."""
ATTEMPTS = 2
_TURNS = 200
_ORDER = tuple(RoundStage)


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Loss:
    """A site that answers nothing from ``phase`` of round ``round`` on, and is back when the next round begins.

    ``answer_lost``: it does answer that phase, as far as it knows, and the answer does not arrive. ``back``: it comes
    back in time for the RESULT of the same round.
    """

    site: str
    round: int
    phase: Phase
    answer_lost: bool = False
    back: bool = False

    def keeps_away(self, state: State) -> bool:
        """Return True if the site is away, as it is in every further attempt of the round."""
        if not state.setup_complete or state.over or state.round != self.round:
            return False
        if self.back and state.stage is RoundStage.RESULT:
            return False
        return state.attempt > 1 or _ORDER.index(state.stage) >= _ORDER.index(STAGE_OF_PHASE[self.phase])

    def is_at(self, state: State) -> bool:
        """Return True if the answer is lost here."""
        return state.stage is STAGE_OF_PHASE[self.phase] and (state.round, state.attempt) == (self.round, 1)


def set_deadlines(federation: LocalFederation, keys: Path, clock: Clock) -> None:
    """Put a coordinator with deadlines by ``clock`` and a second attempt in the place of the patient one."""
    agreement = federation.agreement
    federation.coordinator = Coordinator(
        agreement=agreement,
        rules=build_rules(
            agreement,
            [site.name for site in federation.sites],
            max_attempts=ATTEMPTS,
            join_seconds=SECONDS,
            phase_seconds=dict.fromkeys(Phase, SECONDS),
        ),
        trust=federation.parties[0].trust,
        store=federation.store,
        aggregator=Aggregator(agreement, keys),
        clock=clock,
        on_round=federation.log.put_round,
    )
    for site in federation.sites:
        site.transport = DirectTransport(federation.coordinator, agreement.run, site.name)


def play(federation: LocalFederation, clock: Clock, losses: Sequence[Loss] = ()) -> None:
    """Play from joining to the end. When no present site has work, the phase's time passes.

    Raise ``AssertionError`` for a run that stops, or does not end.
    """
    lost = {loss for loss in losses if loss.answer_lost}
    for site in federation.sites:
        site.join()
    for _ in range(_TURNS):
        worked = take_turns(federation, losses, lost)
        if federation.coordinator.state.stage is RoundStage.FINISHED:
            # One that missed the last result is given it first.
            assert all(any(isinstance(site.step(), Finished) for _ in range(2)) for site in federation.sites)
            return
        if not worked:
            clock.now += SECONDS + 1.0
            federation.coordinator.tick()
    raise AssertionError(f"at {federation.coordinator.state.stage.name} after {_TURNS} turns")


def take_turns(federation: LocalFederation, losses: Sequence[Loss], lost: set[Loss] | None = None) -> bool:
    """Give each site its turn, and return True if any had work.

    ``lost`` are the losses whose answer is still to be lost.
    """
    worked = False
    for site in federation.sites:
        worked |= _turn(federation, site, losses, set() if lost is None else lost)
    return worked


def _turn(federation: LocalFederation, site: LocalSite, losses: Sequence[Loss], lost: set[Loss]) -> bool:
    """Give one site its turn, and return True if it had work to do."""
    state = federation.coordinator.state
    for loss in losses:
        if loss.site == site.name and loss.keeps_away(state):
            if loss in lost and loss.is_at(state):
                lost.discard(loss)
                _answer_into_the_void(site)
            return False
    task = site.step()
    assert not isinstance(task, Stopped), task.reason
    return isinstance(task, Work)


def _answer_into_the_void(site: LocalSite) -> None:
    task = site.transport.next_task()
    assert isinstance(task, Work)
    assert site.session.answer(task.key, site.transport.download(task))
