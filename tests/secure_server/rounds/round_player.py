"""Player of a run against the round machine, one event at a time, with a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from agreement.registry.round_plan import MASKED_SUM as STEPS
from protoseal_wire.messages import Phase, PhaseKey
from secure_server.rounds import machine
from secure_server.rounds.machine import Answered, Computed, Event, Joined, Planned, Tick
from secure_server.rounds.rules import Rules
from secure_server.rounds.state import Groups, Quorum, RoundStage, State
from secure_server.rounds.task_assignment import task_for

SITES = ("ada", "bea", "cid", "dot")
RULES = Rules(
    run="r1",
    roster=SITES,
    min_sites=3,
    rounds=2,
    max_attempts=3,
    needs_secret=True,
    join_seconds=100.0,
    phase_seconds={
        Phase.ROSTER: 10.0,
        Phase.SECRET: 10.0,
        Phase.PRESENCE: 50.0,
        Phase.VALUES: 20.0,
        Phase.RESULT: 20.0,
    },
)
START = 1000.0


def survivors_of(state: State, phase: Phase) -> tuple[str, ...]:
    """Return the sites that answered a step of the current attempt, which is over."""
    return next(each.sites for each in state.survivors if each.phase is phase)


class Player:
    """A run in play."""

    def __init__(self, rules: Rules = RULES) -> None:
        self.rules = rules
        self.now = START
        self.state: State = machine.start(rules, self.now)

    @property
    def stage(self) -> RoundStage:
        return self.state.stage

    def do(self, *events: Event) -> None:
        for event in events:
            self.state = machine.step(self.rules, self.state, event, self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.do(Tick())

    def to_deadline(self) -> None:
        self.now = self.state.deadline
        self.do(Tick())

    def task(self, site: str) -> PhaseKey | None:
        return task_for(self.rules, self.state, site)

    def phase(self, site: str) -> Phase | None:
        task = self.task(site)
        return None if task is None else task.phase

    def join(self, *sites: str) -> None:
        self.do(*(Joined(site) for site in sites))

    def answer(self, *sites: str) -> None:
        """Let each of the sites, in turn, answer its current task."""
        for site in sites:
            task = self.task(site)
            assert task is not None, f"{site} has nothing to answer in {self.stage}"
            self.do(Answered(site, task))

    def set_up(self, *sites: str) -> None:
        """Join with all of the roster and have ``sites`` do their set-up."""
        self.join(*self.rules.roster)
        self.answer(*sites)
        if self.rules.needs_secret:
            self.answer(*(site for site in sites if site != self.state.maker))

    def compute(self) -> None:
        """Have all sites of the roster go through the round, up to its result."""
        self.answer(*self.rules.roster)
        self.answer(*self.rules.roster)
        self.do(Computed())


def in_round(rules: Rules = RULES) -> Player:
    """Return a player at the first round's PRESENCE, with every site set up."""
    player = Player(rules)
    player.set_up(*rules.roster)
    return player


def without_secret(rules: Rules = RULES) -> Rules:
    """Return the rules for a protection that needs no group keys."""
    return replace(rules, needs_secret=False)


# Groups, and rounds of many steps

LEFT, RIGHT = ("ada", "bea", "cid", "dot"), ("eli", "fay", "gus", "hal")
ALL = (*LEFT, *RIGHT)
GROUPED = replace(
    RULES,
    roster=ALL,
    first_round=0,
    round_steps=STEPS,
    min_group_size=lambda members: 3,
    phase_seconds={**RULES.phase_seconds, **dict.fromkeys(STEPS, 20.0)},
)
THREE_OF_EACH = tuple(Quorum(phase, frozenset(group), 3) for group in (LEFT, RIGHT) for phase in STEPS)


def without(*names: str) -> tuple[str, ...]:
    return tuple(site for site in ALL if site not in names)


class GroupPlayer(Player):
    """Player that begins at the first round after the clustering."""

    def __init__(self, rules: Rules = GROUPED, groups: Groups = (LEFT, RIGHT)) -> None:
        super().__init__(rules)
        self.set_up(*rules.roster)
        self.answer(*rules.roster)
        self.answer(*rules.roster)
        self.do(Computed(groups))

    def begin(self, present: Iterable[str] = ALL, quorums: tuple[Quorum, ...] = THREE_OF_EACH) -> None:
        """PRESENCE of these, and the plan."""
        self.answer(*present)
        if self.stage is RoundStage.PRESENCE:
            self.to_deadline()
        self.do(Planned(quorums))

    def go_to(self, stage: RoundStage) -> None:
        """Everyone answers until then."""
        while self.stage is not stage:
            if self.stage is RoundStage.COMPUTING:
                self.do(Computed())
            else:
                self.answer(*(site for site in self.state.step_sites if self.task(site)))
