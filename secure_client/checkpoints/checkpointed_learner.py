"""Learner of a site with its checkpoints: trained model, prototypes and targets survive a restart."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from agreement import AveragingSection
from secure_client.checkpoints.exchanged_values import ExchangedValues, TrainedValues
from secure_client.checkpoints.predictor import Predictor
from secure_client.checkpoints.received_results import BASE, TARGETS, ReceivedResults
from secure_client.error_containment import run_or_fallback
from secure_client.models.prototype_model import PrototypeModel
from secure_client.privacy.bounds import PrototypeBounds
from secure_client.privacy.noisy_prototypes import NoisyPrototypes, as_arrays
from secure_client.privacy.releases import Releases
from secure_client.protocol.journal import Journal
from secure_client.training.job import Job, Losses
from secure_client.training.learner import Learner
from secure_client.training.loop import run_job

_log = logging.getLogger("protoseal.site")
_MODEL = "model"
_STATE = (_MODEL, TARGETS, BASE)
"""Documents of the journal that make a learner's state."""
_REMEMBERED = "remembered "
RunJob = Callable[[Job], Losses]
"""Function that trains as :func:`secure_client.training.loop.run_job` does."""


class RoundPrototypes(NamedTuple):
    """Prototypes float64 (K, d) of a round, and samples of each class int64 (K,); both noisy if releases are."""

    rows: NDArray[np.float64]
    counts: NDArray[np.int64]


class CheckpointedLearner:
    """Learner with checkpoints: trains each round once, however often requested, and stores the result in the journal.

    A restart changes nothing, bit for bit: finished training is read from the journal, and other training runs as
    :class:`Learner` guarantees. ``values`` are what exchanges send of the last training, ``received`` the results that
    training starts from, and ``predictor`` the evaluated and saved model.

    No error of model or training ends the session (:mod:`secure_client.error_containment`), nor do data, unless they
    can no longer be read (:mod:`secure_client.training.lost_data`). If a round's training fails, or ends with
    non-finite numbers, it is undone: the model is that of the start of the round, which is the previous round's result
    with this site's own part. So a site that never trained successfully sends the values of its initial model. The site
    does not resend its averaged part of an earlier round: otherwise a coordinator that made training fail everywhere
    could subtract the sums of two rounds.

    Where a part of the model is averaged, a round's training starts from the current base: the averaged part, with the
    rest of the model as this site trained it last.
    """

    def __init__(
        self,
        learner: Learner,
        journal: Journal,
        bounds: PrototypeBounds,
        *,
        noisy: NoisyPrototypes | None,
        averaging: AveragingSection | None = None,
    ) -> None:
        """Load the journal's state.

        ``averaging`` has the bounds of the averaged part, if any. With ``noisy``, the prototypes, the present classes
        and the sample counts come from its releases, and scores are taken at these prototypes: the records affect the
        site's stored values, messages and targets in no other way.
        """
        self._learner = learner
        self._noisy = noisy
        self._journal = journal
        self.values = ExchangedValues(learner, bounds, noisy, averaging)
        self.received = ReceivedResults(learner, journal, self.values)
        self.predictor = Predictor(learner, self.received, self.values)
        self.releases = None if noisy is None else noisy.releases
        self._began_with: dict[str, Tensor] = {}
        self._load()

    # Training

    def train_round(self, round_number: int) -> RoundPrototypes:
        """Train this round, if not yet done, with the last targets; return prototypes and samples per class.

        A site that missed rounds trains once, not once for each round. Round 0 is before training: prototypes of the
        initial model. For a method without prototypes the result has rows (0, d).
        """
        if not self.is_trained_for(round_number):
            self.begin(round_number)
            self.finish(round_number, self.run(round_number))
        last = self.values.require_last()
        rows = self.values.rows() if self._learner.exchanges_prototypes else np.empty((0, self._learner.dim))
        return RoundPrototypes(rows, last.counts)

    def is_trained_for(self, round_number: int) -> bool:
        """Return True if :meth:`train_round` has no work left for the round."""
        last = self.values.last
        if last is None or last.round < round_number:
            return False
        # The training must be from the current base: a base of the trained round or later is the training's outcome.
        return last.base == self.received.base_hash or self.received.base_round >= last.round

    def begin(self, round_number: int) -> None:
        """Begin a round's training by loading its initial model; :meth:`finish` ends the training.

        Between the two calls the model belongs to no round, and no other method may be called; a site that is killed
        there starts the round again from its journal. DP-SGD training is paid for here, at each call. Raises
        :class:`privacy.errors.BudgetError` for an exhausted budget, :class:`privacy.errors.LedgerError` if the ledger
        cannot be read or written, and before any payment
        :class:`secure_client.errors.DataLost`.
        """
        self._learner.begin_round()
        if round_number == 0:
            return
        if self.received.base is not None:
            self._learner.load_averaged(self.received.base.averaged)
        self._began_with = self._learner.snapshot()
        # Paid before the first step: a site that dies while it trains has shown nothing that it did not pay for.
        if self.releases is not None:
            self.releases.pay_for_training(round_number)

    def jobs(self, round_number: int) -> list[Job]:
        """Return the jobs to run, in this order, between :meth:`begin` and :meth:`finish`."""
        return self._learner.jobs(round_number, self.received.guide) if round_number else []

    def run(self, round_number: int, run: RunJob | None = None) -> Losses | None:
        """Run the round's jobs and return the losses of the last job; None without jobs or after any error.

        Each job is run by ``run``, by default :func:`secure_client.training.loop.run_job`.
        """
        what = f"{self._learner.site}: training in round {round_number}"
        return run_jobs(lambda: self.jobs(round_number), what, run)

    def undo(self) -> None:
        """Restore the model of the round's start."""
        self._learner.load(self._began_with)

    def finish(self, round_number: int, losses: Losses | None) -> None:
        """End a round's training and store the outcome. ``losses`` are those of the last job.

        Without losses, or with a model that is not finite, the training is undone first.
        """
        if round_number and (losses is None or not self._learner.is_finite):
            losses = None
            self.undo()
            log_failed_training(self._learner.site, round_number)
        self._began_with = {}
        # The release comes first: if no release is possible, no training is stored and no exact row is created.
        values = self.values.compute(round_number, self.received.base_hash, self.received.guide)
        self.values.last = replace(values, losses=losses)
        self._save_model()

    @property
    def unreadable(self) -> bool:
        """True if training records of the last round could not be read and count as zeros; False after a restart."""
        return self._learner.unreadable

    def embedding_model(self) -> PrototypeModel:
        """Return a copy of the model whose features the prototypes average; a secret of this site once trained."""
        return self._learner.embedding_model()

    # Noise that sites share

    def draw_noise_share(self, round_number: int) -> NDArray[np.int64]:
        """Pay for one sum over the round's model and draw this site's share of the noise; a secret of this site.

        Each call pays again and draws another share. Raises the errors of
        :meth:`secure_client.privacy.releases.Releases.draw_share`.
        """
        self.train_round(round_number)
        share = self._require_releases().draw_share(round_number)
        self._save_model()  # stores the ledger's entry for a restart
        return share

    def noisy_sum_term(
        self, round_number: int, listed: int, share: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return this site's term of a masked sum of ``listed`` sites, with its share of the noise: (K, d) and (K,).

        The term is of the round's model; ``share`` was drawn by :meth:`draw_noise_share`.
        """
        self.train_round(round_number)
        batches = as_arrays(self._learner.embed())
        return self._require_releases().sum_term(batches, listed, share, self._learner.owners)

    # Checkpoints

    def remember(self) -> None:
        """Store a copy of the present state, replacing an earlier copy."""
        for name in _STATE:
            stored = self._journal.get(name)
            if stored is not None:
                self._journal.put(_REMEMBERED + name, *stored)

    @property
    def remembered(self) -> int:
        """Trained round of the last call of :meth:`remember`; 0 without a call."""
        stored = self._journal.get(_REMEMBERED + _MODEL)
        return 0 if stored is None else stored[0]

    def go_back(self) -> None:
        """Restore the remembered state permanently, as the end of training."""
        for name in _STATE:
            stored = self._journal.get(_REMEMBERED + name)
            if stored is not None:
                self._journal.put(name, *stored)
        self._load()

    def _save_model(self) -> None:
        state = self._learner.state()
        if self._noisy is not None:
            state |= self._noisy.state()
        values = self.values.require_last()
        self._journal.put(_MODEL, values.round, values.to_bytes(state))

    def _load(self) -> None:
        stored = self._journal.get(_MODEL)
        if stored is not None:
            self.values.last, state = TrainedValues.from_bytes(*stored)
            # Before the model: a ledger that was rolled back is refused, and nothing of the checkpoint is used.
            if self._noisy is not None:
                self._noisy.load(state)
            self._learner.load(state)
        self.received.load()

    def _require_releases(self) -> Releases:
        if self.releases is None:
            raise RuntimeError("noise was requested, but the agreement has none")
        return self.releases


def log_failed_training(site: str, round_number: int) -> None:
    """Log that a site's training was undone."""
    _log.error(
        "%s: training in round %d failed; the site takes part with the model from the start of the round",
        site,
        round_number,
    )


def run_jobs(jobs: Callable[[], list[Job]], what: str, run: RunJob | None = None) -> Losses | None:
    """Run a round's jobs and return the losses of the last job; None without jobs or after any error.

    A job that fails ends none of the later ones, so that the time of training does not show the failure. ``what`` names
    the training in the log.
    """
    losses = [
        run_or_fallback(partial(run or run_job, job), lambda: None, what)
        for job in run_or_fallback(jobs, list[Job], what)
    ]
    return losses[-1] if losses and None not in losses else None
