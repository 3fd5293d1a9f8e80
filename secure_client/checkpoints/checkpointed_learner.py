"""Learner of a site with its checkpoints: trained model, prototypes and targets survive a restart."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from agreement import AveragingSection
from algorithms.fedplcc import GlobalClusters
from algorithms.gram_matrix import Bool, Float
from algorithms.prototypes import Clusters, Guide, Targets
from secure_client.checkpoints.checkpoints import Base, Checkpoints
from secure_client.checkpoints.exchanged_values import ExchangedValues, RoundPrototypes
from secure_client.checkpoints.predictor import Predictor
from secure_client.error_containment import run_or_fallback
from secure_client.errors import DataError
from secure_client.models.prototype_model import PrototypeModel
from secure_client.output.site_files import SitePrototypes
from secure_client.privacy.bounds import PrototypeBounds
from secure_client.privacy.noisy_prototypes import NoisyPrototypes, as_arrays
from secure_client.privacy.releases import Releases
from secure_client.protocol.journal import Journal
from secure_client.training.evaluation import Evaluation
from secure_client.training.job import Job, Losses
from secure_client.training.learner import Learner
from secure_client.training.loop import run_job

_log = logging.getLogger("protoseal.site")


class CheckpointedLearner:
    """Learner with checkpoints: trains each round once, however often requested, and stores the result in the journal.

    A restart changes nothing, bit for bit: finished training is read from the journal, and other training runs as
    :class:`Learner` guarantees. ``values`` are what its exchanges send of the last training.

    No error of model or training ends the session (:mod:`secure_client.error_containment`), nor do data, unless they
    can no longer be read (:mod:`secure_client.training.lost_data`). If a round's training fails, or ends with
    non-finite numbers, it is undone: the model is that of the start of the round, which is the previous round's result
    with this site's own part. So a site that never trained successfully sends the values of its initial model. The site
    does not resend its averaged part of an earlier round: otherwise a coordinator that made training fail everywhere
    could subtract the sums of two rounds.

    Where a part of the model is averaged, a round's training starts from the current base: the averaged part, with the
    rest of the model as this site trained it last. The evaluated and saved model is the one that the method predicts
    with.
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
        self._checkpoints = Checkpoints(journal)
        self.values = ExchangedValues(learner, bounds, noisy, averaging)
        self.releases = None if noisy is None else noisy.releases
        self.base: Base | None = None
        """Base of training; None before the group's first result."""
        self.guide: Guide | None = None
        """Targets of training; None before the first useful result."""
        self._base_round = 0
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
        return self.values.sent()

    def is_trained_for(self, round_number: int) -> bool:
        """Return True if :meth:`train_round` has no work left for the round."""
        last = self.values.last
        if last is None or last.round < round_number:
            return False
        # The training must be from the current base: a base of the trained round or later is the training's outcome.
        return last.base == self.base_hash or self._base_round >= last.round

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
        if self.base is not None:
            self._learner.load_averaged(self.base.averaged)
        self._began_with = self._learner.state()
        # Paid before the first step: a site that dies while it trains has shown nothing that it did not pay for.
        if self.releases is not None:
            self.releases.pay_for_training(round_number)

    def jobs(self, round_number: int) -> list[Job]:
        """Return the jobs to run, in this order, between :meth:`begin` and :meth:`finish`."""
        return self._learner.jobs(round_number, self.guide) if round_number else []

    def run(self, round_number: int) -> Losses | None:
        """Run the round's jobs and return the losses of the last job; None without jobs or after any error.

        A job that fails ends none of the later ones, so that the time of training does not show the failure.
        """
        what = f"{self._learner.site}: training in round {round_number}"
        jobs = run_or_fallback(lambda: self.jobs(round_number), list[Job], what)
        losses = [run_or_fallback(partial(run_job, job), lambda: None, what) for job in jobs]
        return losses[-1] if losses and None not in losses else None

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
            _log.error(
                "%s: training in round %d failed; the site takes part with the model from the start of the round",
                self._learner.site,
                round_number,
            )
        self._began_with = {}
        # The release comes first: if no release is possible, no training is stored and no exact row is created.
        values = self.values.compute(round_number, self.base_hash, self.guide)
        self.values.last = replace(values, losses=losses)
        self._save_model()

    @property
    def losses(self) -> Losses | None:
        """Losses of the last training; None before any training, and if it failed."""
        return None if self.values.last is None else self.values.last.losses

    @property
    def unreadable(self) -> bool:
        """True if training records of the last round could not be read and count as zeros; False after a restart."""
        return self._learner.unreadable

    @property
    def trained_round(self) -> int:
        """Round of the last training; 0 before any."""
        return 0 if self.values.last is None else self.values.last.round

    @property
    def has_trained(self) -> bool:
        """True if a trained model exists."""
        return self.trained_round > 0

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

    # Results

    @property
    def base_hash(self) -> bytes:
        """Hash of the base of training; empty before the group's first result."""
        return b"" if self.base is None else self.base.hash

    def take_targets(self, round_number: int, rows: Float, present: Bool) -> None:
        """Set the targets of later rounds: (K, d), valid where ``present`` (K,) is true."""
        self.guide = Targets.of(rows, present)
        self._checkpoints.put_targets(round_number, rows, present)

    def take_base(self, round_number: int, base: bytes, rows: Float, has: Bool, averaged: Float) -> None:
        """Take the base of later rounds: the result of round ``round_number``, of hash ``base``.

        ``rows`` (K, d) become the targets where ``has`` (K,) is true, ``averaged`` is (p + q,). A site that catches up
        passes the number of the round *before* the starting round: its training after that round, from another base, is
        then discarded and repeated, so that the site never adds a model to a sum under another base than the model's.
        Raises ``ValueError`` for unsuitable shapes or non-finite values.
        """
        self._take(round_number, Base.of(base, rows, has, averaged))

    def take_clusters(
        self, round_number: int, base: bytes, clusters: GlobalClusters, averaged: Float
    ) -> None:
        """Take a base as :meth:`take_base` does, with several prototypes of a class."""
        self._take(round_number, Base.of_clusters(base, clusters, averaged))

    def keep_base(self, round_number: int, base: bytes) -> None:
        """Keep the present base under the hash of an unusable result.

        Before the first result the base is the site's own model, without targets.
        """
        present = self.base or Base(b"", {}, self.values.averaged())
        self._take(round_number, replace(present, hash=base))

    def _take(self, round_number: int, base: Base) -> None:
        if len(base.averaged) != sum(self._learner.averaged_sizes):
            raise ValueError(
                f"{len(base.averaged)} averaged numbers do not fit the averaged part of this site's model"
            )
        self._base_round = round_number
        self.base = base
        self.guide = base.guide()
        self._checkpoints.put_base(round_number, base)

    # Prediction

    def evaluate(self) -> Evaluation | None:
        """Evaluate on the site's own test set; the result stays at the site.

        Accuracy by prototype needs personalised prototypes, or frozen features. Returns None without a test set, and if
        the test fails.
        """
        return run_or_fallback(
            lambda: self.predictor().evaluate(self._learner.evaluate),
            lambda: None,
            f"{self._learner.site}: the test",
        )

    def evaluate_on(self, dataset: Dataset[Any]) -> Evaluation:
        """Evaluate on another test set than the site's own, which only a simulation has."""
        evaluated = self.predictor().evaluate(lambda guide: self._learner.evaluate_on(dataset, guide))
        if evaluated is None:
            raise DataError("the test set is empty")
        return evaluated

    def predictor(self) -> Predictor:
        """Return the model that the method predicts with, to be evaluated or saved."""
        return Predictor(self._learner, self.base, self.guide, self.prototypes)

    def prototypes(self) -> SitePrototypes:
        """Return this site's own prototypes of the last training, and those that it received; secrets of this site."""
        rows, counts = self.values.rows(), self.values.require_last().counts
        own = SitePrototypes(rows, np.zeros_like(rows), np.zeros(len(rows), dtype=np.bool_), counts)
        match self.guide:
            case Targets(personal, present):
                return replace(own, personal=personal.double().numpy(), has_personal=present.numpy())
            case Clusters(centres, labels, weights):
                return own.with_clusters(centres.double().numpy(), labels.numpy(), weights.double().numpy())
            case None:
                return own

    def embedding_model(self) -> PrototypeModel:
        """Return a copy of the model whose features the prototypes average; a secret of this site once trained."""
        return self._learner.embedding_model()

    def save(self, out: Path) -> None:
        """Write ``model.safetensors`` and ``prototypes.safetensors``, which ``protoseal predict`` loads."""
        self.predictor().save(out)

    # Checkpoints

    def remember(self) -> None:
        """Store a copy of the present state, replacing an earlier copy."""
        self._checkpoints.remember()

    @property
    def remembered(self) -> int:
        """TrainedValues round of the last call of :meth:`remember`; 0 without a call."""
        return self._checkpoints.remembered

    def go_back(self) -> None:
        """Restore the remembered state permanently, as the end of training."""
        self._checkpoints.go_back()
        self._load()

    def _save_model(self) -> None:
        state = self._learner.state()
        if self._noisy is not None:
            state |= self._noisy.state()
        self._checkpoints.put_trained(self.values.require_last(), state)

    def _load(self) -> None:
        stored = self._checkpoints.trained()
        if stored is not None:
            self.values.last, state = stored
            # Before the model: a ledger that was rolled back is refused, and nothing of the checkpoint is used.
            if self._noisy is not None:
                self._noisy.load(state)
            self._learner.load(state)
        self._base_round, self.base = self._checkpoints.base()
        self.guide = self._checkpoints.targets() if self.base is None else self.base.guide()

    def _require_releases(self) -> Releases:
        if self.releases is None:
            raise RuntimeError("noise was requested, but the agreement has none")
        return self.releases
