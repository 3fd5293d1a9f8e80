"""Values of a site's last training, and what a method exchanges of them: prototypes and scores, within their bounds.

The journal keeps the values with the model, so that a restart changes no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import torch as torch_tensors
from torch import Tensor

from agreement import AveragingSection
from algorithms import metrics
from algorithms.fedplcc import LocalClusters
from algorithms.gram_matrix import Bool, Float
from algorithms.prototypes import Guide
from secure_client.error_containment import run_or_fallback
from secure_client.privacy.bounds import Bounded, PrototypeBounds, saturate
from secure_client.privacy.noisy_prototypes import NoisyPrototypes
from secure_client.training.feature_pass import EmbeddedBatch
from secure_client.training.job import Losses
from secure_client.training.learner import Learner

_OWN, _COUNTS, _FROM = "protoseal.prototypes", "protoseal.counts", "protoseal.trained-from"
_SCORES, _LOSSES, _LOCAL = "protoseal.scores", "protoseal.losses", "protoseal.local-"
_SHORTENED, _RELEASED = "protoseal.shortened", "protoseal.values-released-in"


@dataclass(frozen=True, repr=False)
class TrainedValues:
    """The outcome of a round's training, beside the model: a secret of the site.

    ``counts`` int64 (K,) are samples of each class; ``rows`` float64 (K, d) the prototypes, or None; ``scores`` float64
    (K, d) Fisher scores; ``base`` the hash of what the training started from. ``losses`` are None where training
    failed, and in round 0. ``shortened`` is the number of sent prototypes that were shortened to the norm bound, None
    where no exact prototypes are sent. ``released`` is the round of the noisy release that made counts and prototypes,
    None if they are exact; under noise nothing else may leave the site
    (:func:`secure_client.protocol.sent_values.check_released`).
    """

    round: int
    counts: NDArray[np.int64]
    base: bytes
    rows: Float | None = None
    scores: Float | None = None
    local: LocalClusters | None = None
    losses: Losses | None = None
    shortened: int | None = None
    released: int | None = None

    def __repr__(self) -> str:
        return f"TrainedValues(round={self.round}, …)"

    def held_classes(self) -> Bool:
        """Return the classes (K,) of the training samples, or, with noise, those present by the noisy counts."""
        return self.counts > 0

    @property
    def shortened_share(self) -> float | None:
        """Share of the sent prototypes that were shortened; None where ``shortened`` is."""
        if self.shortened is None:
            return None
        sent = int(self.held_classes().sum()) if self.local is None else len(self.local.rows)
        return self.shortened / sent if sent else 0.0

    def to_bytes(self, model: Mapping[str, Tensor]) -> bytes:
        """Return this outcome and the ``model``'s state as one safetensors file."""
        # One file for model and values, so that no crash leaves the values of one training beside another's model.
        state = {**model, _COUNTS: torch.from_numpy(self.counts)}
        state[_FROM] = torch.tensor(list(self.base), dtype=torch.uint8)
        if self.rows is not None:
            state[_OWN] = torch.from_numpy(self.rows)
        if self.scores is not None:
            state[_SCORES] = torch.from_numpy(self.scores)
        if self.local is not None:
            state |= {_LOCAL + name: torch.from_numpy(array) for name, array in vars(self.local).items()}
        if self.losses is not None:
            state[_LOSSES] = torch.tensor(astuple(self.losses), dtype=torch.float64)
        if self.shortened is not None:
            state[_SHORTENED] = torch.tensor(self.shortened)
        if self.released is not None:
            state[_RELEASED] = torch.tensor(self.released)
        return torch_tensors.save(state)

    @classmethod
    def from_bytes(cls, number: int, content: bytes) -> tuple[Self, dict[str, Tensor]]:
        """Return what :meth:`to_bytes` stored for round ``number``, and the model's state."""
        state = torch_tensors.load(content)
        local = {name: state.pop(name).numpy() for name in list(state) if name.startswith(_LOCAL)}
        values = cls(
            number,
            counts=state.pop(_COUNTS).numpy(),
            base=state.pop(_FROM).numpy().tobytes(),
            rows=state.pop(_OWN).numpy() if _OWN in state else None,
            scores=state.pop(_SCORES).numpy() if _SCORES in state else None,
            local=LocalClusters(**{name.removeprefix(_LOCAL): array for name, array in local.items()})
            if local
            else None,
            losses=Losses(*state.pop(_LOSSES).tolist()) if _LOSSES in state else None,
            shortened=int(state.pop(_SHORTENED)) if _SHORTENED in state else None,
            released=int(state.pop(_RELEASED)) if _RELEASED in state else None,
        )
        return values, state


class ExchangedValues:
    """Values of the learner's model after its last training; secrets of the site until a protection made them.

    They come from one release where there is noise, else from one exact pass. Prototypes are float64 (K, d) and within
    the public ``bounds``, with a warning in each round in which the bounds change them. Every class of the training
    samples has one, which is zero where the model makes zeros of all its samples: a coordinator chooses the model, and
    a missing prototype would tell it what the model made of single records.
    """

    def __init__(
        self,
        learner: Learner,
        bounds: PrototypeBounds,
        noisy: NoisyPrototypes | None,
        averaging: AveragingSection | None,
    ) -> None:
        """``averaging`` has the bounds of the averaged part, if any."""
        self._learner = learner
        self._bounds = bounds
        self._noisy = noisy
        self._averaging = averaging
        self.last: TrainedValues | None = None
        """Values of the last training, or those that a checkpoint had; None before any."""

    def compute(
        self,
        number: int,
        base_hash: bytes,
        guide: Guide | None,
        embedded: Iterable[EmbeddedBatch] | None = None,
    ) -> TrainedValues:
        """Return the values after the training of a round from this base; errors as of a release.

        Without noise, ``embedded`` are the features of the training set, if they are known already.
        """
        bare = TrainedValues(number, self._learner.counts, base_hash)
        if self._noisy is None:
            if not self._learner.exchanges_prototypes:
                return bare
            return self._compute_exact(bare, self._learner.embed() if embedded is None else embedded)
        # From here on nothing may depend on a record but through this release: counts, rows and scores all follow it.
        drawn = self._noisy.release_round(number, self._learner.embed(), guide)
        # At the noisy prototypes, and not the exact ones: scores change targets, which change later models.
        scores = self._compute_scores(lambda: self._learner.scores_at(drawn.rows, drawn.present), drawn.rows)
        return replace(
            bare,
            counts=drawn.counts,
            rows=drawn.rows,
            local=drawn.local,
            scores=scores,
            released=drawn.round,
        )

    @property
    def has_trained(self) -> bool:
        """True if a trained model exists; round 0 comes before training."""
        return self.last is not None and self.last.round > 0

    def require_last(self) -> TrainedValues:
        """Return the values of the last training; raise ``RuntimeError`` before any."""
        if self.last is None:
            raise RuntimeError("prototypes or classes were requested before training")
        return self.last

    def rows(self) -> NDArray[np.float64]:
        """Return prototypes (K, d); for a method without prototypes, compute them now from the present model."""
        last = self.require_last()
        if last.rows is not None:
            return last.rows
        if self._noisy is not None:
            raise RuntimeError("prototypes were requested before a release")
        rows = self._clip_rows(self._learner.prototypes()[0], last.round).rows
        self.last = replace(last, rows=rows)
        return rows

    def latest(self) -> tuple[NDArray[np.float64], Bool]:
        """Return prototypes (K, d) of the last training, and the classes with a prototype."""
        return self.rows(), self.held_classes()

    def held_classes(self) -> Bool:
        """Return the classes (K,) with prototypes of this site: those of its training samples.

        The classes do not depend on what a model made of the samples. With noise, they follow from the released counts.
        """
        return self.require_last().held_classes()

    def averaged_part(self) -> NDArray[np.float64]:
        """Return the averaged part of the model after the last training, float64 (p + q,).

        Values are clamped to the agreed bounds, with a warning if this changes any.
        """
        vector = self._learner.averaged_vector()
        if self._averaging is None:
            return vector
        # Clamped, not refused: the coordinator chose the base, and would learn from a refusal where training led.
        number = 0 if self.last is None else self.last.round
        return saturate(vector, self._averaging, f"{self._learner.site}, round {number}")

    def scores(self) -> NDArray[np.float64]:
        """Return Fisher scores (K, d) of the last training's prototypes, which never leave this site (FedDBP)."""
        scores = None if self.last is None else self.last.scores
        if scores is None:
            raise RuntimeError("scores were requested before training, or of a method without scores")
        return scores

    def local(self) -> LocalClusters:
        """Return local prototypes of the last training, within the bounds (FedPLCC, FPL, FedPLVM).

        A prototype is zero only where its class has no other.
        """
        local = None if self.last is None else self.last.local
        if local is None:
            raise RuntimeError(
                "local prototypes were requested before training, or of a method without local prototypes"
            )
        return local

    @property
    def label_entropy(self) -> float:
        """Entropy of the site's labels, in nats; exact, and a secret of this site."""
        return metrics.entropy(self._learner.counts)

    def _compute_exact(self, bare: TrainedValues, embedded: Iterable[EmbeddedBatch]) -> TrainedValues:
        rows, counts = self._learner.prototypes(embedded)
        scores = self._compute_scores(lambda: self._learner.scores(embedded), rows)
        local = run_or_fallback(
            lambda: self._learner.local_clusters(embedded),
            lambda: _class_means(np.nan_to_num(rows), counts),
            f"{self._learner.site}: clustering",
        )
        if local is None:
            bounded = self._clip_rows(rows, bare.round)
            return replace(bare, rows=bounded.rows, scores=scores, shortened=bounded.shortened)
        # Only these are sent, so only their changes are logged; class means stay at the site.
        few = self._bounds.limit_per_class(local.without_zeros())
        bounded = self._clip_rows(few.rows, bare.round)
        sent = replace(few, rows=bounded.rows)
        means = self._bounds.bound(rows).rows
        return replace(bare, rows=means, scores=scores, local=sent, shortened=bounded.shortened)

    def _compute_scores(self, scores: Callable[[], Float | None], rows: Float) -> Float | None:
        return run_or_fallback(scores, lambda: np.zeros_like(rows), f"{self._learner.site}: Fisher scores")

    def _clip_rows(self, rows: NDArray[np.float64], number: int) -> Bounded:
        bounded = self._bounds.bound(rows)
        self._bounds.warn(bounded, f"{self._learner.site}, round {number}")
        return bounded


def _class_means(rows: Float, counts: NDArray[np.int64]) -> LocalClusters:
    """Return each class's mean (K, d) as its one local prototype."""
    held = np.flatnonzero(counts)
    return LocalClusters(rows[held], held, counts[held])
