"""The round machine: who is asked what, when a phase ends, what follows. Pure: no clock, I/O or randomness.

    JOINING → SETUP → PRESENCE → VALUES → COMPUTING → RESULT → the next round's PRESENCE, or FINISHED
                      ↑  └─────────┴──────────┤
                      └──── next attempt ─────┘

Too few sites, or ``max_attempts`` failures in a row, end in STOPPED, from which :class:`Resumed` goes on.

Guaranteed, whatever the order of events and however the clock jumps: an attempt is computed only over sites
that answered PRESENCE and VALUES of that very attempt, at least ``min_sites`` of them; a round has one
computed attempt at most; what a key asks never changes (a ROSTER's members, a VALUES step's participants).
A site that cost a round an attempt (it answered PRESENCE and then left, or sent no VALUES in time) is benched:
not asked again in that round. So a run in which ``min_sites`` sites answer in time finishes, whatever fewer than
``max_attempts`` others do.
The limits: ``max_attempts`` sites that misbehave one after another in one round do stop the run. Whether an
answer's *content* is good is not known here: check it before stepping.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace
from itertools import dropwhile

from protoseal_wire.messages import Phase, PhaseKey
from secure_server.errors import JoinClosed, NotJoined, NotOnRoster, WrongPhase
from secure_server.run_events import (
    Answered,
    Computed,
    ComputeFailed,
    Event,
    Joined,
    Left,
    Polled,
    Resumed,
    Tick,
)
from secure_server.run_state import Rules, Stage, State

__all__ = [
    "Answered",
    "ComputeFailed",
    "Computed",
    "Event",
    "Joined",
    "Left",
    "Polled",
    "Resumed",
    "Rules",
    "Stage",
    "State",
    "Tick",
    "check_expected",
    "ready_sites",
    "start",
    "step",
    "task_for",
]


def start(rules: Rules, now: float) -> State:
    """A new run, open for joining. ``now`` in seconds; :class:`Resumed` may begin another epoch."""
    return State(rules.run, Stage.JOINING, now + rules.join_seconds)


def step(rules: Rules, state: State, event: Event, now: float) -> State:
    """The state after ``event``; the same state when it changes nothing.

    :class:`NotOnRoster`, :class:`JoinClosed`, :class:`NotJoined` or :class:`WrongPhase` for an event that has
    no place here. An answer counts as long as no event has ended its phase, even just after the deadline.
    """
    state = _within_full_time(rules, state, now)
    match event:
        case Joined(site):
            state = _joined(rules, state, site)
        case Polled(site):
            check_joined(rules, state, site)
            state = _back(state, site)
        case Answered(site, key):
            state = _answered(rules, state, site, key)
        case Left(site):
            state = _left(state, site)
        case Computed():
            # Not settled at once: the results are to be stored under this very state's key.
            return _computed(rules, state, now)
        case ComputeFailed():
            check_computing(state)
            return _failed(rules, state, "the aggregation failed; see the coordinator's log", now)
        case Resumed():
            return _resumed(rules, state, now)
        case Tick():
            pass
    return _settled(rules, state, now)


def task_for(rules: Rules, state: State, site: str) -> PhaseKey | None:
    """The step that ``site`` is to answer now; None: it has to wait, or the run is ``over``.

    A member that was late in the set-up is still given its ROSTER and SECRET in any later stage.
    """
    if state.over or site not in state.joined or site not in state.members:
        return None
    if site not in state.verified:
        return state.roster_key
    if site not in ready_sites(rules, state):
        return state.secret_key if state.maker in state.verified else None
    asked = asked_sites(rules, state) if state.stage is Stage.PRESENCE else set(state.participants)
    return state.asked_key if site in asked - state.answered else None


def asked_sites(rules: Rules, state: State) -> frozenset[str]:
    """The members that the current attempt asks for PRESENCE: those set up, without the benched."""
    return ready_sites(rules, state) - state.benched


def ready_sites(rules: Rules, state: State) -> frozenset[str]:
    """The members that are set up: they verified the roster and, where there is a group secret, hold it."""
    if not rules.needs_secret:
        return state.verified
    return state.verified & (state.keyed | set(state.members[:1]))


# Checks, each by itself


def check_on_roster(rules: Rules, site: str) -> None:
    """:class:`NotOnRoster` unless the coordinator's file names the site."""
    if site not in rules.roster:
        raise NotOnRoster(
            f"{site} is not among this run's sites; the coordinator's operator can add it before a run"
        )


def check_may_join(state: State, site: str) -> None:
    """:class:`JoinClosed` if the run has begun without the site."""
    if state.members and site not in state.members:
        raise JoinClosed(f"run {state.run} goes on without {site}: it can join the next run")


def check_joined(rules: Rules, state: State, site: str) -> None:
    """:class:`NotJoined` unless the site has joined and not left since; :class:`NotOnRoster` as above."""
    check_on_roster(rules, site)
    if site not in state.joined:
        raise NotJoined(f"{site} has not joined run {state.run}, or has left it: join first")


def check_expected(rules: Rules, state: State, site: str, key: PhaseKey) -> None:
    """:class:`WrongPhase` unless ``key`` is the site's current task."""
    task = task_for(rules, state, site)
    if key != task:
        current = _name(task) if task else f"none ({state.stage})"
        raise WrongPhase(f"{_name(key)} is not asked of {site}; its task now: {current}")


def check_computing(state: State) -> None:
    """:class:`WrongPhase` unless a result is being computed: a round has one result."""
    if state.stage is not Stage.COMPUTING:
        raise WrongPhase(f"nothing is being computed in stage {state.stage}")


# What events do


def _joined(rules: Rules, state: State, site: str) -> State:
    check_on_roster(rules, site)
    check_may_join(state, site)
    return replace(_back(state, site), joined=state.joined | {site})


def _back(state: State, site: str) -> State:
    return replace(state, absent=state.absent - {site})


def _answered(rules: Rules, state: State, site: str, key: PhaseKey) -> State:
    check_joined(rules, state, site)
    state = _back(state, site)
    if key in _answered_keys(state, site):
        return state
    check_expected(rules, state, site, key)
    match key.phase:
        case Phase.ROSTER:
            return replace(state, verified=state.verified | {site})
        case Phase.SECRET:
            return replace(state, keyed=state.keyed | {site})
        case _:
            return replace(state, answered=state.answered | {site})


def _answered_keys(state: State, site: str) -> set[PhaseKey | None]:
    """What the site is known to have answered, of the set-up and the current attempt."""
    steps = (
        (state.roster_key, site in state.verified),
        (state.secret_key, site in state.keyed),
        (state.presence_key, site in state.participants),
        (state.values_key, site in state.participants and state.stage in (Stage.COMPUTING, Stage.RESULT)),
        (state.asked_key, site in state.answered),
    )
    return {key for key, answered in steps if answered}


def _left(state: State, site: str) -> State:
    absent = state.absent | ({site} & set(state.members))
    return replace(state, joined=state.joined - {site}, absent=absent)


def _computed(rules: Rules, state: State, now: float) -> State:
    check_computing(state)
    return _enter(rules, state, Stage.RESULT, now)


def _resumed(rules: Rules, state: State, now: float) -> State:
    if state.stage is Stage.FINISHED:
        return state
    if state.stage is not Stage.STOPPED:
        return replace(state, deadline=now + rules.seconds(state.stage), benched=frozenset())
    # A stopped run is started again by an operator, who wants everyone back: nobody counts as absent.
    state = replace(state, failures=0, absent=frozenset(), benched=frozenset(), reason="")
    if not state.members:
        return _enter(rules, state, Stage.JOINING, now)
    if not state.round:
        return _enter(rules, state, Stage.SETUP, now)
    return _next_attempt(rules, state, now)


# When a stage ends


def _settled(rules: Rules, state: State, now: float) -> State:
    match state.stage:
        case Stage.JOINING:
            settled = _settled_joining
        case Stage.SETUP:
            settled = _settled_setup
        case Stage.PRESENCE:
            settled = _settled_presence
        case Stage.VALUES:
            settled = _settled_values
        case Stage.COMPUTING:
            settled = _settled_computing
        case Stage.RESULT:
            settled = _settled_result
        case _:
            return state
    return settled(rules, state, now, late=now >= state.deadline)


def _settled_joining(rules: Rules, state: State, now: float, *, late: bool) -> State:
    missing = set(rules.roster) - state.joined
    if missing and not late:
        return state
    if len(state.joined) < rules.min_sites:
        count = f"{len(state.joined)} of at least {rules.min_sites} sites"
        return _stopped(state, f"{count} joined in time; missing: {_list(missing)}")
    return _enter(rules, replace(state, members=tuple(sorted(state.joined))), Stage.SETUP, now)


def _settled_setup(rules: Rules, state: State, now: float, *, late: bool) -> State:
    ready = ready_sites(rules, state)
    missing = set(state.members) - ready
    enough = len(ready) >= rules.min_sites
    if enough and (late or missing <= state.absent):
        state = replace(state, round=1, attempt=1, failures=0, absent=state.absent | missing, reason="")
        return _enter(rules, state, Stage.PRESENCE, now)
    if not late:
        return state
    if rules.needs_secret and state.maker not in state.verified:
        return _next_maker(rules, state, now)
    count = f"{len(ready)} of at least {rules.min_sites} sites"
    return _stopped(state, f"{count} finished the set-up in time; missing: {_list(missing)}")


def _next_maker(rules: Rules, state: State, now: float) -> State:
    """Set up again without the maker and those after it that were as silent: the next one must be there."""
    members = tuple(dropwhile(lambda site: site not in state.verified, state.members))
    why = f"{state.maker} did not make the group's keys in time"
    failures = state.failures + 1
    if len(members) < rules.min_sites or failures >= rules.max_attempts:
        return _stopped(replace(state, failures=failures), why)
    state = replace(
        state,
        members=members,
        joined=state.joined & set(members),
        verified=frozenset(),
        keyed=frozenset(),
        absent=state.absent & set(members),
        setup_attempt=state.setup_attempt + 1,
        failures=failures,
        reason=why,
    )
    return _enter(rules, state, Stage.SETUP, now)


def _settled_presence(rules: Rules, state: State, now: float, *, late: bool) -> State:
    present = state.answered - state.absent
    missing = asked_sites(rules, state) - present
    if not late and not missing <= state.absent:
        return state
    if len(present) >= rules.min_sites:
        state = replace(state, participants=tuple(sorted(present)), absent=state.absent | missing)
        return _enter(rules, state, Stage.VALUES, now)
    # Too few are there. Absent sites have until the deadline to come back: an attempt is not given up before.
    if not late:
        return state
    # Without the benched there are too few, so they get another chance.
    state = replace(state, absent=state.absent | missing, benched=frozenset())
    return _failed(rules, state, f"no presence from {_list(missing)}", now)


def _settled_values(rules: Rules, state: State, now: float, *, late: bool) -> State:
    missing = set(state.participants) - state.answered
    if not missing:
        return _enter(rules, state, Stage.COMPUTING, now)
    if late:
        return _failed(rules, state, f"no values from {_list(missing)}", now, lost=missing)
    gone = missing & state.absent
    return _failed(rules, state, f"{_list(gone)} left", now, lost=gone) if gone else state


def _settled_computing(rules: Rules, state: State, now: float, *, late: bool) -> State:
    """A result that comes after this is of no attempt any more: it must not be taken for a later one's."""
    return _failed(rules, state, "the aggregation took too long", now) if late else state


def _settled_result(rules: Rules, state: State, now: float, *, late: bool) -> State:
    missing = set(state.participants) - state.answered
    if not late and not missing <= state.absent:
        return state
    state = replace(state, failures=0, absent=state.absent | missing, benched=frozenset(), reason="")
    if state.round >= rules.rounds:
        return replace(state, stage=Stage.FINISHED)
    state = replace(state, round=state.round + 1, attempt=1, participants=())
    return _enter(rules, state, Stage.PRESENCE, now)


def _failed(rules: Rules, state: State, why: str, now: float, lost: Set[str] = frozenset()) -> State:
    """Give the attempt up, which ``lost`` cost it. Repeat the round, or stop it.

    An attempt that only taught us whom to leave out counts for nothing: there are as many of these as sites.
    """
    benched = _benched(rules, state, lost)
    failures = state.failures + (0 if benched > state.benched else 1)
    why = f"round {state.round}, attempt {state.attempt}: {why}"
    state = replace(
        state,
        failures=failures,
        participants=(),
        absent=state.absent | lost,
        benched=benched,
        reason=why,
    )
    return _stopped(state, why) if failures >= rules.max_attempts else _next_attempt(rules, state, now)


def _benched(rules: Rules, state: State, lost: Set[str]) -> frozenset[str]:
    """Who is not asked again in this round: nobody, if that left too few to ask."""
    benched = state.benched | lost
    return benched if len(ready_sites(rules, state) - benched) >= rules.min_sites else frozenset()


def _next_attempt(rules: Rules, state: State, now: float) -> State:
    return _enter(rules, replace(state, attempt=state.attempt + 1), Stage.PRESENCE, now)


def _enter(rules: Rules, state: State, stage: Stage, now: float) -> State:
    return replace(state, stage=stage, answered=frozenset(), deadline=now + rules.seconds(stage))


def _stopped(state: State, reason: str) -> State:
    return replace(state, stage=Stage.STOPPED, reason=reason)


def _within_full_time(rules: Rules, state: State, now: float) -> State:
    """A clock that was set back must not make a deadline recede beyond the stage's full time."""
    if state.over:
        return state
    return replace(state, deadline=min(state.deadline, now + rules.seconds(state.stage)))


# Words for people


def _name(key: PhaseKey) -> str:
    return f"{key.phase.name} of round {key.round}, attempt {key.attempt}, run {key.run}"


def _list(sites: Iterable[str]) -> str:
    return ", ".join(sorted(sites)) or "none"
