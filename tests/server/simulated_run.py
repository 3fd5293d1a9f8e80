"""A whole run against the round machine with a fake clock, faults, and checks after each event.

The checks rest on a ledger of this module's own, not on what the machine says of itself.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from protoseal_wire.messages import Phase, PhaseKey
from secure_server import rounds
from secure_server.errors import CoordinatorError, JoinClosed
from secure_server.rounds import Rules, Stage, State

SECONDS: Mapping[Phase, float] = {
    Phase.ROSTER: 10.0,
    Phase.SECRET: 10.0,
    Phase.PRESENCE: 60.0,
    Phase.VALUES: 20.0,
    Phase.RESULT: 20.0,
}


def random_rules(rng: random.Random) -> Rules:
    """Rules of a small run."""
    sites = rng.randint(3, 6)
    return Rules(
        run="sim",
        roster=tuple(f"s{number}" for number in range(sites)),
        min_sites=rng.randint(2, sites),
        rounds=rng.randint(1, 3),
        max_attempts=rng.randint(1, 4),
        needs_secret=rng.random() < 0.7,
        join_seconds=100.0,
        phase_seconds=SECONDS,
    )


class InvariantError(Exception):
    """An invariant does not hold."""


def require(condition: bool, what: str) -> None:
    """:class:`InvariantError` unless the condition holds."""
    if not condition:
        raise InvariantError(what)


class SimulatedRun:
    """One run: the coordinator's state, what its store would hold, and sites that come and go."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311 (a test's choices, to be repeated from the seed)
        self.rules = random_rules(self.rng)
        self.now = self.rng.uniform(0.0, 1e9)
        self.state = rounds.start(self.rules, self.now)
        self.alive = set(self.rules.roster)
        self.out: set[str] = set()  # told that the run goes on without them
        self.unsure: dict[str, PhaseKey] = {}  # answers whose acknowledgement was lost
        self.accepted: set[tuple[PhaseKey, str]] = set()
        self.computed: dict[int, PhaseKey] = {}  # by round
        self.asked: dict[PhaseKey, object] = {}
        self.seen: Counter[str] = Counter()

    # One event, and what must hold after it

    def do(self, event: rounds.Event) -> bool:
        """Whether the machine took the event."""
        before = self.state
        try:
            after = rounds.step(self.rules, before, event, self.now)
        except CoordinatorError as error:
            self._check_refusal(before, event, error)
            return False
        if isinstance(event, rounds.Answered):
            self._check_answer(before, event)
        if isinstance(event, rounds.Computed):
            self._check_computation(before)
        self._check_order(before, after)
        self.state = after
        self._check_requests()
        self.seen[after.stage] += after.stage is not before.stage
        # A failure that benched a site counts for nothing, but is one.
        self.seen["failed attempt"] += after.failures > before.failures or after.benched > before.benched
        self.seen["new maker"] += after.setup_attempt > before.setup_attempt
        return True

    def _check_refusal(self, before: State, event: rounds.Event, error: CoordinatorError) -> None:
        require(
            not isinstance(event, rounds.Tick | rounds.Resumed | rounds.Left), f"refused {event}: {error}"
        )
        if isinstance(event, rounds.Answered) and event.site in before.joined:
            asked = rounds.task_for(self.rules, before, event.site)
            require(event.key != asked, f"refused the answer that was asked for: {error}")

    def _check_answer(self, before: State, event: rounds.Answered) -> None:
        answer = (event.key, event.site)
        asked = rounds.task_for(self.rules, before, event.site)
        require(event.key == asked or answer in self.accepted, f"took {answer}, which nobody asked for")
        self.accepted.add(answer)

    def _check_computation(self, before: State) -> None:
        """Exact result or none: each participant gave presence and values for this very attempt."""
        require(before.round not in self.computed, f"round {before.round} computed twice")
        require(len(before.participants) >= self.rules.min_sites, f"only {before.participants} computed")
        for site in before.participants:
            for key in (before.presence_key, before.values_key):
                require((key, site) in self.accepted, f"computed without {site}'s {key}")
        self.computed[before.round] = before.result_key

    def _check_order(self, before: State, after: State) -> None:
        require(
            (after.round, after.attempt) >= (before.round, before.attempt), "a round or attempt went back"
        )
        require(after.setup_attempt >= before.setup_attempt, "the set-up went back")
        require(
            not before.members or set(after.members) <= set(before.members), "a site became a member late"
        )
        require(before.stage is not Stage.FINISHED or after.stage is Stage.FINISHED, "went on after the end")
        if after.stage is Stage.FINISHED:
            require(
                set(self.computed) == set(range(1, self.rules.rounds + 1)), "finished without each result"
            )
        if not after.over:
            left = after.deadline - self.now
            require(left <= self.rules.seconds(after.stage), "a deadline recedes beyond its phase's time")

    def _check_requests(self) -> None:
        """What is asked under a key never changes, and no result is given that was not computed."""
        state = self.state
        content: Mapping[Phase, object] = {
            Phase.ROSTER: state.members,
            Phase.SECRET: state.members,
            Phase.PRESENCE: None,
            Phase.VALUES: state.participants,
            Phase.RESULT: state.participants,
        }
        for site in self.rules.roster:
            key = rounds.task_for(self.rules, state, site)
            if key is None:
                continue
            asked = self.asked.setdefault(key, content[key.phase])
            require(asked == content[key.phase], f"{key} asks something else than before")
            require((key, site) not in self.accepted, f"{site} is asked {key} again")
            if key.phase is Phase.RESULT:
                require(self.computed.get(key.round) == key, f"{key} was not computed")

    # What sites and the coordinator's process do

    def visit(self, site: str, lost_answers: float = 0.0) -> None:
        """A living site asks for its task and answers it; sometimes it does not hear that this arrived."""
        if site in self.unsure:
            self.do(rounds.Answered(site, self.unsure.pop(site)))
        if site not in self.state.joined:
            self.join(site)
        if site in self.out or not self.do(rounds.Polled(site)):
            return
        task = rounds.task_for(self.rules, self.state, site)
        if task is not None and self.do(rounds.Answered(site, task)) and self.rng.random() < lost_answers:
            self.unsure[site] = task

    def join(self, site: str) -> None:
        """A site that is left out for good is told so."""
        try:
            rounds.step(self.rules, self.state, rounds.Joined(site), self.now)
        except JoinClosed:
            self.out.add(site)
        self.do(rounds.Joined(site))

    def compute(self, fails: float = 0.0) -> None:
        """The aggregation ends, if one is running."""
        if self.state.stage is Stage.COMPUTING:
            failed = self.rng.random() < fails
            self.do(rounds.ComputeFailed() if failed else rounds.Computed())

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.do(rounds.Tick())

    def restart(self) -> None:
        """The coordinator is killed and started again on what it stored."""
        self.seen[f"restart in {self.state.stage}"] += 1
        self.state = State.from_json(self.state.to_json())
        self.do(rounds.Resumed())

    # Faults

    def fault(self) -> None:
        """Something goes wrong."""
        site = self.rng.choice(self.rules.roster)
        faults: tuple[Callable[[], object], ...] = (
            lambda: self.alive.discard(site),
            lambda: self.do(rounds.Left(site)),
            lambda: self.do(rounds.Joined(site)),
            lambda: self.replay(site),
            lambda: self.do(rounds.Answered(site, self.made_up_key())),
            lambda: (
                self.do(self.rng.choice((rounds.Computed(), rounds.ComputeFailed())))
                if self.state.stage is not Stage.COMPUTING
                else None
            ),
            self.restart,
            lambda: self.pass_time(self.rng.choice((30.0, 1e3, 1e6, -1e3, -1e6))),
        )
        self.rng.choices(faults, weights=(4, 2, 2, 4, 4, 2, 3, 2))[0]()

    def replay(self, site: str) -> None:
        """An old answer of a site arrives once more."""
        old = sorted(key for key, sender in self.accepted if sender == site)
        if old:
            self.do(rounds.Answered(site, self.rng.choice(old)))

    def made_up_key(self) -> PhaseKey:
        """A key near the current ones, of this run or another."""
        around = self.rng.choice((-1, 0, 0, 0, 1))
        key = PhaseKey("sim", self.state.round, self.state.attempt + around, self.rng.choice(list(Phase)))
        other = replace(key, round=self.rng.randint(0, self.rules.rounds + 1))
        return self.rng.choice((key, key, other, replace(key, run="other")))

    def chaos(self, steps: int) -> None:
        """Sites work while requests, answers, sites and the coordinator are lost."""
        for _ in range(steps):
            if self.rng.random() < 0.12:
                self.fault()
            elif self.rng.random() < 0.03:
                self.alive = set(self.rules.roster)
            site = self.rng.choice(self.rules.roster)
            if site in self.alive and self.rng.random() < 0.9:
                self.visit(site, lost_answers=0.1)
            if self.rng.random() < 0.3:
                self.compute(fails=0.1)
            self.pass_time(self.rng.uniform(0.0, 4.0))
            if self.state.stage is Stage.STOPPED and self.rng.random() < 0.1:
                self.restart()

    # How a run must end

    def finish(self) -> None:
        """With every site there and nothing lost the run finishes.

        An operator may have to start it again twice: it had stopped, and a deadline was too near to be met.
        """
        self.alive = set(self.rules.roster)
        restarts = 0
        for _ in range(20 * (self.rules.rounds + 3)):
            if self.state.stage is Stage.STOPPED:
                restarts += 1
                self.restart()
            for site in self.rules.roster:
                self.visit(site)
            self.compute()
            self.pass_time(2.0)
            if self.state.stage is Stage.FINISHED:
                break
        require(self.state.stage is Stage.FINISHED, f"all are there, and yet: {self.state}")
        require(restarts <= 2, f"started again {restarts} times")

    def starve(self) -> None:
        """With too few sites left, the run stops, or ends if its last result is out, in bounded time."""
        staying = self.rng.sample(self.rules.roster, self.rules.min_sites - 1)
        rules, attempts = self.rules, self.rules.max_attempts
        one_round = sum(rules.seconds(stage) for stage in (Stage.PRESENCE, Stage.VALUES, Stage.RESULT))
        bound = rules.join_seconds + attempts * rules.seconds(Stage.SETUP) + (attempts + 2) * one_round
        end = self.now + bound
        while not self.state.over and self.now <= end:
            for site in staying:
                self.visit(site)
            self.compute()
            self.pass_time(2.0)
        require(self.state.over, f"too few are there, and yet it goes on: {self.state}")
        require(self.state.stage is Stage.FINISHED or bool(self.state.reason), "it stopped without a reason")
