"""Whole runs of the round machine, in which sites come, go, answer and are lost at random, or out of spite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from protoseal_wire.messages import Phase, PhaseKey
from secure_server.errors import JoinClosed
from secure_server.rounds import machine
from secure_server.rounds.machine import Answered, Computed, ComputeFailed, Joined, Left, Planned, Polled
from secure_server.rounds.state import PHASE_OF_STAGE, RoundStage
from secure_server.rounds.task_assignment import task_for
from tests.secure_server.rounds.checked_run import CheckedRun, require


class SimulatedRun(CheckedRun):
    """Run with sites that come and go."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.alive = set(self.rules.roster)
        self.out: set[str] = set()  # told that the run goes on without them
        self.unsure: dict[str, PhaseKey] = {}  # answers whose acknowledgement was lost

    # What sites do

    def visit(self, site: str, lost_answers: float = 0.0) -> None:
        """Let a living site ask for its task and answer it; sometimes it does not hear that this arrived."""
        if site in self.unsure:
            self.do(Answered(site, self.unsure.pop(site)))
        if site not in self.state.joined:
            self.join(site)
        if site in self.out or not self.do(Polled(site)):
            return
        task = task_for(self.rules, self.state, site)
        if task is not None and self.do(Answered(site, task)) and self.rng.random() < lost_answers:
            self.unsure[site] = task

    def join(self, site: str) -> None:
        """A site that is left out for good is told so."""
        try:
            machine.step(self.rules, self.state, Joined(site), self.now)
        except JoinClosed:
            self.out.add(site)
        self.do(Joined(site))

    # Faults

    def fault(self) -> None:
        """Something goes wrong."""
        site = self.rng.choice(self.rules.roster)
        faults: tuple[Callable[[], object], ...] = (
            lambda: self.alive.discard(site),
            lambda: self.alive.difference_update(self.rng.sample(self.rules.roster, 2)),
            lambda: self.do(Left(site)),
            lambda: self.do(Joined(site)),
            lambda: self.replay(site),
            lambda: self.do(Answered(site, self.made_up_key())),
            self.own_part_out_of_turn,
            self.restart,
            self.all_leave,
            lambda: self.pass_time(self.rng.choice((30.0, 1e3, 1e6, -1e3, -1e6))),
        )
        self.rng.choices(faults, weights=(3, 2, 2, 2, 4, 4, 2, 8, 1, 2))[0]()

    def all_leave(self) -> None:
        """Everybody leaves, and nobody comes back for a while."""
        for site in self.rules.roster:
            self.do(Left(site))
        self.pass_time(15.0)

    def own_part_out_of_turn(self) -> None:
        """Send the coordinator's own events, where the machine waits for others."""
        if self.state.stage not in (RoundStage.COMPUTING, RoundStage.PLANNING) and self.state.setup_complete:
            groups = (self.state.groups or (self.state.members,)) if self.state.round == 0 else ()
            self.do(self.rng.choice((Computed(groups), ComputeFailed(), Planned())))

    def replay(self, site: str) -> None:
        """Send an old answer of a site once more."""
        old = sorted(key for key, sender in self.accepted if sender == site)
        if old:
            self.do(Answered(site, self.rng.choice(old)))

    def made_up_key(self) -> PhaseKey:
        """Return a key near the current ones, of this run or another."""
        around = self.rng.choice((-1, 0, 0, 0, 1))
        key = PhaseKey("sim", self.state.round, self.state.attempt + around, self.rng.choice(list(Phase)))
        other = replace(key, round=self.rng.randint(0, self.rules.rounds + 1))
        return self.rng.choice((key, key, other, replace(key, run="other")))

    def chaos(self, steps: int) -> None:
        """Sites work while requests, answers, sites and the coordinator are lost."""
        self.plan_fails = 0.1
        for _ in range(steps):
            if self.rng.random() < 0.12:
                self.fault()
            elif self.rng.random() < 0.04:
                self.alive = set(self.rules.roster)
            site = self.rng.choice(self.rules.roster)
            if site in self.alive and self.rng.random() < 0.9:
                self.visit(site, lost_answers=0.1)
            if self.rng.random() < 0.3:
                self.compute(fails=0.1)
            self.pass_time(self.rng.uniform(0.0, 4.0))
            if self.state.stage is RoundStage.STOPPED and self.rng.random() < 0.1:
                self.restart()

    # How a run must end

    def finish(self) -> None:
        """Finish the run with every site there and no losses, unless the run has given up every round before.

        An operator may have to restart the run twice: it had stopped, and a deadline was too near to be met.
        """
        self.alive, self.plan_fails = set(self.rules.roster), 0.0
        restarts = 0
        for _ in range(20 * (self.rules.rounds + 3)):
            if self.state.stage is RoundStage.STOPPED:
                restarts += 1
                self.restart()
            if self.state.round > self.rules.rounds:
                return
            for site in self.rules.roster:
                self.visit(site)
            self.compute()
            self.pass_time(2.0)
            if self.state.stage is RoundStage.FINISHED:
                break
        require(self.state.stage is RoundStage.FINISHED, f"all are there, and yet: {self.state}")
        require(restarts <= 2, f"started again {restarts} times")

    def starve(self) -> None:
        """Check that with too few sites left the run stops, or ends if its last result is out, in bounded time."""
        staying = self.rng.sample(self.rules.roster, self.rules.min_sites - 1)
        rules, attempts = self.rules, self.rules.max_attempts
        one_round = sum(rules.seconds(stage) for stage in PHASE_OF_STAGE)
        bound = rules.join_seconds + attempts * rules.seconds(RoundStage.SETUP) + (attempts + 2) * one_round
        end = self.now + bound
        while not self.state.over and self.now <= end:
            for site in staying:
                self.visit(site)
            self.compute()
            self.pass_time(2.0)
        require(self.state.over, f"too few are there, and yet it goes on: {self.state}")
        require(
            self.state.stage is RoundStage.FINISHED or bool(self.state.reason), "it stopped without a reason"
        )


_STEP_SECONDS = 2.0


class SpitefulRun(SimulatedRun):
    """``good`` sites, at least ``min_sites``, and any number of ``spiteful`` ones."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        roster = self.rules.roster
        self.good = set(self.rng.sample(roster, self.rng.randint(2, len(roster) - 1)))
        self.spiteful = set(roster) - self.good
        self.rules = replace(
            self.rules,
            min_sites=self.rng.randint(2, len(self.good)),
            max_attempts=2,
            first_round=1,
            round_steps=(Phase.VALUES,),
        )
        self.idleness = self.rng.choice((0.1, 0.5, 0.9))

    def spite(self, site: str) -> None:
        """Play any of the ways to be in the run and of no use to it."""
        if self.rng.random() < self.idleness:
            return
        if self.rng.random() < 0.1:
            self.do(Left(site))
            return
        if site not in self.state.joined:
            self.join(site)
        if site in self.out or not self.do(Polled(site)):
            return
        task = task_for(self.rules, self.state, site)
        if task is None:
            return
        if task.phase is Phase.VALUES:
            self.seen["spite"] += 1
            if self.rng.random() < 0.5:
                self.do(Left(site))
        elif self.rng.random() < 0.9:
            self.do(Answered(site, task))

    def run(self) -> None:
        """Play from joining to the end, which must be the last round's result without an operator's help."""
        rules = self.rules
        stages = (
            RoundStage.JOINING,
            RoundStage.SETUP,
            RoundStage.PRESENCE,
            RoundStage.VALUES,
            RoundStage.COMPUTING,
            RoundStage.RESULT,
        )
        attempts = (len(self.spiteful) + 1) * rules.max_attempts
        bound = rules.rounds * attempts * sum(rules.seconds(stage) for stage in stages)
        end = self.now + 2 * bound
        while not self.state.over and self.now <= end:
            for site in rules.roster:
                if site in self.good:
                    self.visit(site)
                else:
                    self.spite(site)
            self.compute()
            self.pass_time(_STEP_SECONDS)
        require(self.state.stage is RoundStage.FINISHED, f"enough sites are good, and yet: {self.state}")
