"""A site's learner together with what a restart must find again: the trained model, prototypes and targets."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from algorithms.linear import Bool, Float
from algorithms.prototypes import Targets
from protoseal.files import MODEL, SitePrototypes, write_prototypes
from secure_client.base import Base
from secure_client.bounds import PrototypeBounds
from secure_client.journal import Journal
from secure_client.learner import Evaluation, Learner

_log = logging.getLogger("protoseal.site")
_STATE, _TARGETS, _BASE = "model", "targets", "base"
_OWN, _COUNTS, _FROM = "protoseal.prototypes", "protoseal.counts", "protoseal.trained-from"


class Trainee:
    """Trains each round once, however often it is asked for, and keeps the result in the journal.

    Prototypes are float64 (K, d) and within the public ``bounds``, with a warning in each round in which that changes
    them. After a restart everything is as it was, bit for bit.

    Where an extractor is averaged, a round's training starts from the base in force: the group's extractor, with
    this site's own latest classifier on it. What is evaluated and saved is the model as this site trained it last.
    """

    def __init__(self, learner: Learner, journal: Journal, bounds: PrototypeBounds) -> None:
        """Take up where the journal left off."""
        self._learner, self._journal, self._bounds = learner, journal, bounds
        self._round = 0
        self._rows: NDArray[np.float64] | None = None
        self._counts: NDArray[np.int64] | None = None
        self._trained_from = b""
        self._load_model()
        self._base_round, self._base = self._load_base()
        self._personal = self._load_targets() if self._base is None else self._base.targets()

    def trained(self, round_number: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Prototypes and samples per class after training in this round, with the targets of the one before.

        A site that missed rounds trains once, not once for each of them. Round 0 is before training: prototypes of
        the initial model.
        """
        if self._rows is None or self._counts is None or not self._is_trained_for(round_number):
            return self._train(round_number)
        return self._rows, self._counts

    @property
    def has_trained(self) -> bool:
        """Whether there is anything to save."""
        return self._round > 0

    @property
    def base(self) -> bytes:
        """The hash of what training starts from; empty before the group's first result."""
        return b"" if self._base is None else self._base.hash

    def held_classes(self) -> Bool:
        """Classes that this site has training samples of, (K,)."""
        return self._require_counts() > 0

    def extractor(self) -> NDArray[np.float64]:
        """The model without its classifier after the last training, float64 (p + q,); a secret of this site."""
        return self._learner.extractor_state()

    def take_targets(self, round_number: int, rows: Float, present: Bool) -> None:
        """The targets of the rounds to come: (K, d), read where ``present`` (K,)."""
        self._personal = Targets.of(rows, present)
        content = safetensors.numpy.save({"rows": np.ascontiguousarray(rows), "present": present})
        self._journal.put(_TARGETS, round_number, content)

    def take_base(self, round_number: int, base: bytes, rows: Float, has: Bool, extractor: Float) -> None:
        """What later rounds train from: the result of round ``round_number``, of hash ``base``.

        ``rows`` (K, d) become the targets where ``has`` (K,) is true, ``extractor`` is (p + q,). A site that catches
        up gives the number of the round *before* the one that starts: what it trained after that round, from
        another base, is then void and trained anew, so that it never contributes to a sum under one base what it
        trained from another. Raises ``ValueError`` for shapes that do not fit or values that are not finite.
        """
        taken = Base.of(base, rows, has, extractor)
        if len(taken.extractor) != sum(self._learner.extractor_sizes):
            raise ValueError(f"an extractor of {len(taken.extractor)} numbers does not fit this site's model")
        self._base_round, self._base, self._personal = round_number, taken, taken.targets()
        self._journal.put(_BASE, round_number, taken.to_bytes())

    def evaluate(self) -> Evaluation | None:
        """Accuracy on the site's own test set; it stays at the site. By prototype once there are personalised ones."""
        if self._personal is None:
            return self._learner.evaluate(None)
        return self._learner.evaluate(Targets.of(*self._prototypes().for_inference()))

    def evaluate_on(self, dataset: Dataset[Any]) -> Evaluation:
        """By classifier on another test set than the site's own, which only a simulation has."""
        return self._learner.evaluate_on(dataset, None)

    def save(self, out: Path) -> None:
        """Write ``model.safetensors`` and ``prototypes.safetensors``, which ``protoseal predict`` loads."""
        write_prototypes(out, self._prototypes())
        safetensors.torch.save_file(self._learner.state(), out / MODEL)

    def _prototypes(self) -> SitePrototypes:
        rows, counts = self._rows, self._require_counts()
        if rows is None:
            raise RuntimeError("asked for prototypes before training")
        personal, present = np.zeros_like(rows), np.zeros(len(rows), dtype=np.bool_)
        if self._personal is not None:
            personal, present = self._personal.rows.double().numpy(), self._personal.present.numpy()
        return SitePrototypes(rows, personal, present, counts)

    def _require_counts(self) -> NDArray[np.int64]:
        if self._counts is None:
            raise RuntimeError("asked for a site's classes before it trained")
        return self._counts

    def _is_trained_for(self, round_number: int) -> bool:
        """Trained in that round, from the base in force then: a base of that round or later is its outcome."""
        from_this_base = self._trained_from == self.base or self._base_round >= self._round
        return self._round >= round_number and from_this_base

    def _train(self, round_number: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        if round_number > 0:
            if self._base is not None:
                self._learner.load_extractor(self._base.extractor)
            self._learner.train(round_number, self._personal)
        rows, counts = self._learner.prototypes()
        self._round, self._rows, self._counts = round_number, self._bounded(rows, round_number), counts
        self._trained_from = self.base
        self._save_model()
        return self._rows, counts

    def _bounded(self, rows: NDArray[np.float64], round_number: int) -> NDArray[np.float64]:
        bounded = self._bounds.bounded(rows)
        if bounded.negative:
            _log.warning(
                "%s, round %d: %d prototypes had negative components, which were set to 0: the method's cosines must "
                "not be negative; end the model's features with a ReLU",
                *(self._learner.site, round_number, bounded.negative),
            )
        if bounded.shortened:
            _log.warning(
                "%s, round %d: %d prototypes were longer than norm_bound = %g and were shortened to it; the agreement "
                "should allow for them",
                *(self._learner.site, round_number, bounded.shortened, self._bounds.norm_bound),
            )
        return bounded.rows

    def _save_model(self) -> None:
        state = self._learner.state()
        state[_OWN] = torch.from_numpy(self._rows)
        state[_COUNTS] = torch.from_numpy(self._counts)
        state[_FROM] = torch.tensor(list(self._trained_from), dtype=torch.uint8)
        self._journal.put(_STATE, self._round, safetensors.torch.save(state))

    def _load_model(self) -> None:
        stored = self._journal.get(_STATE)
        if stored is None:
            return
        self._round, content = stored
        state = safetensors.torch.load(content)
        self._rows, self._counts = state.pop(_OWN).numpy(), state.pop(_COUNTS).numpy()
        self._trained_from = state.pop(_FROM).numpy().tobytes()
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
