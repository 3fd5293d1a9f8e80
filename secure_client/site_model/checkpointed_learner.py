"""Learner of a site with its checkpoints: trained model, prototypes and targets survive a restart."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import safetensors.torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from agreement import AveragingSection, Predicts
from agreement.storage.atomic_files import write_bytes
from algorithms.fedplcc import GlobalClusters, LocalClusters
from algorithms.gram import Bool, Float
from algorithms.prototypes import Clusters, Guide, Targets
from secure_client.error_containment import contained
from secure_client.errors import DataError
from secure_client.output.site_files import MODEL, write_prototypes
from secure_client.output.site_prototypes import SitePrototypes
from secure_client.privacy.noisy_prototypes import NoisyPrototypes
from secure_client.privacy.releases import Spent
from secure_client.privacy.value_bounds import PrototypeBounds, saturated
from secure_client.protocol.journal import Journal
from secure_client.site_model.prototype_targets import deciding_guide
from secure_client.site_model.round_base import Base
from secure_client.site_model.training_outcome import Trained
from secure_client.training.evaluation import Evaluation
from secure_client.training.job import Job, Losses
from secure_client.training.learner import Learner
from secure_client.training.loop import run

_log = logging.getLogger("protoseal.site")
_STATE, _TARGETS, _BASE = "model", "targets", "base"
_REMEMBERED = "remembered "


class Trainee:
    """Trains each round once, however often it is asked for, and keeps the result in the journal.

    Prototypes are float64 (K, d) and within the public ``bounds``, with a warning in each round in which that changes
    them. After a restart everything is as it was, bit for bit: what was trained is read, and what was not is trained as
    :class:`Learner` promises.

    Nothing that data, the model or training do ends the session (:mod:`secure_client.error_containment`). A round whose
    training fails, or ends with numbers that are not finite, is undone: the model is as the round began, which is the
    result of the round before together with this site's own part. So a site that never trained successfully sends what
    its initial model gives. What it averaged in an earlier round it does not send again: a coordinator that made
    training fail everywhere could subtract the sums of two rounds.

    Where a part of the model is averaged, a round's training starts from the base in force: what was averaged, with
    the rest of the model as this site trained it last. What is evaluated and saved is the model that the method
    predicts with.
    """

    def __init__(
        self,
        learner: Learner,
        journal: Journal,
        bounds: PrototypeBounds,
        *,
        averaging: AveragingSection | None = None,
        keeps_zeros: bool = False,
        noisy: NoisyPrototypes | None = None,
    ) -> None:
        """Take up where the journal left off.

        ``averaging`` has the bounds of the averaged part, where there is one.
        ``keeps_zeros``: of several prototypes of a class those that are zero stay, since that they are may follow from
        what was decrypted, and must not show in what a site states. With ``noisy`` the prototypes, which classes there
        are and how many samples of each are that one's, and scores are taken at these prototypes: nothing that the site
        keeps, sends or trains towards comes of its records in another way.
        """
        self._learner, self._journal, self._bounds = learner, journal, bounds
        self._averaging = averaging
        self._keeps_zeros, self._noisy = keeps_zeros, noisy
        self.releases = None if noisy is None else noisy.releases
        self._trained: Trained | None = None
        self._base: Base | None = None
        self._guide: Guide | None = None
        self._began_with: dict[str, Tensor] = {}
        self._load()

    def trained(self, round_number: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Prototypes and samples per class after training in this round, with the targets of the one before.

        Both are noisy where releases are.
        A site that missed rounds trains once, not once for each of them. Round 0 is before training: prototypes of
        the initial model. Where the method exchanges no prototypes there are none, (0, d).
        """
        if not self.is_trained_for(round_number):
            self.begin(round_number)
            self.finish(round_number, self.run(round_number))
        if not self._learner.exchanges_prototypes:
            return np.empty((0, self._learner.dim)), self._require_trained().counts
        return self._require_rows(), self._require_trained().counts

    def is_trained_for(self, round_number: int) -> bool:
        """Return True if :meth:`trained` has nothing left to do."""
        if self._trained is None or self._trained.round < round_number:
            return False
        # From the base in force: a base of the trained round or later is its outcome.
        return self._trained.base == self.base or self._base_round >= self._trained.round

    def begin(self, round_number: int) -> None:
        """Begin a round's training: the model is the one that it starts from. :meth:`finish` ends it.

        In between the model is in no round, and nothing else may be asked for; a site that is killed there begins
        anew, from what its journal has. Training by DP-SGD is paid for here, each time, so that none is done unpaid:
        :class:`BudgetError` where there is not enough left, :class:`LedgerError` where the ledger cannot say so.
        """
        if round_number == 0:
            return
        if self._base is not None:
            self._learner.load_averaged(self._base.averaged)
        self._began_with = self._learner.state()
        if self._noisy is not None:
            self._noisy.pay_for_training(round_number)

    def jobs(self, round_number: int) -> list[Job]:
        """Return what is to be run, in this order, between :meth:`begin` and :meth:`finish`."""
        return self._learner.jobs(round_number, self._guide) if round_number else []

    def run(self, round_number: int) -> Losses | None:
        """Run the round's jobs, and return the losses of the last one; None where there is none, or after any error."""

        def all_jobs() -> Losses | None:
            losses = None
            for job in self.jobs(round_number):
                losses = run(job)
            return losses

        return contained(all_jobs, lambda: None, f"{self._learner.site}: training in round {round_number}")

    def undo(self) -> None:
        """Make the model the one that the round began with."""
        self._learner.load(self._began_with)

    def finish(self, round_number: int, losses: Losses | None) -> None:
        """End a round's training, and keep what was trained. ``losses`` are those of the last job.

        Without losses, or with a model that is not finite, the training is undone first.
        """
        if round_number:
            losses = self._kept(round_number, losses)
        self._began_with = {}
        # First of all: where nothing may be released, nothing was trained for this round, and no exact row is there.
        self._trained = replace(self._described(round_number), losses=losses)
        self._save_model()

    def _kept(self, round_number: int, losses: Losses | None) -> Losses | None:
        """Undo training that failed; its losses are None."""
        if losses is not None and self._learner.is_finite:
            return losses
        self.undo()
        _log.error(
            "%s: training in round %d failed; the model stays as the round began, and the site takes part with it",
            *(self._learner.site, round_number),
        )
        return None

    @property
    def losses(self) -> Losses | None:
        """Losses of the last training; None before it, and where it failed."""
        return None if self._trained is None else self._trained.losses

    @property
    def spent(self) -> Spent | None:
        """Part of the privacy budget that the site has spent; None where its prototypes are exact."""
        return None if self._noisy is None else self._noisy.spent

    @property
    def has_trained(self) -> bool:
        """True if there is anything to save."""
        return self._round > 0

    @property
    def _round(self) -> int:
        return 0 if self._trained is None else self._trained.round

    @property
    def base(self) -> bytes:
        """The hash of what training starts from; empty before the group's first result."""
        return b"" if self._base is None else self._base.hash

    def latest(self) -> tuple[NDArray[np.float64], Bool]:
        """Prototypes (K, d) of the last training, and which classes they are of."""
        return self._require_rows(), self.held_classes()

    def held_classes(self) -> Bool:
        """Classes that this site has prototypes of, (K,): those of its training samples.

        Where it has several prototypes of a class, those of which it has one to send: of zeros only if it keeps them.
        """
        return self._require_trained().held()

    def averaged(self) -> NDArray[np.float64]:
        """Return the averaged part of the model after the last training, float64 (p + q,); a secret of this site.

        Values are clamped to the agreed bounds, with a warning where that changes any.
        """
        vector = self._learner.averaged()
        if self._averaging is None:
            return vector
        return saturated(vector, self._averaging, f"{self._learner.site}, round {self._round}")

    def draw_share(self, round_number: int) -> NDArray[np.int64]:
        """Pay for one sum over the round's model and draw this site's share of the noise; a secret of this site.

        Each call is another payment, and another share. Errors as of :meth:`Releases.draw_share`.
        """
        self.trained(round_number)
        share = self._require_noisy().draw_share(round_number)
        self._save_model()  # with the ledger's entry, which a restart has to find again
        return share

    def noisy_term(
        self, round_number: int, listed: int, share: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return this site's term of a masked sum of ``listed`` sites, with its share of the noise: (K, d) and (K,).

        The term is of the round's model; ``share`` was drawn by :meth:`draw_share`.
        """
        self.trained(round_number)
        return self._require_noisy().term(self._learner.embedded(), listed, share)

    def _require_noisy(self) -> NoisyPrototypes:
        if self._noisy is None:
            raise RuntimeError("asked for noise where none is agreed")
        return self._noisy

    def scores(self) -> NDArray[np.float64]:
        """Fisher scores (K, d) of the last training's prototypes, which never leave this site (FedDBP)."""
        scores = None if self._trained is None else self._trained.scores
        if scores is None:
            raise RuntimeError("asked for scores before training, or of a method without them")
        return scores

    def local(self) -> LocalClusters:
        """Local prototypes of the last training, within the bounds (FedPLCC, FPL, FedPLVM); secrets.

        None is zero, unless zeros are kept.
        """
        local = None if self._trained is None else self._trained.local
        if local is None:
            raise RuntimeError("asked for local prototypes before training, or of a method without them")
        return local

    def take_targets(self, round_number: int, rows: Float, present: Bool) -> None:
        """Take the targets of the rounds to come: (K, d), read where ``present`` (K,)."""
        self._guide = Targets.of(rows, present)
        content = safetensors.numpy.save({"rows": np.ascontiguousarray(rows), "present": present})
        self._journal.put(_TARGETS, round_number, content)

    def take_base(self, round_number: int, base: bytes, rows: Float, has: Bool, averaged: Float) -> None:
        """Take the base of later rounds: the result of round ``round_number``, of hash ``base``.

        ``rows`` (K, d) become the targets where ``has`` (K,) is true, ``averaged`` is (p + q,). A site that catches
        up gives the number of the round *before* the one that starts: its training after that round, from another
        base, is then void and repeated, so that the site never adds to a sum under one base a model trained from
        another. Raises ``ValueError`` for shapes that do not fit or values that are not finite.
        """
        self._take(round_number, Base.of(base, rows, has, averaged))

    def take_clusters(
        self, round_number: int, base: bytes, clusters: GlobalClusters, averaged: Float
    ) -> None:
        """Take a base as :meth:`take_base` does, with several prototypes of a class."""
        self._take(round_number, Base.of_clusters(base, clusters, averaged))

    def keep_base(self, round_number: int, base: bytes) -> None:
        """Keep the present base under the hash of a result that is of no use.

        Before the first result the base is the site's own model, without targets.
        """
        kept = self._base or Base(b"", {}, self.averaged())
        self._take(round_number, replace(kept, hash=base))

    def _take(self, round_number: int, taken: Base) -> None:
        if len(taken.averaged) != sum(self._learner.averaged_sizes):
            raise ValueError(f"{len(taken.averaged)} averaged numbers do not fit this site's model")
        self._base_round, self._base, self._guide = round_number, taken, taken.guide()
        self._journal.put(_BASE, round_number, taken.to_bytes())

    def evaluate(self) -> Evaluation | None:
        """Accuracy on the site's own test set; it stays at the site. By prototype once there are personalised ones.

        None without a test set, and where the test fails.
        """
        return contained(
            lambda: self._evaluated(self._learner.evaluate), lambda: None, f"{self._learner.site}: the test"
        )

    def evaluate_on(self, dataset: Dataset[Any]) -> Evaluation:
        """On another test set than the site's own, which only a simulation has."""
        evaluated = self._evaluated(lambda guide: self._learner.evaluate_on(dataset, guide))
        if evaluated is None:
            raise DataError("nothing to test on")
        return evaluated

    def save(self, out: Path) -> None:
        """Write ``model.safetensors`` and ``prototypes.safetensors``, which ``protoseal predict`` loads."""
        write_prototypes(out, self._prototypes())
        with self._predicting():
            write_bytes(out / MODEL, safetensors.torch.save(self._learner.predictor_state()))

    def remember(self) -> None:
        """Keep the present state beside the one that goes on, in place of what was remembered before."""
        for name in (_STATE, _TARGETS, _BASE):
            stored = self._journal.get(name)
            if stored is not None:
                self._journal.put(_REMEMBERED + name, *stored)

    @property
    def remembered(self) -> int:
        """The round that was trained when :meth:`remember` was last called; 0 if it never was."""
        stored = self._journal.get(_REMEMBERED + _STATE)
        return 0 if stored is None else stored[0]

    def go_back(self) -> None:
        """Take up the state that was remembered; for good, and with nothing more to train."""
        for name in (_STATE, _TARGETS, _BASE):
            stored = self._journal.get(_REMEMBERED + name)
            if stored is not None:
                self._journal.put(name, *stored)
        self._load()

    def _evaluated(self, test: Callable[[Guide | None], Evaluation | None]) -> Evaluation | None:
        """By the model that the method predicts with; personal accuracies are always of the one trained last."""
        guide, aggregates = self._guide, self._predicts_with_base
        # A site's own prototypes are of the model as it trained it: they say nothing of another's features.
        near = guide is not None and (not aggregates or isinstance(guide, Clusters))
        decides = deciding_guide(self._prototypes()) if near else None
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
        """Inside, the learner's model is the one that the method predicts with."""
        if self._base is None or not self._predicts_with_base:
            yield
            return
        with self._learner.aggregated(self._base.averaged):
            yield

    @property
    def _predicts_with_base(self) -> bool:
        return self._base is not None and self._learner.predicts is Predicts.AGGREGATED

    def _prototypes(self) -> SitePrototypes:
        rows, counts = self._require_rows(), self._require_trained().counts
        found = SitePrototypes(rows, np.zeros_like(rows), np.zeros(len(rows), dtype=np.bool_), counts)
        match self._guide:
            case Targets(personal, present):
                return replace(found, personal=personal.double().numpy(), has_personal=present.numpy())
            case Clusters(centres, labels, weights):
                return found.with_clusters(centres.double().numpy(), labels.numpy(), weights.double().numpy())
            case None:
                return found

    def _described(self, number: int) -> Trained:
        """Return what the method exchanges of the model: a release where there is noise, else of one exact pass."""
        bare = Trained(number, self._learner.counts, self.base)
        if self._noisy is None:
            return self._exact(bare) if self._learner.exchanges_prototypes else bare
        drawn = self._noisy.of_round(number, self._learner.embedded(), self._guide)
        scores = self._scored(lambda: self._learner.scores_at(drawn.rows, drawn.present), drawn.rows)
        return replace(bare, counts=drawn.counts, rows=drawn.rows, local=drawn.local, scores=scores)

    def _exact(self, bare: Trained) -> Trained:
        embedded = self._learner.embedded()
        rows, counts = self._learner.prototypes(embedded)
        scores = self._scored(lambda: self._learner.scores(embedded), rows)
        local = contained(
            lambda: self._learner.local_clusters(embedded),
            lambda: _class_means(self._bounds.bounded(rows).rows, counts),
            f"{self._learner.site}: clustering",
        )
        if local is None:
            return replace(bare, rows=self._bounded(rows, bare.round), scores=scores)
        # These are sent, and so warned of, and class means stay here.
        few = self._bounds.few(local)
        within = replace(few, rows=self._bounded(few.rows, bare.round))
        sent = within if self._keeps_zeros else within.without_zeros()
        return replace(bare, rows=self._bounds.bounded(rows).rows, scores=scores, local=sent)

    def _scored(self, scores: Callable[[], Float | None], rows: Float) -> Float | None:
        return contained(scores, lambda: np.zeros_like(rows), f"{self._learner.site}: Fisher scores")

    def _require_rows(self) -> NDArray[np.float64]:
        """Return the rows; a method that exchanges none takes them now, of the present model."""
        trained = self._require_trained()
        if trained.rows is not None:
            return trained.rows
        if self._noisy is not None:
            raise RuntimeError("asked for prototypes of which no release was made")
        rows = self._bounded(self._learner.prototypes()[0], trained.round)
        self._trained = replace(trained, rows=rows)
        return rows

    def _require_trained(self) -> Trained:
        if self._trained is None:
            raise RuntimeError("asked for prototypes, or for a site's classes, before it trained")
        return self._trained

    def _bounded(self, rows: NDArray[np.float64], number: int) -> NDArray[np.float64]:
        bounded = self._bounds.bounded(rows)
        self._bounds.warn_of(bounded, f"{self._learner.site}, round {number}")
        return bounded.rows

    def _save_model(self) -> None:
        state = self._learner.state()
        if self._noisy is not None:
            state |= self._noisy.state()
        self._journal.put(_STATE, self._round, self._require_trained().to_bytes(state))

    def _load(self) -> None:
        self._load_model()
        self._base_round, self._base = self._load_base()
        self._guide = self._load_targets() if self._base is None else self._base.guide()

    def _load_model(self) -> None:
        stored = self._journal.get(_STATE)
        if stored is None:
            return
        self._trained, state = Trained.from_bytes(*stored)
        if self._noisy is not None:
            self._noisy.load(state)
        self._learner.load(state)

    def _load_base(self) -> tuple[int, Base | None]:
        stored = self._journal.get(_BASE)
        return (0, None) if stored is None else (stored[0], Base.from_bytes(stored[1]))

    def _load_targets(self) -> Targets | None:
        stored = self._journal.get(_TARGETS)
        if stored is None:
            return None
        arrays = safetensors.numpy.load(stored[1])
        return Targets.of(arrays["rows"], arrays["present"])


def _class_means(rows: Float, counts: NDArray[np.int64]) -> LocalClusters:
    """Return each class's mean (K, d) as its one local prototype."""
    held = np.flatnonzero(counts)
    return LocalClusters(rows[held], held, counts[held])
