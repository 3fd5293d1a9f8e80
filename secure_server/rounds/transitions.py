"""Transitions of the round machine: when a stage ends, and what follows. This half of the machine reads the clock."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from itertools import dropwhile
from typing import Protocol

from protoseal_wire.messages import Phase
from secure_server.rounds.state import (
    PHASE_OF_STAGE,
    REPLANNING_STEP,
    STAGE_OF_PHASE,
    SUM_OPENING_STEPS,
    Quorum,
    Rules,
    Stage,
    State,
    Survivors,
)
from secure_server.rounds.task_assignment import able_sites, asked_sites, ready_sites

_ANSWERS: Mapping[Phase, str] = {
    Phase.DIRECTIONS: "directions",
    Phase.SHARES: "shares",
    Phase.VALUES: "values",
    Phase.SURVIVORS: "survivor signatures",
    Phase.UNMASK: "released shares",
    Phase.MEANS: "means of its group",
}
"""Name of a step's answer in the reason of a failure."""


def apply_due_transitions(rules: Rules, state: State, now: float) -> State:
    """Return the state after all due transitions; the same object if nothing is due."""
    settle = _SETTLED.get(state.stage)
    return state if settle is None else settle(rules, state, now, late=now >= state.deadline)


def stop_if_empty(rules: Rules, state: State, now: float) -> State:
    """Stop a run that waits for members who are all gone, once none came back in time."""
    waits = state.stage in (Stage.SETUP, Stage.PRESENCE) and state.is_empty
    if not waits or math.isinf(rules.empty_seconds):
        return replace(state, empty_until=None)
    until = now + rules.empty_seconds
    if state.empty_until is not None:
        until = min(until, state.empty_until)
    if now < until:
        return replace(state, empty_until=until)
    where = f"round {state.round}" if state.begun else "the set-up"
    why = f"{where}: every site left or fell silent, and none returned within {rules.empty_seconds:.0f} s"
    return _stopped(replace(state, empty_until=None), why)


# Before the rounds


def _settled_joining(rules: Rules, state: State, now: float, *, late: bool) -> State:
    missing = set(rules.roster) - state.joined
    if missing and not late:
        return state
    if len(state.joined) < rules.min_sites:
        count = f"{len(state.joined)} of at least {rules.min_sites} sites"
        return _stopped(state, f"{count} joined in time; missing: {_list(missing)}")
    return enter(rules, replace(state, members=tuple(sorted(state.joined))), Stage.SETUP, now)


def _settled_setup(rules: Rules, state: State, now: float, *, late: bool) -> State:
    if newcomers := state.joined - state.absent - set(state.members):
        return _set_up_again(rules, state, set(state.members) | newcomers, now)
    ready = ready_sites(rules, state)
    missing = set(state.members) - ready
    enough = len(ready) >= rules.min_sites
    if enough and (late or missing <= state.absent):
        state = replace(state, failures=0, absent=state.absent | missing, reason="")
        groups = (state.members,) if rules.common_group else ()
        state = replace(state, begun=True, round=rules.first_round, attempt=1, groups=groups)
        return enter(rules, state, Stage.PRESENCE, now)
    if not late:
        return state
    if rules.needs_secret and state.maker not in state.verified:
        return _next_maker(rules, state, now)
    count = f"{len(ready)} of at least {rules.min_sites} sites"
    return _stopped(state, f"{count} finished the set-up in time; missing: {_list(missing)}")


def _next_maker(rules: Rules, state: State, now: float) -> State:
    """Repeat the set-up without the maker and the sites after it that were as silent, so the next maker is present."""
    members = set(dropwhile(lambda site: site not in state.verified, state.members))
    why = f"{state.maker} did not make the group's keys in time"
    failures = state.failures + 1
    if len(members) < rules.min_sites or failures >= rules.max_attempts:
        return _stopped(replace(state, failures=failures), why)
    # A left-out maker is slow, not gone: a call of its process takes it back while the set-up accepts members.
    state = replace(state, absent=state.absent | (state.joined - members), failures=failures, reason=why)
    return _set_up_again(rules, state, members, now)


def _set_up_again(rules: Rules, state: State, members: Set[str], now: float) -> State:
    """Begin another attempt of the set-up with other members, each of which verifies another roster."""
    state = replace(
        state,
        members=tuple(sorted(members)),
        verified=frozenset(),
        keyed=frozenset(),
        absent=state.absent & (members | state.joined),
        setup_attempt=state.setup_attempt + 1,
    )
    return enter(rules, state, Stage.SETUP, now)


# Rounds


def _settled_presence(rules: Rules, state: State, now: float, *, late: bool) -> State:
    asked, present = asked_sites(rules, state), state.answered - state.absent - state.left
    missing = asked - present
    if not late and not missing <= state.absent:
        return state
    able = able_sites(rules, state, present)
    if len(able) >= rules.min_sites:
        state = replace(state, participants=tuple(sorted(able)), absent=state.absent | missing)
        return enter(rules, state, Stage.PLANNING, now) if state.groups else next_step(rules, state, now)
    # Too few sites are present. Absent sites may return until the deadline, so the attempt fails before then only
    # if it needs sites that left it and that another attempt would have.
    enough_next = _suffice(rules, state, present | (state.left - state.absent))
    if not late and (not enough_next or _suffice(rules, state, asked)):
        return state
    state = replace(state, absent=state.absent | missing)
    missing |= state.left
    if not enough_next and _suffice(rules, _uncommitted(state), present):
        # No further attempt of this round would have more sites: sites that sent values hold the others up.
        why = f"too few of the sites that were asked for values before are present; missing: {_list(missing)}"
        return _abandoned(rules, _given_up(state, why), now)
    # Without the benched sites too few would be left, so benched sites get another chance.
    state = replace(state, benched=frozenset())
    why = f"no presence from {_list(missing)}" if missing else "no group has enough members present"
    return fail_attempt(rules, state, why, now)


def next_step(rules: Rules, state: State, now: float) -> State:
    """Ask for the first step that is not over, given settled participants and quorums."""
    over = {each.phase for each in state.survivors}
    left = [phase for phase in rules.steps(state.round) if phase not in over]
    return enter(rules, state, STAGE_OF_PHASE[left[0]] if left else Stage.COMPUTING, now)


def _settled_step(rules: Rules, state: State, now: float, *, late: bool) -> State:
    missing = set(state.asked) - state.answered
    awaited = set() if late else missing - state.absent - state.left
    unmet = [quorum for quorum in _quorums(state) if not quorum.met_by(state.answered | awaited)]
    if unmet:
        # Only quorums that fail count: missing members of a group whose quorum holds cost nothing.
        lost = frozenset().union(*(quorum.sites for quorum in unmet)) & (missing - awaited)
        return fail_attempt(rules, state, _without(PHASE_OF_STAGE[state.stage], lost, late), now, lost=lost)
    return state if awaited else _step_over(rules, state, missing, now)


def _quorums(state: State) -> tuple[Quorum, ...]:
    """Return the quorums of the current step: everyone, unless the step has its own."""
    phase = PHASE_OF_STAGE[state.stage]
    own = tuple(quorum for quorum in state.quorums if quorum.phase is phase)
    return own or (Quorum(phase, frozenset(state.asked), len(state.asked)),)


def _without(phase: Phase, lost: Iterable[str], late: bool) -> str:
    return f"no {_ANSWERS[phase]} from {_list(lost)}" if late else f"{_list(lost)} left"


def _step_over(rules: Rules, state: State, missing: Set[str], now: float) -> State:
    phase = PHASE_OF_STAGE[state.stage]
    done = Survivors(phase, tuple(sorted(state.answered)))
    state = replace(state, survivors=(*state.survivors, done), absent=state.absent | missing)
    if phase is REPLANNING_STEP:
        return enter(rules, state, Stage.PLANNING, now)
    return next_step(rules, state, now)


def _settled_computing(rules: Rules, state: State, now: float, *, late: bool) -> State:
    """Begin another attempt if the computation is late; a result that comes afterwards belongs to no attempt."""
    return fail_attempt(rules, state, "the aggregation took too long", now) if late else state


def _settled_result(rules: Rules, state: State, now: float, *, late: bool) -> State:
    missing = set(state.asked) - state.answered
    if not late and not missing <= state.absent:
        return state
    state = replace(state, failures=0, absent=state.absent | missing, benched=frozenset(), reason="")
    return next_round(rules, state, now)


class _Settled(Protocol):
    """Transition out of a stage; ``late`` says that the stage's time is over."""

    def __call__(self, rules: Rules, state: State, now: float, /, *, late: bool) -> State: ...


_SETTLED: Mapping[Stage, _Settled] = {
    Stage.JOINING: _settled_joining,
    Stage.SETUP: _settled_setup,
    Stage.PRESENCE: _settled_presence,
    Stage.PLANNING: _settled_computing,
    Stage.DIRECTIONS: _settled_step,
    Stage.SHARES: _settled_step,
    Stage.VALUES: _settled_step,
    Stage.SURVIVORS: _settled_step,
    Stage.UNMASK: _settled_step,
    Stage.MEANS: _settled_step,
    Stage.COMPUTING: _settled_computing,
    Stage.RESULT: _settled_result,
}


# Ends of attempts and rounds


def fail_attempt(rules: Rules, state: State, why: str, now: float, lost: Set[str] = frozenset()) -> State:
    """Give the attempt up because of ``lost``: repeat the round, abandon it, or stop the run."""
    given_up = _given_up(replace(state, absent=state.absent | lost), why)
    if _sum_may_be_open(rules, state) or _signed_for_good(rules, state):
        return _abandoned(rules, given_up, now, lost)
    return _repeated(rules, given_up, now, lost)


def _given_up(state: State, why: str) -> State:
    return replace(_cleared(state), reason=f"round {state.round}, attempt {state.attempt}: {why}")


def _sum_may_be_open(rules: Rules, state: State) -> bool:
    """Return True if sites may have released shares in this attempt, or read their group's sum.

    Sites that released shares refuse any other attempt of the round. For encrypted sums the sites cannot know.
    """
    computing = state.stage is Stage.COMPUTING and bool(
        set(SUM_OPENING_STEPS) & set(rules.steps(state.round))
    )
    return PHASE_OF_STAGE.get(state.stage) in SUM_OPENING_STEPS or computing


def _signed_for_good(rules: Rules, state: State) -> bool:
    """Return True if sites of a large group may have signed survivors: a sparse graph then allows no other attempt.

    Where a large group's graph is complete all the same, the round is over sooner than necessary.
    """
    if rules.masking is None or state.stage is not Stage.SURVIVORS:
        return False
    most, there = rules.masking.complete_up_to, set(state.participants)
    return any(len(there & set(group)) > most for group in state.groups)


def _repeated(rules: Rules, state: State, now: float, lost: Set[str]) -> State:
    """Repeat the round. An attempt that only identified sites to leave out does not count as a failure.

    There are at most as many such attempts as sites. If values sent earlier in the round keep the others from an
    attempt without ``lost``, these get one more chance; then the others begin the next round, if there is one,
    without them.
    """
    left = ready_sites(rules, state) - state.benched - lost
    had_chance = lost and state.attempt > 1 and state.round < rules.rounds
    if had_chance and not _suffice(rules, state, left) and _suffice(rules, _uncommitted(state), left):
        return _abandoned(rules, state, now, lost)
    benched = _benched(rules, state, lost)
    failures = state.failures + (0 if benched > state.benched else 1)
    state = replace(state, failures=failures, benched=benched)
    if failures >= rules.max_attempts:
        return _stopped(state, state.reason)
    return next_attempt(rules, state, now)


def _abandoned(rules: Rules, state: State, now: float, lost: Set[str] = frozenset()) -> State:
    """Begin the next round without a result. Each abandoned round counts as a failure, so that the run ends."""
    why = f"{state.reason}; the round is abandoned, without a result"
    # Benched sites count for the next round, to which no site is committed yet.
    benched = _benched(rules, replace(_uncommitted(state), benched=frozenset()), lost)
    failures = state.failures + 1
    state = next_round(rules, replace(state, failures=failures, benched=benched, reason=why), now)
    return _stopped(state, why) if failures >= rules.max_attempts and not state.over else state


def _benched(rules: Rules, state: State, lost: Set[str]) -> frozenset[str]:
    """Return the sites that are not asked again in this round: none, if too few would be left."""
    benched = state.benched | lost
    return benched if _suffice(rules, state, ready_sites(rules, state) - benched) else frozenset()


def _suffice(rules: Rules, state: State, sites: Set[str]) -> bool:
    """Return True if an attempt could continue with these sites alone."""
    return len(able_sites(rules, state, sites)) >= rules.min_sites


def _uncommitted(state: State) -> State:
    return replace(state, committed=())


def next_attempt(rules: Rules, state: State, now: float) -> State:
    """Begin the same round once more."""
    return enter(rules, replace(state, attempt=state.attempt + 1, left=frozenset()), Stage.PRESENCE, now)


def next_round(rules: Rules, state: State, now: float) -> State:
    """Begin the next round, or end the run: a run in which no round had a result has not finished."""
    if state.round >= rules.rounds and state.last_result:
        return replace(state, stage=Stage.FINISHED)
    state = replace(_cleared(_uncommitted(state)), round=state.round + 1, attempt=1)
    if state.round > rules.rounds:
        return _stopped(state, f"no round of the run had a result; the last failure: {state.reason}")
    return enter(rules, state, Stage.PRESENCE, now)


def enter(rules: Rules, state: State, stage: Stage, now: float) -> State:
    """Begin a stage, with its full time."""
    if stage is Stage.VALUES:
        state = _committed(state)
    return replace(state, stage=stage, answered=frozenset(), deadline=now + rules.seconds(stage))


def _committed(state: State) -> State:
    """Record the sites asked for values under masks, and how many of them can open the sum."""
    asked = (quorum for quorum in state.quorums if quorum.phase is Phase.UNMASK)
    return replace(
        state, committed=(*state.committed, *(each for each in asked if each not in state.committed))
    )


def within_full_time(rules: Rules, state: State, now: float) -> State:
    """Return a deadline within the stage's full time, so that a clock that was set back cannot postpone it further."""
    if state.over:
        return state
    return replace(state, deadline=min(state.deadline, now + rules.seconds(state.stage)))


def _cleared(state: State) -> State:
    """Return the state without an attempt."""
    return replace(state, participants=(), left=frozenset(), quorums=(), survivors=(), without=())


def _stopped(state: State, reason: str) -> State:
    return replace(state, stage=Stage.STOPPED, reason=reason)


def _list(sites: Iterable[str]) -> str:
    return ", ".join(sorted(sites)) or "none"
