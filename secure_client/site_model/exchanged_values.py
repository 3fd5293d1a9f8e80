"""Values that a method exchanges of a trained model: prototypes, local prototypes and scores, within their bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from algorithms.fedplcc import LocalClusters
from algorithms.gram_matrix import Float
from algorithms.prototypes import Guide
from secure_client.error_containment import contained
from secure_client.privacy.bounds import Bounded, PrototypeBounds
from secure_client.privacy.noisy_prototypes import NoisyPrototypes
from secure_client.site_model.training_outcome import Trained
from secure_client.training.learner import Learner


class ExchangedValues:
    """Values of the learner's present model: one release where there is noise, else those of one exact pass.

    Prototypes are float64 (K, d) and within the public ``bounds``, with a warning in each round in which that changes
    them. Every class of the training samples has one, which is zero where the model makes zeros of all its samples: a
    coordinator chooses the model, and a missing prototype would tell it what the model made of single records.
    """

    def __init__(self, learner: Learner, bounds: PrototypeBounds, noisy: NoisyPrototypes | None) -> None:
        self._learner, self._bounds, self._noisy = learner, bounds, noisy

    def of_round(self, number: int, base: bytes, guide: Guide | None) -> Trained:
        """Return the values after the training of a round from this base; errors as of a release."""
        bare = Trained(number, self._learner.counts, base)
        if self._noisy is None:
            return self._exact(bare) if self._learner.exchanges_prototypes else bare
        drawn = self._noisy.of_round(number, self._learner.embedded(), guide)
        scores = self._scored(lambda: self._learner.scores_at(drawn.rows, drawn.present), drawn.rows)
        return replace(
            bare,
            counts=drawn.counts,
            rows=drawn.rows,
            local=drawn.local,
            scores=scores,
            released=drawn.round,
        )

    def rows(self, number: int) -> NDArray[np.float64]:
        """Return exact prototypes of the present model, of round ``number``, for a method that exchanges none."""
        if self._noisy is not None:
            raise RuntimeError("prototypes were requested before a release")
        return self._bounded(self._learner.prototypes()[0], number).rows

    def _exact(self, bare: Trained) -> Trained:
        embedded = self._learner.embedded()
        rows, counts = self._learner.prototypes(embedded)
        scores = self._scored(lambda: self._learner.scores(embedded), rows)
        local = contained(
            lambda: self._learner.local_clusters(embedded),
            lambda: _class_means(np.nan_to_num(rows), counts),
            f"{self._learner.site}: clustering",
        )
        if local is None:
            bounded = self._bounded(rows, bare.round)
            return replace(bare, rows=bounded.rows, scores=scores, shortened=bounded.shortened)
        # Only these are sent, so only their changes are logged; class means stay at the site.
        few = self._bounds.few(local.without_zeros())
        bounded = self._bounded(few.rows, bare.round)
        sent = replace(few, rows=bounded.rows)
        means = self._bounds.bounded(rows).rows
        return replace(bare, rows=means, scores=scores, local=sent, shortened=bounded.shortened)

    def _scored(self, scores: Callable[[], Float | None], rows: Float) -> Float | None:
        return contained(scores, lambda: np.zeros_like(rows), f"{self._learner.site}: Fisher scores")

    def _bounded(self, rows: NDArray[np.float64], number: int) -> Bounded:
        bounded = self._bounds.bounded(rows)
        self._bounds.warn_of(bounded, f"{self._learner.site}, round {number}")
        return bounded


def _class_means(rows: Float, counts: NDArray[np.int64]) -> LocalClusters:
    """Return each class's mean (K, d) as its one local prototype."""
    held = np.flatnonzero(counts)
    return LocalClusters(rows[held], held, counts[held])
