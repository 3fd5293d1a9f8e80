"""Whole runs in which enough sites do all they are asked, and the others whatever may hold a run up."""

from __future__ import annotations

from dataclasses import replace

from protoseal_wire.messages import Phase
from secure_server.rounds.events import Answered, Left, Polled
from secure_server.rounds.state import Stage
from secure_server.rounds.task_assignment import task_for
from tests.secure_server.rounds.simulated_run import SimulatedRun
from tests.secure_server.rounds.simulation_rules import require

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
        stages = (Stage.JOINING, Stage.SETUP, Stage.PRESENCE, Stage.VALUES, Stage.COMPUTING, Stage.RESULT)
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
        require(self.state.stage is Stage.FINISHED, f"enough sites are good, and yet: {self.state}")
