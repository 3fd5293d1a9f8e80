"""Sites of the tensor engine: a learner each, the values of its last training, and the results that it received."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from agreement import Agreement
from algorithms.gram_matrix import Float
from algorithms.prototypes import Guide
from protoseal.simulation.schedules import RunSchedule
from protoseal.simulation.tensors.models import Numbers, SiteModels
from secure_client.checkpoints.checkpointed_learner import RunJob, log_failed_training, run_jobs
from secure_client.checkpoints.exchanged_values import ExchangedValues, TrainedValues
from secure_client.checkpoints.learner_factory import prototype_bounds
from secure_client.checkpoints.predictor import Predictor
from secure_client.training.feature_pass import EmbeddedBatch
from secure_client.training.job import Job, Losses, OptimiserState
from secure_client.training.learner import Learner


@dataclass
class Received:
    """Results that a site has received: targets, and the averaged part (p + q,) that its next training starts from.

    Sites of one group share both, which nobody changes.
    """

    guide: Guide | None = None
    averaged: Float | None = None


@dataclass(frozen=True)
class SiteState:
    """State of a site after a round: its models, its own prototypes (K, d), if any, and what it received.

    ``optimisers`` are the states of its last jobs' optimisers, if the schedule keeps them.
    """

    round: int
    models: Numbers
    rows: Float | None
    received: Received
    optimisers: Sequence[OptimiserState] = ()


class TensorSite:
    """One site of the tensor engine; ``models`` has the models of all sites, ``schedule`` is the run's."""

    def __init__(
        self, agreement: Agreement, learner: Learner, models: SiteModels, schedule: RunSchedule
    ) -> None:
        self.learner = learner
        self.received = Received()
        self.values = ExchangedValues(learner, prototype_bounds(agreement), None, agreement.averaging)
        self.predictor = Predictor(learner, self.received, self.values)
        self.best: SiteState | None = None
        """State of the best round so far, under early stopping."""
        self._models = models
        self._schedule = schedule
        self._jobs: list[Job] = []
        self._optimisers: Sequence[OptimiserState] = ()

    @property
    def name(self) -> str:
        """The site's name."""
        return self.learner.site

    def jobs(self, round_number: int) -> list[Job]:
        """Return the jobs of the round, to be run in this order."""
        jobs = self.learner.jobs(round_number, self.received.guide)
        self._jobs = self._schedule.adapt(jobs, round_number, self._optimisers)
        return self._jobs

    def run(self, round_number: int, run: RunJob | None = None) -> Losses | None:
        """Run the round's jobs, by ``run`` or in the usual way; return the last job's losses; None after any error."""
        what = f"{self.name}: training in round {round_number}"
        return run_jobs(lambda: self.jobs(round_number), what, run)

    def undo(self) -> None:
        """Restore the model of the round's start."""
        self._models.undo(self.name)

    def fail(self, round_number: int) -> None:
        """Undo a round's training, which failed."""
        self.undo()
        log_failed_training(self.name, round_number)

    def finish(
        self, round_number: int, losses: Losses | None, embedded: Iterable[EmbeddedBatch] | None
    ) -> None:
        """End a round's training with what the site exchanges of its model; ``embedded`` are features, if known."""
        if losses is not None:
            self._optimisers = [job.optimiser_state for job in self._jobs if job.optimiser_state is not None]
        self._jobs = []
        values = self.values.compute(round_number, b"", self.received.guide, embedded)
        self.values.last = replace(values, losses=losses)

    def sit_out(self) -> None:
        """Take no part in a round: models, values and results stay, and the losses of the last training are past."""
        self.values.last = replace(self.values.require_last(), losses=None)

    # States

    def state(self) -> SiteState:
        """Return a copy of the present state, after the first training."""
        last = self.values.require_last()
        return SiteState(
            last.round, self._models.copy(self.name), last.rows, replace(self.received), self._optimisers
        )

    def restore(self, state: SiteState) -> None:
        """Restore a state."""
        self._models.paste(self.name, state.models)
        self.values.last = TrainedValues(state.round, self.learner.counts, b"", state.rows)
        self.received.guide, self.received.averaged = state.received.guide, state.received.averaged
        self._optimisers = state.optimisers

    def remember(self) -> None:
        """Keep a copy of the present state, replacing an earlier copy."""
        self.best = self.state()

    @property
    def remembered(self) -> int:
        """Trained round of the last call of :meth:`remember`; 0 without a call."""
        return 0 if self.best is None else self.best.round

    def go_back(self) -> None:
        """Restore the remembered state permanently, as the end of training."""
        if self.best is not None:
            self.restore(self.best)
