"""Hundreds of whole runs with a fake clock: lost messages, replays, deaths, restarts, clock jumps.

The invariants (in ``simulated_run``): an exact result or none, one computed attempt in a round, nothing goes
back, never fewer sites than the minimum, what a key asks never changes, and every run comes to an end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from secure_server import rounds
from secure_server.rounds import Rules, Stage, State
from tests.server.simulated_run import InvariantError, SimulatedRun

RUNS = 320


def simulate(seed: int) -> SimulatedRun:
    """One run through chaos to its end: by turns with every site back, or with too few left."""
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


def simulate_all() -> Counter[str]:
    """What came up in all of the runs together."""
    total: Counter[str] = Counter()
    for seed in range(RUNS):
        total += simulate(seed).seen
    return total


@pytest.fixture(scope="module")
def seen() -> Counter[str]:
    return simulate_all()


def test_invariants_hold_in_every_run(seen: Counter[str]) -> None:
    assert seen[Stage.FINISHED] >= RUNS / 2


@pytest.mark.parametrize(
    "what",
    [
        *(stage for stage in Stage if stage is not Stage.JOINING),
        *(f"restart in {stage}" for stage in Stage),
        "failed attempt",
        "new maker",
    ],
)
def test_the_simulation_goes_everywhere(seen: Counter[str], what: str) -> None:
    assert seen[what] >= 5


def test_a_run_without_faults_finishes_without_a_failed_attempt() -> None:
    for seed in range(50):
        run = SimulatedRun(seed)
        run.finish()
        assert run.seen["failed attempt"] == 0
        assert run.state.participants == run.rules.roster


def no_check(*_: object) -> None:
    """In the place of a check."""


def same_attempt_again(rules: Rules, state: State, now: float) -> State:
    return replace(
        state,
        stage=Stage.PRESENCE,
        answered=frozenset(),
        participants=(),
        deadline=now + rules.seconds(Stage.PRESENCE),
    )


def values_may_be_missing(rules: Rules, state: State, now: float, *, late: bool) -> State:
    if not late:
        return state
    return replace(state, stage=Stage.COMPUTING, answered=frozenset(), deadline=now + 20.0)


def too_few_may_be_present(rules: Rules, state: State, now: float, *, late: bool) -> State:
    if not late:
        return state
    participants = tuple(sorted(state.answered))
    return replace(
        state, stage=Stage.VALUES, participants=participants, answered=frozenset(), deadline=now + 20.0
    )


def never_gives_up(rules: Rules, state: State, why: str, now: float, lost: object = ()) -> State:
    return rounds._next_attempt(rules, replace(state, participants=()), now)


def any_deadline(rules: Rules, state: State, now: float) -> State:
    return state


def forgets_the_attempt(rules: Rules, state: State, event: rounds.Event, now: float) -> State:
    return replace(real_step(rules, state, event, now), attempt=1)


real_step = rounds.step


@pytest.mark.parametrize(
    ("name", "weakened", "violation"),
    [
        ("check_expected", no_check, "nobody asked for"),
        ("check_computing", no_check, "computed"),
        ("_next_attempt", same_attempt_again, "asked .* again|asks something else"),
        ("_settled_values", values_may_be_missing, "computed without"),
        ("_settled_presence", too_few_may_be_present, "only .* computed"),
        ("_failed", never_gives_up, "goes on"),
        ("_within_full_time", any_deadline, "recedes"),
        ("step", forgets_the_attempt, "went back|again"),
    ],
)
def test_the_simulation_notices_a_weakened_machine(
    name: str, weakened: Callable[..., object], violation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, name, weakened)
    with pytest.raises(InvariantError, match=violation):
        simulate_all()
