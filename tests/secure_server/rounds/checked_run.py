"""The round machine under a ledger: rules at random, one event after the other, and what must hold after each.

The checks rest on a ledger of this module's own, not on what the machine says of itself. Rules are of each kind:
one step or many in a round, with a clustering before or without. What the coordinator puts in of its own, plans and
groups, is chosen here once for each attempt, because it is a function of what is stored.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from agreement.registry.round_plan import CLUSTERED_SUM, ENCRYPTED_CLUSTERS, ENCRYPTED_GROUPS, MASKED_SUM
from protoseal_wire.messages import Phase, PhaseKey
from secure_server.errors import CoordinatorError
from secure_server.rounds import machine
from secure_server.rounds.machine import (
    Answered,
    Computed,
    ComputeFailed,
    Event,
    Left,
    Planned,
    Resumed,
    Tick,
)
from secure_server.rounds.rules import Rules
from secure_server.rounds.state import REPLANNING_STEP, STEPS, Groups, Quorum, RoundStage, State
from secure_server.rounds.task_assignment import ready_sites, task_for

SECONDS: Mapping[Phase, float] = {
    Phase.ROSTER: 10.0,
    Phase.SECRET: 10.0,
    Phase.PRESENCE: 60.0,
    **dict.fromkeys(STEPS, 20.0),
    Phase.RESULT: 20.0,
}
ONE = (Phase.VALUES,)
NEED_EVERYONE = (ONE, ENCRYPTED_CLUSTERS, ENCRYPTED_GROUPS)
"""Steps that nobody may miss."""


def random_rules(rng: random.Random) -> Rules:
    """Rules of a small run: one step in a round, groups with one, or groups, or all in one, with many."""
    sites = rng.randint(3, 7)
    first_round, steps, common = rng.choice(
        (
            *((1, ONE, False), (0, ONE, False), (0, MASKED_SUM, False), (0, MASKED_SUM, False)),
            *((1, MASKED_SUM, True), (0, CLUSTERED_SUM, False), (1, CLUSTERED_SUM, True)),
            *((0, ENCRYPTED_GROUPS, False), (0, ENCRYPTED_GROUPS, False), (1, ENCRYPTED_CLUSTERS, True)),
        )
    )
    return Rules(
        first_round=first_round,
        common_group=common,
        round_steps=steps,
        min_group_size=lambda members: 2,
        run="sim",
        roster=tuple(f"s{number}" for number in range(sites)),
        min_sites=rng.randint(2, sites if steps in NEED_EVERYONE else sites // 2 + 1),
        rounds=rng.randint(1, 3),
        max_attempts=rng.randint(1, 4),
        needs_secret=rng.random() < 0.7,
        join_seconds=100.0,
        phase_seconds=SECONDS,
        empty_seconds=rng.choice((math.inf, 10.0)),
    )


class InvariantError(Exception):
    """An invariant does not hold."""


def require(condition: bool, what: str) -> None:
    """:class:`InvariantError` unless the condition holds."""
    if not condition:
        raise InvariantError(what)


def content_of(state: State, key: PhaseKey, site: str) -> object:
    """Return the part of the state from which a request is made, besides the uploads."""
    if key.phase in (Phase.ROSTER, Phase.SECRET):
        return state.members
    if key.phase is Phase.PRESENCE:
        return state.groups
    group = next((group for group in state.groups if site in group), state.members)
    over = [(each.phase, sorted(set(each.sites) & set(group))) for each in state.survivors]
    return state.participants, over


_HELD_UP = (RoundStage.DIRECTIONS, RoundStage.SHARES, RoundStage.VALUES, RoundStage.SURVIVORS)


class CheckedRun:
    """One run at its coordinator: its state, what its store would hold, and what each event may come to."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311 (a test's choices, to be repeated from the seed)
        self.rules = random_rules(self.rng)
        self.now = self.rng.uniform(0.0, 1e9)
        self.state = machine.start(self.rules, self.now)
        self.accepted: set[tuple[PhaseKey, str]] = set()
        self.computed: dict[int, PhaseKey] = {}  # by round
        self.abandoned: set[int] = set()
        self.unmasking: dict[int, int] = {}  # by round: the attempt in which UNMASK or MEANS was asked
        self.listed: dict[
            PhaseKey, set[str]
        ] = {}  # by VALUES asked of masked sums: who was on the active list
        self.without: set[str] = set()  # who gets no result of the last round computed
        self.asked: dict[tuple[PhaseKey, str], object] = {}
        self.plans: dict[tuple[PhaseKey, bool], Planned | ComputeFailed] = {}
        self.groups: Groups = ()
        self.plan_fails = 0.0
        self.seen: Counter[str] = Counter()

    # One event, and what must hold after it

    def do(self, event: Event) -> bool:
        """Return True if the machine took the event. A plan follows at once, or the coordinator is killed before it."""
        before = self.state
        try:
            after = machine.step(self.rules, before, event, self.now)
        except CoordinatorError as error:
            self._check_refusal(before, event, error)
            return False
        if isinstance(event, Answered):
            self._check_answer(before, event)
        if isinstance(event, Computed):
            self._check_computation(before)
        self._check_order(before, after)
        if len(after.survivors) > len(before.survivors):
            self._check_step(before, after)
        self.state = after
        if after.stage in (RoundStage.UNMASK, RoundStage.MEANS):
            self.unmasking.setdefault(after.round, after.attempt)
        if after.stage is RoundStage.VALUES and Phase.UNMASK in self.rules.steps(after.round):
            self.listed.setdefault(after.key(Phase.VALUES), set(after.participants))
        self._check_requests()
        self._note(before, after)
        if after.stage is RoundStage.PLANNING and not isinstance(event, Resumed):
            self.plan() if self.rng.random() < 0.8 else self.restart()
        return True

    def _note(self, before: State, after: State) -> None:
        self.seen[after.stage] += after.stage is not before.stage
        # A failure that benched a site counts for nothing, but is one.
        self.seen["failed attempt"] += after.failures > before.failures or after.benched > before.benched
        self.seen["new maker"] += (
            after.setup_attempt > before.setup_attempt and after.failures > before.failures
        )
        self.seen["taken in"] += bool(before.members and set(after.members) - set(before.members))
        self.seen["left by all"] += before.empty_until is not None and after.stage is RoundStage.STOPPED
        went_on = len(after.survivors) > len(before.survivors)
        self.seen["drop-out"] += went_on and len(after.survivors[-1].sites) < len(before.step_sites)
        if machine.abandons(before, after):
            self.seen["abandoned round"] += 1
            self.seen["abandoned last round"] += before.round == self.rules.rounds
            self.seen["held up"] += before.stage is RoundStage.PRESENCE
            self.seen["no result at all"] += after.round > self.rules.rounds
            self.abandoned.add(before.round)

    def _check_refusal(self, before: State, event: Event, error: CoordinatorError) -> None:
        require(not isinstance(event, Tick | Resumed | Left), f"refused {event}: {error}")
        if isinstance(event, Answered) and event.site in before.joined:
            asked = task_for(self.rules, before, event.site)
            require(event.key != asked, f"refused the answer that was asked for: {error}")

    def _check_answer(self, before: State, event: Answered) -> None:
        answer = (event.key, event.site)
        asked = task_for(self.rules, before, event.site)
        require(event.key == asked or answer in self.accepted, f"took {answer}, which nobody asked for")
        self.accepted.add(answer)

    def _check_computation(self, before: State) -> None:
        """Exact result or none: all that it rests on was given for this very attempt, by enough for each step."""
        require(before.round not in self.computed, f"round {before.round} computed twice")
        require(before.round not in self.abandoned, f"round {before.round} computed and abandoned")
        require(len(before.participants) >= self.rules.min_sites, f"only {before.participants} computed")
        self._check_answered(before.presence_key, set(before.participants))
        over = [each.phase for each in before.survivors]
        require(over == list(self.rules.steps(before.round)), f"computed after {over} alone")
        self.computed[before.round] = before.result_key

    def _check_step(self, before: State, after: State) -> None:
        """A step is over: enough of those who were asked answered it, and they alone are asked the next."""
        phase, asked = after.survivors[-1].phase, set(before.step_sites)
        answered = {site for key, site in self.accepted if key == before.key(phase)}
        require(answered <= asked, f"{phase.name} from sites that had dropped out")
        there = [answered & set(group) for group in after.groups]
        due = {min(group) for group in there if group} if after.stage is RoundStage.MEANS else answered
        require(set(after.step_sites) == due, f"after {phase.name} others are asked than those who answered")
        self._check_quorums(before, phase, asked, answered)

    def _check_answered(self, key: PhaseKey, sites: set[str]) -> None:
        for site in sites:
            require((key, site) in self.accepted, f"went on without {site}'s {key}")

    def _check_quorums(self, state: State, phase: Phase, asked: set[str], answered: set[str]) -> None:
        anew = REPLANNING_STEP in self.rules.steps(state.round) and phase is not REPLANNING_STEP
        plan = self.plans.get((state.presence_key, anew), Planned())
        require(isinstance(plan, Planned), f"{phase.name} was asked, and nothing planned")
        quorums = [quorum for quorum in getattr(plan, "quorums", ()) if quorum.phase is phase]
        if not quorums:
            self._check_answered(state.key(phase), asked)
        for quorum in quorums:
            enough = len(quorum.sites & answered) >= quorum.least
            require(enough, f"went on without a quorum in {phase.name}: {sorted(answered)}")

    def _check_order(self, before: State, after: State) -> None:
        require(
            (after.round, after.attempt) >= (before.round, before.attempt), "a round or attempt went back"
        )
        require(after.setup_attempt >= before.setup_attempt, "the set-up went back")
        require(
            not before.setup_complete or after.members == before.members, "members changed after the set-up"
        )
        require(
            not before.members
            or after.members == before.members
            or after.setup_attempt > before.setup_attempt,
            "members changed within an attempt of the set-up",
        )
        require(
            before.stage is not RoundStage.FINISHED or after.stage is RoundStage.FINISHED,
            "went on after the end",
        )
        if after.stage is RoundStage.FINISHED:
            ended = (
                set(self.computed) | self.abandoned | ({before.round} if self._gives_up(before) else set())
            )
            every = set(range(self.rules.first_round, self.rules.rounds + 1))
            require(ended == every, "finished without each result")
            require(any(self.computed), "finished without any result")
        if after.round > self.rules.rounds:
            require(after.stage is RoundStage.STOPPED, "went on after the last round")
            require(not any(self.computed), "stopped after the last round, and there are results")
        if before.setup_complete and after.round > before.round:
            due = before.round in self.computed or self._gives_up(before)
            require(due, f"left round {before.round} without a result")
        elif after.attempt > before.attempt:
            require(not self._abandons(before), "another attempt after UNMASK or MEANS was asked")
        require(not self.groups or after.groups == self.groups, "the groups changed")
        if not after.over:
            left = after.deadline - self.now
            require(left <= self.rules.seconds(after.stage), "a deadline recedes beyond its phase's time")

    def _gives_up(self, before: State) -> bool:
        return self._abandons(before) or self._held_up(before)

    def _held_up(self, before: State) -> bool:
        """Return True if the sites that are left, by this ledger, form too few groups in which sites sent values.

        That matters when time for PRESENCE is over, or when a further attempt failed for want of answers.
        """
        if before.stage is RoundStage.PRESENCE and self.now >= before.deadline:
            key = before.presence_key
            left = {site for asked, site in self.accepted if asked == key} - before.absent
            in_size = left
        elif before.stage in _HELD_UP and before.attempt > 1:
            key = replace(before.presence_key, attempt=before.attempt + 1)
            able = ready_sites(self.rules, before) - before.benched
            answered = {site for asked, site in self.accepted if asked == before.asked_key}
            left, in_size = set(able) - (set(before.step_sites) - answered), set(able)
        else:
            return False
        least = self.rules.min_group_size(len(before.members))
        sizes = [len(in_size & set(group)) for group in before.groups]
        bound = [left & set(group) for group in before.groups if self._keeps_faith(key, group, left)]
        too_few = sum(len(each) for each in bound if len(each) >= least) < self.rules.min_sites
        return too_few and sum(size for size in sizes if size >= least) >= self.rules.min_sites

    def _keeps_faith(self, key: PhaseKey, group: tuple[str, ...], there: set[str], asker: str = "") -> bool:
        """Return True if an attempt has a quorum of each earlier list of which ``asker``, or any site, sent values."""
        for earlier, listed in self.listed.items():
            counts = not asker or (earlier, asker) in self.accepted
            if earlier.round == key.round and earlier.attempt < key.attempt and counts:
                before = listed & set(group)
                if before and len(before & there) < 2 * len(before) // 3 + 1:
                    return False
        return True

    def _abandons(self, before: State) -> bool:
        """Return True if, by this ledger of requests, the round can only end without a result now."""
        return before.round in self.unmasking and before.round not in self.computed

    def _check_requests(self) -> None:
        """Check that a request under a key never changes, and that only permitted requests are made."""
        for site in self.rules.roster:
            key = task_for(self.rules, self.state, site)
            if key is not None:
                self._check_request(key, site)

    def _check_request(self, key: PhaseKey, site: str) -> None:
        content = content_of(self.state, key, site)
        asked = self.asked.setdefault((key, site), content)
        require(asked == content, f"{key} asks something else than before")
        require((key, site) not in self.accepted, f"{site} is asked {key} again")
        if key.phase not in (Phase.ROSTER, Phase.SECRET):
            unmasked = self.unmasking.get(key.round, key.attempt)
            require(unmasked == key.attempt, f"{key} after UNMASK or MEANS was asked in attempt {unmasked}")
        if key.phase is Phase.SHARES:
            group = next(group for group in self.state.groups if site in group)
            there = set(self.state.participants) & set(group)
            require(self._keeps_faith(key, group, there, site), f"{site} sent values, and must refuse {key}")
        if key.phase is Phase.RESULT:
            require(self.computed.get(key.round) == key, f"{key} was not computed")
            require(site not in self.without, f"there is no {key} for {site}")

    # What the coordinator's process does

    def plan(self) -> None:
        """Let the coordinator settle who continues: the same for the same attempt, whenever it is asked."""
        if self.state.stage is RoundStage.PLANNING:
            key = self.state.presence_key, bool(self.state.survivors)
            if key not in self.plans:
                anew = key[1]
                self.seen["planned anew"] += anew
                fails = anew and self.rng.random() < self.plan_fails
                self.plans[key] = ComputeFailed() if fails else self.random_plan()
            self.do(self.plans[key])

    def random_plan(self) -> Planned:
        """Draw a plan: in rounds of many steps two thirds of each group stay, and one of two holders of something."""
        present = set(self.state.participants)
        groups = [sorted(present & set(group)) for group in self.state.groups]
        staying = [group for group in groups if group]
        least = self.rules.min_group_size(len(self.state.members))
        require(all(len(group) >= least for group in staying), f"too small: {groups}")
        steps = self.rules.round_steps
        if steps in NEED_EVERYONE:
            return Planned()
        quorums = [
            Quorum(phase, frozenset(group), 2 * len(group) // 3 + 1) for group in staying for phase in steps
        ]
        classes = [Quorum(Phase.VALUES, frozenset(self.rng.sample(group, 2)), 1) for group in staying]
        return Planned((*quorums, *classes))

    def random_groups(self) -> Groups:
        """Return the members in one group, or in two of two or more."""
        members = list(self.state.members)
        if len(members) < 4 or self.rng.random() < 0.5:
            return (tuple(members),)
        self.rng.shuffle(members)
        cut = self.rng.randint(2, len(members) - 2)
        return tuple(sorted((tuple(sorted(members[:cut])), tuple(sorted(members[cut:])))))

    def compute(self, fails: float = 0.0) -> None:
        """End the aggregation, if one is running."""
        if self.state.stage is RoundStage.COMPUTING:
            failed = self.rng.random() < fails
            self.do(ComputeFailed() if failed else self.computation())

    def computation(self) -> Computed:
        """Return the result of the current attempt."""
        if self.state.round == 0 and not self.groups:
            self.groups = self.random_groups()
        if self.state.round == 0:
            return Computed(self.groups)
        there = [set(each) & set(self.state.participants) for each in self.state.groups]
        there = [group for group in there if group]
        self.without = there[0] if len(there) > 1 and self.rng.random() < 0.2 else set()
        self.seen["a group without result"] += bool(self.without)
        return Computed(excluded=frozenset(self.without))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.do(Tick())

    def restart(self) -> None:
        """Kill the coordinator and start it again on what it stored."""
        self.seen[f"restart in {self.state.stage}"] += 1
        self.state = State.from_json(self.state.to_json())
        self.do(Resumed())
        self.plan()
