"""Learner of a site with its checkpoints: trained model, prototypes and targets survive a restart."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from agreement import AveragingSection, Predicts
from agreement.storage.run_files import write_bytes
from algorithms import metrics
from algorithms.fedplcc import GlobalClusters, LocalClusters
from algorithms.gram_matrix import Bool, Float
from algorithms.prototypes import Clusters, Guide, Targets
from secure_client.error_containment import contained
from secure_client.errors import DataError
from secure_client.models.prototype_model import PrototypeModel
from secure_client.output.site_files import MODEL, SitePrototypes, write_prototypes
from secure_client.privacy.bounds import PrototypeBounds, saturated
from secure_client.privacy.noisy_prototypes import NoisyPrototypes, as_arrays
from secure_client.privacy.releases import Releases
from secure_client.protocol.journal import Journal
from secure_client.site_model.checkpoints import Checkpoints
from secure_client.site_model.exchanged_values import ExchangedValues
from secure_client.site_model.prototype_targets import deciding_guide
from secure_client.site_model.round_start_state import Base
from secure_client.site_model.training_outcome import Trained
from secure_client.training.evaluation import Evaluation
from secure_client.training.job import Job, Losses
from secure_client.training.learner import Learner
from secure_client.training.loop import run

_log = logging.getLogger("protoseal.site")


class Trainee:
    """Learner with checkpoints: trains each round once, however often requested, and stores the result in the journal.

    Prototypes are float64 (K, d) and within the public ``bounds``, with a warning in each round in which the bounds
    change them. A restart changes nothing, bit for bit: finished training is read from the journal, and other training
    runs as :class:`Learner` guarantees.

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
        self._learner, self._averaging, self._noisy = learner, averaging, noisy
        self._checkpoints = Checkpoints(journal)
        self._exchanged = ExchangedValues(learner, bounds, noisy)
        self.releases = None if noisy is None else noisy.releases
        self._trained: Trained | None = None
        self._base: Base | None = None
        self._guide: Guide | None = None
        self._began_with: dict[str, Tensor] = {}
        self._load()

    def trained(self, round_number: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Train this round, if not yet done, with the last targets; return prototypes and samples per class.

        Both are noisy if releases are. A site that missed rounds trains once, not once for each round. Round 0 is
        before training: prototypes of the initial model. For a method without prototypes the result is (0, d).
        """
        if not self.is_trained_for(round_number):
            self.begin(round_number)
            self.finish(round_number, self.run(round_number))
        if not self._learner.exchanges_prototypes:
            return np.empty((0, self._learner.dim)), self._require_trained().counts
        return self._require_rows(), self._require_trained().counts

    def is_trained_for(self, round_number: int) -> bool:
        """Return True if :meth:`trained` has no work left for the round."""
        if self._trained is None or self._trained.round < round_number:
            return False
        # The training must be from the current base: a base of the trained round or later is the training's outcome.
        return self._trained.base == self.base or self._base_round >= self._trained.round

    def begin(self, round_number: int) -> None:
        """Begin a round's training by loading its initial model; :meth:`finish` ends the training.

        Between the two calls the model belongs to no round, and no other method may be called; a site that is killed
        there starts the round again from its journal. DP-SGD training is paid for here, at each call. Raises
        :class:`privacy.errors.BudgetError` for an exhausted budget, :class:`privacy.errors.LedgerError` if the ledger
        cannot be read or written, and before any payment
        :class:`secure_client.errors.DataLost`.
        """
        self._learner.begin()
        if round_number == 0:
            return
        if self._base is not None:
            self._learner.load_averaged(self._base.averaged)
        self._began_with = self._learner.state()
        if self.releases is not None:
            self.releases.pay_for_training(round_number)

    def jobs(self, round_number: int) -> list[Job]:
        """Return the jobs to run, in this order, between :meth:`begin` and :meth:`finish`."""
        return self._learner.jobs(round_number, self._guide) if round_number else []

    def run(self, round_number: int) -> Losses | None:
        """Run the round's jobs and return the losses of the last job; None without jobs or after any error.

        A job that fails ends none of the later ones, so that the time of training does not show the failure.
        """
        what = f"{self._learner.site}: training in round {round_number}"
        jobs = contained(lambda: self.jobs(round_number), list[Job], what)
        losses = [contained(partial(run, job), lambda: None, what) for job in jobs]
        return losses[-1] if losses and None not in losses else None

    def undo(self) -> None:
        """Restore the model of the round's start."""
        self._learner.load(self._began_with)

    def finish(self, round_number: int, losses: Losses | None) -> None:
        """End a round's training and store the outcome. ``losses`` are those of the last job.

        Without losses, or with a model that is not finite, the training is undone first.
        """
        if round_number:
            losses = self._kept(round_number, losses)
        self._began_with = {}
        # The release comes first: if no release is possible, no training is stored and no exact row is created.
        self._trained = replace(self._exchanged.of_round(round_number, self.base, self._guide), losses=losses)
        self._save_model()

    def _kept(self, round_number: int, losses: Losses | None) -> Losses | None:
        """Undo failed training; return its losses as None."""
        if losses is not None and self._learner.is_finite:
            return losses
        self.undo()
        _log.error(
            "%s: training in round %d failed; the site takes part with the model from the start of the round",
            *(self._learner.site, round_number),
        )
        return None

    @property
    def released(self) -> int | None:
        """Round of the noisy release that the last training's values are; None for exact values and before training."""
        return None if self._trained is None else self._trained.released

    @property
    def losses(self) -> Losses | None:
        """Losses of the last training; None before any training, and if it failed."""
        return None if self._trained is None else self._trained.losses

    @property
    def unreadable(self) -> bool:
        """True if training records of the last round could not be read and count as zeros; False after a restart."""
        return self._learner.unreadable

    @property
    def label_entropy(self) -> float:
        """Entropy of the site's labels, in nats; exact, and a secret of this site."""
        return metrics.entropy(self._learner.counts)

    @property
    def shortened(self) -> float | None:
        """Share of the last training's prototypes that were shortened to the norm bound.

        None for a method without prototypes, and with noise, which lengthens prototypes by itself.
        """
        return None if self._trained is None else self._trained.shortened_share

    @property
    def has_trained(self) -> bool:
        """True if a trained model exists."""
        return self._round > 0

    @property
    def _round(self) -> int:
        return 0 if self._trained is None else self._trained.round

    @property
    def base(self) -> bytes:
        """Hash of the base of training; empty before the group's first result."""
        return b"" if self._base is None else self._base.hash

    def embedding_model(self) -> PrototypeModel:
        """Return a copy of the model whose features the prototypes average; a secret of this site once trained."""
        return self._learner.embedding_model()

    def latest(self) -> tuple[NDArray[np.float64], Bool]:
        """Return prototypes (K, d) of the last training, and the classes with a prototype."""
        return self._require_rows(), self.held_classes()

    def held_classes(self) -> Bool:
        """Return the classes (K,) with prototypes of this site: those of its training samples.

        The classes do not depend on what a model made of the samples. With noise, they follow from the released counts.
        """
        return self._require_trained().held()

    def averaged(self) -> NDArray[np.float64]:
        """Return the averaged part of the model after the last training, float64 (p + q,); a secret of this site.

        Values are clamped to the agreed bounds, with a warning if this changes any.
        """
        vector = self._learner.averaged()
        if self._averaging is None:
            return vector
        return saturated(vector, self._averaging, f"{self._learner.site}, round {self._round}")

    def draw_share(self, round_number: int) -> NDArray[np.int64]:
        """Pay for one sum over the round's model and draw this site's share of the noise; a secret of this site.

        Each call pays again and draws another share. Raises the errors of
        :meth:`secure_client.privacy.releases.Releases.draw_share`.
        """
        self.trained(round_number)
        share = self._require_releases().draw_share(round_number)
        self._save_model()  # stores the ledger's entry for a restart
        return share

    def noisy_term(
        self, round_number: int, listed: int, share: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return this site's term of a masked sum of ``listed`` sites, with its share of the noise: (K, d) and (K,).

        The term is of the round's model; ``share`` was drawn by :meth:`draw_share`.
        """
        self.trained(round_number)
        batches = as_arrays(self._learner.embedded())
        return self._require_releases().sum_term(batches, listed, share, self._learner.owners)

    def _require_releases(self) -> Releases:
        if self.releases is None:
            raise RuntimeError("noise was requested, but the agreement has none")
        return self.releases

    def scores(self) -> NDArray[np.float64]:
        """Fisher scores (K, d) of the last training's prototypes, which never leave this site (FedDBP)."""
        scores = None if self._trained is None else self._trained.scores
        if scores is None:
            raise RuntimeError("scores were requested before training, or of a method without scores")
        return scores

    def local(self) -> LocalClusters:
        """Return local prototypes of the last training, within the bounds (FedPLCC, FPL, FedPLVM); secrets.

        A prototype is zero only where its class has no other.
        """
        local = None if self._trained is None else self._trained.local
        if local is None:
            raise RuntimeError(
                "local prototypes were requested before training, or of a method without local prototypes"
            )
        return local

    def take_targets(self, round_number: int, rows: Float, present: Bool) -> None:
        """Set the targets of later rounds: (K, d), valid where ``present`` (K,) is true."""
        self._guide = Targets.of(rows, present)
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
        kept = self._base or Base(b"", {}, self.averaged())
        self._take(round_number, replace(kept, hash=base))

    def _take(self, round_number: int, taken: Base) -> None:
        if len(taken.averaged) != sum(self._learner.averaged_sizes):
            raise ValueError(
                f"{len(taken.averaged)} averaged numbers do not fit the averaged part of this site's model"
            )
        self._base_round, self._base, self._guide = round_number, taken, taken.guide()
        self._checkpoints.put_base(round_number, taken)

    def evaluate(self) -> Evaluation | None:
        """Evaluate on the site's own test set; the result stays at the site.

        Accuracy by prototype needs personalised prototypes, or frozen features. Returns None without a test set, and if
        the test fails.
        """
        return contained(
            lambda: self._evaluated(self._learner.evaluate), lambda: None, f"{self._learner.site}: the test"
        )

    def evaluate_on(self, dataset: Dataset[Any]) -> Evaluation:
        """Evaluate on another test set than the site's own, which only a simulation has."""
        evaluated = self._evaluated(lambda guide: self._learner.evaluate_on(dataset, guide))
        if evaluated is None:
            raise DataError("the test set is empty")
        return evaluated

    def save(self, out: Path) -> None:
        """Write ``model.safetensors`` and ``prototypes.safetensors``, which ``protoseal predict`` loads."""
        write_prototypes(out, self.prototypes())
        with self._predicting():
            write_bytes(out / MODEL, safetensors.torch.save(self._learner.predictor_state()))

    def remember(self) -> None:
        """Store a copy of the present state, replacing an earlier copy."""
        self._checkpoints.remember()

    @property
    def remembered(self) -> int:
        """Trained round of the last call of :meth:`remember`; 0 without a call."""
        return self._checkpoints.remembered

    def go_back(self) -> None:
        """Restore the remembered state permanently, as the end of training."""
        self._checkpoints.go_back()
        self._load()

    def _evaluated(self, test: Callable[[Guide | None], Evaluation | None]) -> Evaluation | None:
        """Run ``test`` with the method's predicting model; personalised accuracies are of the last trained model."""
        guide, aggregates, frozen = self._guide, self._predicts_with_base, self._learner.has_initial_features
        # A site's own prototypes belong to the model that it trained and do not fit another model's trained features.
        near = frozen or (guide is not None and (not aggregates or isinstance(guide, Clusters)))
        decides = deciding_guide(self.prototypes()) if near else None
        trained = test(decides)
        if trained is None or not aggregates:
            return trained
        with self._predicting():
            aggregated = test(decides)
        if aggregated is None:
            return None
        return replace(
            aggregated, pm_v=trained.pm_v, pm_l=trained.pm_l, accuracy_trained=trained.accuracy_classifier
        )

    @contextmanager
    def _predicting(self) -> Iterator[None]:
        """Give the learner the method's predicting model inside the ``with`` block."""
        if self._base is None or not self._predicts_with_base:
            yield
            return
        with self._learner.aggregated(self._base.averaged):
            yield

    @property
    def _predicts_with_base(self) -> bool:
        return self._base is not None and self._learner.predicts is Predicts.AGGREGATED

    def prototypes(self) -> SitePrototypes:
        """Return this site's own prototypes of the last training, and those that it received; secrets of this site."""
        rows, counts = self._require_rows(), self._require_trained().counts
        found = SitePrototypes(rows, np.zeros_like(rows), np.zeros(len(rows), dtype=np.bool_), counts)
        match self._guide:
            case Targets(personal, present):
                return replace(found, personal=personal.double().numpy(), has_personal=present.numpy())
            case Clusters(centres, labels, weights):
                return found.with_clusters(centres.double().numpy(), labels.numpy(), weights.double().numpy())
            case None:
                return found

    def _require_rows(self) -> NDArray[np.float64]:
        """Return the rows; for a method without prototypes, compute them now from the present model."""
        trained = self._require_trained()
        if trained.rows is not None:
            return trained.rows
        rows = self._exchanged.rows(trained.round)
        self._trained = replace(trained, rows=rows)
        return rows

    def _require_trained(self) -> Trained:
        if self._trained is None:
            raise RuntimeError("prototypes or classes were requested before training")
        return self._trained

    def _save_model(self) -> None:
        state = self._learner.state()
        if self._noisy is not None:
            state |= self._noisy.state()
        self._checkpoints.put_trained(self._require_trained(), state)

    def _load(self) -> None:
        stored = self._checkpoints.trained()
        if stored is not None:
            self._trained, state = stored
            if self._noisy is not None:
                self._noisy.load(state)
            self._learner.load(state)
        self._base_round, self._base = self._checkpoints.base()
        self._guide = self._checkpoints.targets() if self._base is None else self._base.guide()
