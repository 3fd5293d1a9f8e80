"""The end of a run: whether it is over, what operators do with one that stopped, and what must hold then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from protoseal_wire.messages import Finished
from secure_server.rounds.state import RoundStage, State
from tests.states.invariants import Promise, Violation
from tests.states.scene import Scene

_RESUMES = 3
"""Number of times that an operator restarts a stopped run."""
_LONG_IDLE = 30
"""Turns after which a run that is over waits for no site any more."""
_NO_RESULT = "no round of the run had a result"


@dataclass
class Ending:
    """Outcome of a run, or of several that were played at once."""

    stage: RoundStage
    reason: str
    turns: int
    violations: list[Violation]
    unused: int
    """Faults of the plan that nothing came of: the run had ended, or what they were to hit never came."""
    left_out: tuple[str, ...] = ()
    results: frozenset[tuple[int, int]] = frozenset()
    """Round and attempt of each result that a site was given, of the first run."""
    states: set[int] = field(repr=False, default_factory=set)


def together(endings: Sequence[Ending], states: set[int]) -> Ending:
    """Return the ending of runs that were played at once: stopped where one did."""
    stopped = [each for each in endings if each.stage is RoundStage.STOPPED]
    return Ending(
        stopped[0].stage if stopped else endings[0].stage,
        "; ".join(each.reason for each in stopped),
        max(each.turns for each in endings),
        [violation for each in endings for violation in each.violations],
        sum(each.unused for each in endings),
        tuple(site for each in endings for site in each.left_out),
        endings[0].results,
        states,
    )


class Operators:
    """The people who see a run end, and start it again where it stopped."""

    def __init__(self, scene: Scene) -> None:
        self._scene, self._resumes = scene, _RESUMES

    def is_over(self, idle: int) -> bool:
        """Return True once the run has ended for everyone, and nobody starts it again."""
        scene = self._scene
        if not scene.coordinator.is_up or not scene.state.over:
            return False
        waiting = [site for site in scene.alive if site.outcome is None and not site.is_given_up]
        if waiting and idle <= _LONG_IDLE:
            return False
        return not (scene.state.stage is RoundStage.STOPPED and self._start_all_again())

    def _start_all_again(self) -> bool:
        """Restart a stopped run as its operators do; return True if they do."""
        scene = self._scene
        if not _has_enough(scene) or _says_no_result(scene.state) or not self._resumes:
            return False
        self._resumes -= 1
        scene.coordinator.kill(scene.turn + 1)
        for site in scene.alive:
            if site.is_up:
                site.kill(scene.turn + 2)
            else:
                scene.monitor.left(site.name, disk_failed=site.disk_failed)
            site.outcome, site.starts, site.back_at = None, 0, scene.turn + 2
        return True


def check_end(scene: Scene) -> None:
    """Tell the monitor how each site ended, and of a run that did not end as it must."""
    state = scene.state if scene.coordinator.is_up else None
    if state is None or not state.over:
        return
    broken = scene.monitor.broken
    if state.stage is RoundStage.FINISHED:
        scene.monitor.finished(state, _finished(scene))
    for site in scene.alive:
        if site.outcome is None:
            broken(Promise.ENDS, f"{site.name} did not end though the run is {state.stage}")
    if state.stage is RoundStage.STOPPED and not state.reason:
        broken(Promise.ENDS, "the run stopped and does not say why")
    if state.stage is RoundStage.STOPPED and _has_enough(scene) and not _says_no_result(state):
        broken(Promise.ENDS, f"stopped with enough healthy sites: {state.reason}")


def _finished(scene: Scene) -> dict[str, tuple[int, bytes]]:
    return {
        site.name: (site.result, b"" if site.learner is None else site.learner.received.base_hash)
        for site in scene.alive
        if isinstance(site.outcome, Finished)
    }


def _has_enough(scene: Scene) -> bool:
    return len(scene.alive) >= scene.cast.agreement.min_sites


def _says_no_result(state: State) -> bool:
    return _NO_RESULT in state.reason


def fingerprint(scene: Scene, on_the_way: int) -> int:
    """Return a number for where everything is; times and contents are left out."""
    sites = tuple((site.is_up, site.gone, site.outcome is None, site.idle, site.last) for site in scene.sites)
    if not scene.coordinator.is_up:
        return hash((None, sites, on_the_way))
    state = scene.state
    progress = (state.stage, state.round, state.attempt, state.failures, state.setup_attempt)
    who = tuple(map(frozenset, (state.absent, state.benched, state.joined, state.answered)))
    survivors = tuple((each.phase, each.sites) for each in state.survivors)
    return hash((progress, state.participants, who, survivors, sites, on_the_way))
