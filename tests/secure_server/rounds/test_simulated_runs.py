"""Hundreds of whole runs with a fake clock: lost messages, replays, deaths, restarts, clock jumps.

The invariants (in ``checked_run``): an exact result or a clean abort, one computed attempt in a round, no attempt
of a round after UNMASK was asked in it nor with too few of those who had sent values, no end without any result,
nothing goes back, never fewer sites than the minimum or a quorum, what a key
asks of a site never changes, and every run comes to an end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Set
from dataclasses import replace
from types import ModuleType

import pytest

from agreement.registry.round_plan import CLUSTERED_SUM
from protoseal_wire.messages import Phase, PhaseKey
from secure_server.rounds import machine, task_assignment, transitions
from secure_server.rounds.machine import Event, Left, Planned, Polled
from secure_server.rounds.rules import Rules
from secure_server.rounds.state import STAGE_OF_PHASE, STEPS, Groups, Quorum, RoundStage, State
from secure_server.rounds.task_assignment import check_expected, task_for
from tests.secure_server.rounds.checked_run import InvariantError
from tests.secure_server.rounds.simulated_run import SimulatedRun
from tests.support.marks import full_but

RUNS, FEW = 600, 200
ASKING_STEPS = [STAGE_OF_PHASE[phase] for phase in STEPS]


def simulate(seed: int) -> SimulatedRun:
    """Simulate one run to its end: by turns with every site back, or with too few left."""
    run = SimulatedRun(seed)
    try:
        run.chaos(steps=40 + seed % 120)
        if seed % 3:
            run.finish()
        else:
            run.starve()
    except InvariantError as violation:
        violation.add_note(f"seed {seed}")
        raise
    return run


def simulate_all(runs: int = RUNS) -> Counter[str]:
    """Count the events of all runs together."""
    total: Counter[str] = Counter()
    for seed in range(runs):
        total += simulate(seed).seen
    return total


@pytest.fixture(scope="module", params=full_but([FEW, RUNS], FEW))
def runs(request: pytest.FixtureRequest) -> int:
    """Return how many runs are simulated."""
    return int(request.param)


@pytest.fixture(scope="module")
def seen(runs: int) -> Counter[str]:
    return simulate_all(runs)


def test_simulation_invariants_hold(seen: Counter[str], runs: int) -> None:
    assert seen[RoundStage.FINISHED] >= runs / 2


@pytest.mark.parametrize(
    "what",
    [
        *(stage for stage in RoundStage if stage is not RoundStage.JOINING),
        *(f"restart in {stage}" for stage in RoundStage),
        "failed attempt",
        "new maker",
        "taken in",
        "left by all",
        "drop-out",
        "abandoned round",
        "abandoned last round",
        "a group without result",
        "held up",
        "planned anew",
        "no result at all",
    ],
)
def test_simulation_reaches_every_situation(seen: Counter[str], runs: int, what: str) -> None:
    assert seen[what] >= (5 if runs == RUNS else 1)


def test_simulation_without_faults_has_no_failed_attempt() -> None:
    for seed in range(50):
        run = SimulatedRun(seed)
        run.finish()
        assert run.seen["failed attempt"] == 0
        assert run.state.participants == run.rules.roster
        assert not run.abandoned


class Tolerant(SimulatedRun):
    """One group; as many sites as it can do without drop out of each round, each before a step of its own choice."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.rules = replace(
            self.rules,
            min_sites=2,
            first_round=0,
            common_group=False,
            round_steps=CLUSTERED_SUM,
            max_attempts=1,
            min_group_size=lambda members: 2,
        )
        spare = len(self.rules.roster) - (2 * len(self.rules.roster) // 3 + 1)
        self.spare = self.rng.sample(self.rules.roster, spare)
        self.quits: dict[tuple[int, str], Phase] = {}

    def random_groups(self) -> Groups:
        return (self.state.members,)

    def random_plan(self) -> Planned:
        everyone = frozenset(self.state.participants)
        return Planned(tuple(Quorum(phase, everyone, 2 * len(everyone) // 3 + 1) for phase in CLUSTERED_SUM))

    def visit(self, site: str, lost_answers: float = 0.0) -> None:
        quits = self.quits.setdefault((self.state.round, site), self.rng.choice(CLUSTERED_SUM))
        task = task_for(self.rules, self.state, site)
        if site in self.spare and self.state.round and task is not None and task.phase is quits:
            self.seen["quit"] += 1
            self.do(Left(site) if self.rng.random() < 0.3 else Polled(site))
        else:
            super().visit(site, lost_answers)


def test_simulation_drop_outs_within_quorum_cost_nothing() -> None:
    """Dispensable sites quit in every round, and no attempt fails: with one site to spare, ``max_attempts`` is 1."""
    quits = 0
    for seed in range(60):
        run = Tolerant(seed)
        while not run.state.over:
            for site in run.rules.roster:
                run.visit(site)
            run.compute()
            run.pass_time(2.0)
        assert (run.state.stage, run.seen["failed attempt"], run.abandoned) == (RoundStage.FINISHED, 0, set())
        quits += run.seen["quit"]
    assert quits > 100


def no_check(*_: object) -> None:
    """Accept anything, in place of a check."""


def expects_anything(rules: Rules, state: State, site: str, key: PhaseKey) -> None:
    """Accept any answer once there are members; before that, no state could hold one."""
    if not state.members:
        check_expected(rules, state, site, key)


def same_attempt_again(rules: Rules, state: State, now: float) -> State:
    return replace(
        state,
        stage=RoundStage.PRESENCE,
        answered=frozenset(),
        participants=(),
        survivors=(),
        quorums=(),
        deadline=now + rules.seconds(RoundStage.PRESENCE),
    )


def answers_may_be_missing(rules: Rules, state: State, now: float, *, late: bool) -> State:
    if not late:
        return state
    return real_end_step(rules, state, set(), now)


def too_few_may_be_present(rules: Rules, state: State, now: float, *, late: bool) -> State:
    """Go on with too few participants, where there are no groups."""
    if not late or state.groups:
        return real_presence(rules, state, now, late=late)
    return next_step(rules, replace(state, participants=tuple(sorted(state.answered))), now)


def too_small_groups_may_be_present(rules: Rules, state: State, now: float, *, late: bool) -> State:
    if not late or not state.groups:
        return real_presence(rules, state, now, late=late)
    state = replace(state, participants=tuple(sorted(state.answered)))
    return transitions.enter(rules, state, RoundStage.PLANNING, now)


def never_gives_up(rules: Rules, state: State, why: str, now: float, lost: object = ()) -> State:
    return transitions.next_attempt(rules, transitions._clear_attempt(state), now)


def any_deadline(rules: Rules, state: State, now: float) -> State:
    return state


def forgets_the_attempt(rules: Rules, state: State, event: Event, now: float) -> State:
    return replace(real_step(rules, state, event, now), attempt=1)


def opening_is_as_any_step(rules: Rules, state: State) -> bool:
    """Treat the opening as any other step, though shares were released or a sum was read."""
    return False


def asks_all_participants(rules: Rules, state: State, missing: object, now: float) -> State:
    """Ask the dropped sites for the rest of the attempt too."""
    after = real_end_step(rules, state, set(), now)
    everyone = (*after.survivors[:-1], replace(after.survivors[-1], sites=state.step_sites))
    return replace(after, survivors=everyone)


def any_members_will_do(rules: Rules, state: State, group: tuple[str, ...], sites: Set[str]) -> bool:
    """Accept any members, whoever sent values before."""
    return len(sites & set(group)) >= rules.min_group_size(len(rules.roster))


def finishes_regardless(rules: Rules, state: State, now: float) -> State:
    return real_next_round(rules, replace(state, last_result=state.last_result or state.round), now)


def gives_everyone_a_result(rules: Rules, state: State, groups: Groups, without: object, now: float) -> State:
    return real_computed(rules, state, groups, frozenset(), now)


real_presence = transitions._settle_presence
real_next_round, real_computed = transitions.next_round, machine._apply_result
real_step, real_end_step, next_step = machine.step, transitions._end_step, transitions.next_step


def notices(violation: str) -> None:
    """Check that the simulation finds this double."""
    with pytest.raises(InvariantError, match=violation):
        simulate_all()


@pytest.mark.parametrize(
    ("place", "name", "weakened", "violation"),
    [
        (machine, "check_expected", expects_anything, "nobody asked for|went on without"),
        (machine, "check_computing", no_check, "computed"),
        (transitions, "next_attempt", same_attempt_again, "asked .* again|asks something else"),
        (machine, "step", forgets_the_attempt, "went back|again"),
        (transitions, "_sum_may_be_open", opening_is_as_any_step, "UNMASK or MEANS was asked"),
        (transitions, "_end_step", asks_all_participants, "others are asked"),
        (task_assignment, "_is_able_group", any_members_will_do, "must refuse"),
        (transitions, "_commit_asked_sites", lambda state: state, "must refuse"),
        (transitions, "next_round", finishes_regardless, "without any result"),
        (machine, "_apply_result", gives_everyone_a_result, "there is no .* for"),
    ],
)
def test_simulation_notices_weakened_machine(
    place: ModuleType,
    name: str,
    weakened: Callable[..., object],
    violation: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(place, name, weakened)
    notices(violation)


@pytest.mark.parametrize(
    ("name", "weakened", "violation"),
    [("fail_attempt", never_gives_up, "goes on|UNMASK"), ("cap_deadline", any_deadline, "recedes")],
)
def test_simulation_notices_check_missing_in_both_halves(
    name: str, weakened: Callable[..., object], violation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (machine, transitions):
        monkeypatch.setattr(place, name, weakened)
    notices(violation)


@pytest.mark.parametrize(
    ("stage", "weakened", "violation"),
    [
        (RoundStage.PRESENCE, too_few_may_be_present, "only .* computed"),
        (RoundStage.PRESENCE, too_small_groups_may_be_present, "too small"),
        *((stage, answers_may_be_missing, "went on without") for stage in ASKING_STEPS),
    ],
)
def test_simulation_notices_stage_ending_too_soon(
    stage: RoundStage, weakened: Callable[..., State], violation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(transitions._SETTLE, stage, weakened)
    notices(violation)
