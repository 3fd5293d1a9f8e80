"""Transitions of the round machine: when a stage ends, and what follows. This half of the machine reads the clock."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from itertools import dropwhile
from typing import Protocol

from protoseal_wire.messages import Phase
from secure_server.rounds.rules import Rules
from secure_server.rounds.state import (
    PHASE_OF_STAGE,
    REPLANNING_STEP,
    STAGE_OF_PHASE,
    SUM_OPENING_STEPS,
    Quorum,
    RoundStage,
    State,
    Survivors,
)
from secure_server.rounds.task_assignment import presence_sites, ready_sites, sites_of_able_groups

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
    # Stages without an entry (FINISHED, STOPPED) end by no deadline.
    settle = _SETTLE.get(state.stage)
    return state if settle is None else settle(rules, state, now, late=now >= state.deadline)


def stop_if_empty(rules: Rules, state: State, now: float) -> State:
    """Stop a run that waits for members who are all gone, once none came back in time."""
    waits = state.stage in (RoundStage.SETUP, RoundStage.PRESENCE) and state.is_empty
    if not waits or math.isinf(rules.empty_seconds):
        return replace(state, empty_until=None)
    until = now + rules.empty_seconds  # a clock set back must not postpone the end: the earlier time counts
    if state.empty_until is not None:
        until = min(until, state.empty_until)
    if now < until:
        return replace(state, empty_until=until)
    where = f"round {state.round}" if state.setup_complete else "the set-up"
    why = f"{where}: every site left or fell silent, and none returned within {rules.empty_seconds:.0f} s"
    return _stop(replace(state, empty_until=None), why)


# Before the rounds


def _settle_joining(rules: Rules, state: State, now: float, *, late: bool) -> State:
    missing = set(rules.roster) - state.joined
    if missing and not late:
        return state
    # Too few sites stop the run instead of beginning it: each site would refuse the roster.
    if len(state.joined) < rules.min_sites:
        count = f"{len(state.joined)} of at least {rules.min_sites} sites"
        return _stop(state, f"{count} joined in time; missing: {_list(missing)}")
    return enter(rules, replace(state, members=tuple(sorted(state.joined))), RoundStage.SETUP, now)


def _settle_setup(rules: Rules, state: State, now: float, *, late: bool) -> State:
    # Every member must verify the same roster, so one more member means another attempt of the whole set-up.
    if newcomers := state.joined - state.absent - set(state.members):
        return _repeat_setup(rules, state, set(state.members) | newcomers, now)
    ready = ready_sites(rules, state)
    missing = set(state.members) - ready
    enough = len(ready) >= rules.min_sites
    # Late members stay members: they catch up on the set-up in any later stage.
    if enough and (late or missing <= state.absent):
        state = replace(state, failures=0, absent=state.absent | missing, reason="")
        groups = (state.members,) if rules.common_group else ()
        state = replace(state, setup_complete=True, round=rules.first_round, attempt=1, groups=groups)
        return enter(rules, state, RoundStage.PRESENCE, now)
    if not late:
        return state
    if rules.needs_secret and state.maker not in state.verified:
        return _replace_maker(rules, state, now)
    count = f"{len(ready)} of at least {rules.min_sites} sites"
    return _stop(state, f"{count} finished the set-up in time; missing: {_list(missing)}")


def _replace_maker(rules: Rules, state: State, now: float) -> State:
    """Repeat the set-up without the maker and the sites after it that were as silent, so the next maker is present."""
    members = set(dropwhile(lambda site: site not in state.verified, state.members))
    why = f"{state.maker} did not make the group's keys in time"
    failures = state.failures + 1
    if len(members) < rules.min_sites or failures >= rules.max_attempts:
        return _stop(replace(state, failures=failures), why)
    # A left-out maker is slow, not gone: a call of its process takes it back while the set-up accepts members.
    state = replace(state, absent=state.absent | (state.joined - members), failures=failures, reason=why)
    return _repeat_setup(rules, state, members, now)


def _repeat_setup(rules: Rules, state: State, members: Set[str], now: float) -> State:
    """Begin another attempt of the set-up with other members, each of which verifies another roster."""
    state = replace(
        state,
        members=tuple(sorted(members)),
        verified=frozenset(),
        key_holders=frozenset(),
        absent=state.absent & (members | state.joined),
        setup_attempt=state.setup_attempt + 1,
    )
    return enter(rules, state, RoundStage.SETUP, now)


# Rounds


def _settle_presence(rules: Rules, state: State, now: float, *, late: bool) -> State:
    asked, present = presence_sites(rules, state), state.answered - state.absent - state.left
    missing = asked - present
    if not late and not missing <= state.absent:
        return state
    able = sites_of_able_groups(rules, state, present)
    if len(able) >= rules.min_sites:
        state = replace(state, participants=tuple(sorted(able)), absent=state.absent | missing)
        return enter(rules, state, RoundStage.PLANNING, now) if state.groups else next_step(rules, state, now)
    # Too few sites are present. Absent sites may return until the deadline, so the attempt fails before then only
    # if it needs sites that left it and that another attempt would have.
    enough_next = _would_suffice(rules, state, present | (state.left - state.absent))
    if not late and (not enough_next or _would_suffice(rules, state, asked)):
        return state
    state = replace(state, absent=state.absent | missing)
    missing |= state.left
    if not enough_next and _would_suffice(rules, _forget_commitments(state), present):
        # No further attempt of this round would have more sites: sites that sent values hold the others up.
        why = f"too few of the sites that were asked for values before are present; missing: {_list(missing)}"
        return _abandon_round(rules, _give_attempt_up(state, why), now)
    # Without the benched sites too few would be left, so benched sites get another chance.
    state = replace(state, benched=frozenset())
    why = f"no presence from {_list(missing)}" if missing else "no group has enough members present"
    return fail_attempt(rules, state, why, now)


def next_step(rules: Rules, state: State, now: float) -> State:
    """Ask for the first step that is not over, given settled participants and quorums."""
    over = {step.phase for step in state.survivors}
    remaining = [phase for phase in rules.steps(state.round) if phase not in over]
    return enter(rules, state, STAGE_OF_PHASE[remaining[0]] if remaining else RoundStage.COMPUTING, now)


def _settle_step(rules: Rules, state: State, now: float, *, late: bool) -> State:
    missing = set(state.step_sites) - state.answered
    awaited = set() if late else missing - state.absent - state.left
    # A quorum fails as soon as it cannot be met any more, so that a site that left costs no full deadline.
    unmet = [quorum for quorum in _step_quorums(state) if not quorum.met_by(state.answered | awaited)]
    if unmet:
        # Only quorums that fail count: missing members of a group whose quorum holds cost nothing.
        lost = frozenset().union(*(quorum.sites for quorum in unmet)) & (missing - awaited)
        return fail_attempt(
            rules, state, _describe_lost(PHASE_OF_STAGE[state.stage], lost, late), now, lost=lost
        )
    return state if awaited else _end_step(rules, state, missing, now)


def _step_quorums(state: State) -> tuple[Quorum, ...]:
    """Return the quorums of the current step: everyone, unless the step has its own."""
    phase = PHASE_OF_STAGE[state.stage]
    quorums = tuple(quorum for quorum in state.quorums if quorum.phase is phase)
    return quorums or (Quorum(phase, frozenset(state.step_sites), len(state.step_sites)),)


def _describe_lost(phase: Phase, lost: Iterable[str], late: bool) -> str:
    return f"no {_ANSWERS[phase]} from {_list(lost)}" if late else f"{_list(lost)} left"


def _end_step(rules: Rules, state: State, missing: Set[str], now: float) -> State:
    phase = PHASE_OF_STAGE[state.stage]
    done = Survivors(phase, tuple(sorted(state.answered)))
    state = replace(state, survivors=(*state.survivors, done), absent=state.absent | missing)
    if phase is REPLANNING_STEP:  # quorums of the later steps count only sites whose directions came
        return enter(rules, state, RoundStage.PLANNING, now)
    return next_step(rules, state, now)


def _settle_computing(rules: Rules, state: State, now: float, *, late: bool) -> State:
    """Begin another attempt if the computation is late; a result that comes afterwards belongs to no attempt."""
    return fail_attempt(rules, state, "the aggregation took too long", now) if late else state


def _settle_result(rules: Rules, state: State, now: float, *, late: bool) -> State:
    missing = set(state.step_sites) - state.answered
    if not late and not missing <= state.absent:
        return state
    # A site without the result does not cost the round: it gets the content with its next PRESENCE.
    state = replace(state, failures=0, absent=state.absent | missing, benched=frozenset(), reason="")
    return next_round(rules, state, now)


class _Settle(Protocol):
    """Transition out of a stage; ``late`` says that the stage's time is over."""

    def __call__(self, rules: Rules, state: State, now: float, /, *, late: bool) -> State: ...


_SETTLE: Mapping[RoundStage, _Settle] = {
    RoundStage.JOINING: _settle_joining,
    RoundStage.SETUP: _settle_setup,
    RoundStage.PRESENCE: _settle_presence,
    RoundStage.PLANNING: _settle_computing,
    RoundStage.DIRECTIONS: _settle_step,
    RoundStage.SHARES: _settle_step,
    RoundStage.VALUES: _settle_step,
    RoundStage.SURVIVORS: _settle_step,
    RoundStage.UNMASK: _settle_step,
    RoundStage.MEANS: _settle_step,
    RoundStage.COMPUTING: _settle_computing,
    RoundStage.RESULT: _settle_result,
}


# Ends of attempts and rounds


def fail_attempt(rules: Rules, state: State, why: str, now: float, lost: Set[str] = frozenset()) -> State:
    """Give the attempt up because of ``lost``: repeat the round, abandon it, or stop the run."""
    given_up = _give_attempt_up(replace(state, absent=state.absent | lost), why)
    # Once a sum may be known, a sum over other survivors of the same values must not be: the two differ by the values
    # of single sites.
    if _sum_may_be_open(rules, state) or _survivors_are_final(rules, state):
        return _abandon_round(rules, given_up, now, lost)
    return _repeat_round(rules, given_up, now, lost)


def _give_attempt_up(state: State, why: str) -> State:
    return replace(_clear_attempt(state), reason=f"round {state.round}, attempt {state.attempt}: {why}")


def _sum_may_be_open(rules: Rules, state: State) -> bool:
    """Return True if sites may have released shares in this attempt, or read their group's sum.

    Sites that released shares refuse any other attempt of the round. For encrypted sums the sites cannot know.
    """
    computing = state.stage is RoundStage.COMPUTING and bool(
        set(SUM_OPENING_STEPS) & set(rules.steps(state.round))
    )
    return PHASE_OF_STAGE.get(state.stage) in SUM_OPENING_STEPS or computing


def _survivors_are_final(rules: Rules, state: State) -> bool:
    """Return True if sites of a large group may have signed survivors: a sparse graph then allows no other attempt.

    Where a large group's graph is complete all the same, the round is over sooner than necessary.
    """
    if rules.masking is None or state.stage is not RoundStage.SURVIVORS:
        return False
    participants = set(state.participants)
    return any(len(participants & set(group)) > rules.masking.complete_up_to for group in state.groups)


def _repeat_round(rules: Rules, state: State, now: float, lost: Set[str]) -> State:
    """Repeat the round. An attempt that only identified sites to leave out does not count as a failure.

    There are at most as many such attempts as sites. If values sent earlier in the round keep the others from an
    attempt without ``lost``, these get one more chance; then the others begin the next round, if there is one,
    without them.
    """
    others = ready_sites(rules, state) - state.benched - lost
    had_chance = lost and state.attempt > 1 and state.round < rules.rounds
    commitments_block = not _would_suffice(rules, state, others) and _would_suffice(
        rules, _forget_commitments(state), others
    )
    if had_chance and commitments_block:
        return _abandon_round(rules, state, now, lost)
    # Benching a site is progress, so that one faulty site after another does not use up the attempts of the run.
    benched = _bench(rules, state, lost)
    failures = state.failures + (0 if benched > state.benched else 1)
    state = replace(state, failures=failures, benched=benched)
    if failures >= rules.max_attempts:
        return _stop(state, state.reason)
    return next_attempt(rules, state, now)


def _abandon_round(rules: Rules, state: State, now: float, lost: Set[str] = frozenset()) -> State:
    """Begin the next round without a result. Each abandoned round counts as a failure, so that the run ends."""
    why = f"{state.reason}; the round is abandoned, without a result"
    # Benched sites count for the next round, to which no site is committed yet.
    benched = _bench(rules, replace(_forget_commitments(state), benched=frozenset()), lost)
    failures = state.failures + 1
    state = next_round(rules, replace(state, failures=failures, benched=benched, reason=why), now)
    return _stop(state, why) if failures >= rules.max_attempts and not state.over else state


def _bench(rules: Rules, state: State, lost: Set[str]) -> frozenset[str]:
    """Return the sites that are not asked again in this round: none, if too few would be left."""
    benched = state.benched | lost
    return benched if _would_suffice(rules, state, ready_sites(rules, state) - benched) else frozenset()


def _would_suffice(rules: Rules, state: State, sites: Set[str]) -> bool:
    """Return True if an attempt could continue with these sites alone."""
    return len(sites_of_able_groups(rules, state, sites)) >= rules.min_sites


def _forget_commitments(state: State) -> State:
    return replace(state, unmask_commitments=())


def next_attempt(rules: Rules, state: State, now: float) -> State:
    """Begin the same round once more."""
    return enter(rules, replace(state, attempt=state.attempt + 1, left=frozenset()), RoundStage.PRESENCE, now)


def next_round(rules: Rules, state: State, now: float) -> State:
    """Begin the next round, or end the run: a run in which no round had a result has not finished."""
    if state.round >= rules.rounds and state.last_result:
        return replace(state, stage=RoundStage.FINISHED)
    state = replace(_clear_attempt(_forget_commitments(state)), round=state.round + 1, attempt=1)
    # One round past the last marks a run that is over for good: ``Resumed`` leaves it as it is.
    if state.round > rules.rounds:
        return _stop(state, f"no round of the run had a result; the last failure: {state.reason}")
    return enter(rules, state, RoundStage.PRESENCE, now)


def enter(rules: Rules, state: State, stage: RoundStage, now: float) -> State:
    """Begin a stage, with its full time."""
    # The state that names these sites is stored before the first request for values leaves: a site may answer, and the
    # coordinator be killed before it has stored the answer.
    if stage is RoundStage.VALUES:
        state = _commit_asked_sites(state)
    return replace(state, stage=stage, answered=frozenset(), deadline=now + rules.seconds(stage))


def _commit_asked_sites(state: State) -> State:
    """Record the sites asked for values under masks, and how many of them can open the sum."""
    earlier = state.unmask_commitments
    new = (quorum for quorum in state.quorums if quorum.phase is Phase.UNMASK and quorum not in earlier)
    return replace(state, unmask_commitments=(*earlier, *new))


def cap_deadline(rules: Rules, state: State, now: float) -> State:
    """Return a deadline within the stage's full time, so that a clock that was set back cannot postpone it further."""
    if state.over:
        return state
    return replace(state, deadline=min(state.deadline, now + rules.seconds(state.stage)))


def _clear_attempt(state: State) -> State:
    """Return the state without an attempt."""
    return replace(
        state, participants=(), left=frozenset(), quorums=(), survivors=(), excluded_from_result=()
    )


def _stop(state: State, reason: str) -> State:
    return replace(state, stage=RoundStage.STOPPED, reason=reason)


def _list(sites: Iterable[str]) -> str:
    return ", ".join(sorted(sites)) or "none"
