"""A site's learner together with what a restart must find again: the trained model, prototypes and targets."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
from numpy.typing import NDArray

from algorithms.linear import Bool, Float
from algorithms.prototypes import Targets, project_to_norm
from protoseal.files import MODEL, SitePrototypes, write_prototypes
from secure_client.journal import Journal
from secure_client.learner import Evaluation, Learner

_log = logging.getLogger("protoseal.site")
_STATE, _TARGETS = "model", "targets"
_OWN, _COUNTS = "protoseal.prototypes", "protoseal.counts"


class Trainee:
    """Trains each round once, however often it is asked for, and keeps the result in the journal.

    Prototypes are float64 (K, d) and have at most the public norm ``norm_bound``.
    """

    def __init__(self, learner: Learner, journal: Journal, norm_bound: float) -> None:
        """Take up where the journal left off."""
        self._learner, self._journal, self._norm_bound = learner, journal, norm_bound
        self._round = 0
        self._rows: NDArray[np.float64] | None = None
        self._counts: NDArray[np.int64] | None = None
        self._load_model()
        self._personal = self._load_targets()

    def trained(self, round_number: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Prototypes and samples per class after training in this round, with the targets of the one before.

        A site that missed rounds trains once, not once for each of them.
        """
        if self._round < round_number or self._rows is None or self._counts is None:
            self._learner.train(round_number, self._personal)
            rows, counts = self._learner.prototypes()
            rows, shortened = project_to_norm(rows, self._norm_bound)
            if shortened:
                _log.warning(
                    "%d prototypes were longer than norm_bound = %g and were shortened to it; "
                    "the agreement should allow for them",
                    shortened,
                    self._norm_bound,
                )
            self._round, self._rows, self._counts = round_number, rows, counts
            self._save_model()
            return rows, counts
        return self._rows, self._counts

    @property
    def has_trained(self) -> bool:
        """Whether there is anything to save."""
        return self._rows is not None

    def held_classes(self) -> Bool:
        """Classes that this site has training samples of, (K,)."""
        return self._require_counts() > 0

    def take_targets(self, round_number: int, rows: Float, present: Bool) -> None:
        """The targets of the rounds to come: (K, d), read where ``present`` (K,)."""
        self._personal = Targets.of(rows, present)
        content = safetensors.numpy.save({"rows": np.ascontiguousarray(rows), "present": present})
        self._journal.put(_TARGETS, round_number, content)

    def evaluate(self) -> Evaluation | None:
        """Accuracy on the site's own test set; it stays at the site. By prototype once there are personalised ones."""
        if self._personal is None:
            return self._learner.evaluate(None)
        return self._learner.evaluate(Targets.of(*self._prototypes().for_inference()))

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

    def _save_model(self) -> None:
        state = self._learner.state()
        state[_OWN] = torch.from_numpy(self._rows)
        state[_COUNTS] = torch.from_numpy(self._counts)
        self._journal.put(_STATE, self._round, safetensors.torch.save(state))

    def _load_model(self) -> None:
        stored = self._journal.get(_STATE)
        if stored is None:
            return
        self._round, content = stored
        state = safetensors.torch.load(content)
        self._rows, self._counts = state.pop(_OWN).numpy(), state.pop(_COUNTS).numpy()
        self._learner.load(state)

    def _load_targets(self) -> Targets | None:
        stored = self._journal.get(_TARGETS)
        if stored is None:
            return None
        arrays = safetensors.numpy.load(stored[1])
        return Targets.of(arrays["rows"], arrays["present"])
