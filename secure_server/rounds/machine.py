"""The round machine: which site is asked what, when a stage ends, and what follows. Pure: no clock, I/O or randomness.

    JOINING → SETUP → PRESENCE → (PLANNING →) steps → COMPUTING → RESULT → the next round's PRESENCE, or FINISHED
                      ↑  └──────────────────────┤  └─ abandoned ──────────↗
                      └─────── next attempt ────┘

The steps of a round are VALUES alone, or SHARES, VALUES, SURVIVORS and UNMASK; either may follow DIRECTIONS. Round 0,
if there is one, ends with groups instead of a RESULT. With groups, PLANNING settles the quorum of each step, and
settles quorums again after DIRECTIONS. A run ends in STOPPED if too few sites are present, after ``max_attempts``
failures in a row, or if every member is gone; :class:`Resumed` continues a stopped run.

Guarantees, whatever the order of events (:data:`Event`) and however the clock jumps:

- An attempt is computed only over sites that answered PRESENCE and each step of that attempt: at least ``min_sites``
  sites at PRESENCE, and in each step as many as its quorums require. A step without quorums needs everyone.
- A round has at most one computed attempt. The request of a key never changes.
- Once UNMASK was asked, no other attempt of the round begins, because two sets of survivors over the same values could
  be subtracted. A round that fails after that is abandoned, without a result.
- Once masked VALUES were asked of a group, the group takes part in another attempt of the round only with as many of
  its earlier members as UNMASK needs. If no group can, the round is abandoned too, and the missing sites are benched.
- A site that cost a round an attempt (it answered PRESENCE, and then left or missed a step that needed its answer) is
  benched: it is not asked again in that round, nor in the next one if the round was abandoned. So a run of one-step
  rounds finishes if ``min_sites`` sites answer in time and fewer than ``max_attempts`` others misbehave.
- A run finishes only if some round had a result. Otherwise it ends in STOPPED, one round past its last, for good.

Limits:

- ``max_attempts`` sites that misbehave one after another in one round stop the run.
- With groups, one group that cannot meet its quorum costs all groups the attempt.
- The machine does not know whether an answer's *content* is valid: check the content before stepping.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

from protoseal_wire.messages import Phase, PhaseKey
from secure_server.rounds.rules import Rules
from secure_server.rounds.state import Groups, Quorum, RoundStage, State
from secure_server.rounds.task_assignment import (
    check_computing,
    check_excluded,
    check_expected,
    check_groups_due,
    check_joined,
    check_may_join,
    check_on_roster,
    check_planning,
)
from secure_server.rounds.transitions import (
    apply_due_transitions,
    cap_deadline,
    enter,
    fail_attempt,
    next_attempt,
    next_round,
    next_step,
    stop_if_empty,
)


@dataclass(frozen=True)
class Joined:
    """Request of a site to take part, for the first time or after a restart.

    The site has erased the secrets of the attempt that ``left``, a PRESENCE, began.
    """

    site: str
    left: PhaseKey | None = None


@dataclass(frozen=True)
class Polled:
    """Request of a site for its task, which shows that the site is there."""

    site: str


@dataclass(frozen=True)
class Answered:
    """Answer of a site to ``key``; its content was checked."""

    site: str
    key: PhaseKey


@dataclass(frozen=True)
class Left:
    """Leave of a site."""

    site: str


@dataclass(frozen=True)
class Tick:
    """Passage of time."""


@dataclass(frozen=True)
class Planned:
    """Plan of the current attempt: the number of answers that each step needs, and from which sites."""

    quorums: tuple[Quorum, ...] = ()


@dataclass(frozen=True)
class Computed:
    """Results of the current attempt; for a clustering its ``groups``. Participants ``excluded`` get none."""

    groups: Groups = ()
    excluded: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ComputeFailed:
    """Failure of the current attempt's plan or results. The reason is for the coordinator's log, not for sites."""


@dataclass(frozen=True)
class Resumed:
    """Restart of the coordinator on a stored state."""


Event = Joined | Polled | Answered | Left | Tick | Planned | Computed | ComputeFailed | Resumed


def start(rules: Rules, now: float) -> State:
    """Return a new run, open for joining. ``now`` is in seconds; :class:`Resumed` may begin another epoch."""
    return State(rules.run, RoundStage.JOINING, now + rules.join_seconds)


def step(rules: Rules, state: State, event: Event, now: float) -> State:
    """Return the state after ``event``, the same object if nothing changes.

    Raises :class:`secure_server.errors.NotOnRoster`, :class:`secure_server.errors.JoinClosed`,
    :class:`secure_server.errors.NotJoined` or :class:`secure_server.errors.WrongPhase` for an event that the state does
    not allow. An answer counts until an event has ended its phase, even just after the deadline.
    """
    return stop_if_empty(rules, _apply_event(rules, cap_deadline(rules, state, now), event, now), now)


def _apply_event(rules: Rules, state: State, event: Event, now: float) -> State:
    # Every call of a site but Leave ends its absence, so that stages wait for it again.
    match event:
        case Joined(site, left):
            state = _apply_join(rules, state, site, left)
        case Polled(site):
            check_joined(rules, state, site)
            state = _mark_present(state, site)
        case Answered(site, key):
            state = _apply_answer(rules, state, site, key)
        case Left(site):
            state = _apply_leave(state, site)
        case Planned(quorums):
            check_planning(state)
            return next_step(rules, replace(state, quorums=quorums), now)
        case Computed(groups, excluded):
            # The results must first be stored under this state's key, so no transition follows here.
            return _apply_result(rules, state, groups, excluded, now)
        case ComputeFailed():
            check_computing(state, RoundStage.PLANNING)
            return fail_attempt(rules, state, "the aggregation failed; see the coordinator's log", now)
        case Resumed():
            return _apply_resume(rules, state, now)
        case Tick():
            pass
    return apply_due_transitions(rules, state, now)


def abandons(before: State, after: State) -> bool:
    """Return True if ``after``, one step later, has abandoned the round of ``before``."""
    ended = after.round > before.round or (
        after.stage is RoundStage.FINISHED and before.stage is not RoundStage.FINISHED
    )
    return ended and before.setup_complete and before.round > 0 and before.last_result < before.round


# Events


def _apply_join(rules: Rules, state: State, site: str, left: PhaseKey | None) -> State:
    check_on_roster(rules, site)
    check_may_join(rules, state, site)
    # A site that restarts says which attempt's secrets it has erased. The statement may be older than the current
    # attempt, and then means nothing: without the comparison the site would sit out an attempt that it can answer.
    erased = {site} if state.setup_complete and left == state.presence_key else set()
    sessions = {**dict(state.sessions), site: state.session(site) + 1}
    return replace(
        _mark_present(state, site),
        joined=state.joined | {site},
        left=state.left | erased,
        sessions=tuple(sorted(sessions.items())),
    )


def _mark_present(state: State, site: str) -> State:
    return replace(state, absent=state.absent - {site})


def _apply_answer(rules: Rules, state: State, site: str, key: PhaseKey) -> State:
    check_joined(rules, state, site)
    state = _mark_present(state, site)
    if key in _answered_keys(state, site):
        return state  # a repeated upload whose acknowledgement was lost, perhaps after its stage ended
    check_expected(rules, state, site, key)
    match key.phase:
        # The set-up's answers are kept beside the stage's: a late member gives them in any stage.
        case Phase.ROSTER:
            return replace(state, verified=state.verified | {site})
        case Phase.SECRET:
            return replace(state, key_holders=state.key_holders | {site})
        case _:
            return replace(state, answered=state.answered | {site})


def _answered_keys(state: State, site: str) -> set[PhaseKey | None]:
    """Return the keys of the set-up and of the current attempt that the site has answered."""
    steps = (
        (state.roster_key, site in state.verified),
        (state.secret_key, site in state.key_holders),
        (state.presence_key, site in state.participants),
        *((state.key(step.phase), site in step.sites) for step in state.survivors),
        (state.asked_key, site in state.answered),
    )
    return {key for key, answered in steps if answered}


def _apply_leave(state: State, site: str) -> State:
    # Only members are absent: a site that leaves before joining closes is simply forgotten.
    absent = (state.absent - {site}) | ({site} & set(state.members))
    return replace(state, joined=state.joined - {site}, absent=absent)


def _apply_result(rules: Rules, state: State, groups: Groups, excluded: Set[str], now: float) -> State:
    check_computing(state)
    check_groups_due(state, groups)
    check_excluded(state, excluded)
    if groups:
        # The next round asks the sites again that this round was repeated without.
        over = replace(state, groups=groups, failures=0, benched=frozenset(), reason="")
        return next_round(rules, over, now)
    state = replace(state, excluded_from_result=tuple(sorted(excluded)), last_result=state.round)
    return enter(rules, state, RoundStage.RESULT, now)


def _apply_resume(rules: Rules, state: State, now: float) -> State:
    if state.stage is RoundStage.FINISHED or state.round > rules.rounds:
        return state
    if state.stage is not RoundStage.STOPPED:
        # The clock began anew with the process, so the stored deadline says nothing. Benched sites may be well again:
        # what failed could have been the coordinator's machine.
        deadline = now + rules.seconds(state.stage)
        return replace(state, deadline=deadline, benched=frozenset(), empty_until=None)
    # An operator who restarts a stopped run wants every site back, so no site counts as absent.
    left_out = state.absent - set(state.members)
    state = replace(state, failures=0, absent=left_out, benched=frozenset(), reason="")
    if not state.members:
        return enter(rules, state, RoundStage.JOINING, now)
    if not state.setup_complete:
        return enter(rules, state, RoundStage.SETUP, now)
    return next_attempt(rules, state, now)
