"""Checkpoints of a site in its journal: the trained model with its values, the targets, and the base of training.

Each survives a restart bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import numpy as numpy_tensors
from safetensors import torch as torch_tensors
from torch import Tensor

from algorithms.fedplcc import GlobalClusters, LocalClusters
from algorithms.gram_matrix import Bool, Float
from algorithms.prototypes import Clusters, Guide, Targets
from secure_client.protocol.journal import Journal
from secure_client.training.job import Losses


@dataclass(frozen=True)
class Base:
    """Base of a round: ``received``, the guide's arrays by name, and ``averaged`` (p + q,); all finite float64.

    ``hash`` is the SHA-256 of the base's result: every member of the group states the hash before VALUES, so that no
    member trains from another model undetected. Raises ``ValueError`` for shapes that do not fit or values that are not
    finite.
    """

    hash: bytes
    # Hidden in the representation: FedDBP's fusion contains a site's own prototypes.
    received: Mapping[str, NDArray[Any]] = field(repr=False)
    averaged: NDArray[np.float64] = field(repr=False)

    def __post_init__(self) -> None:
        if self.averaged.ndim != 1 or not np.isfinite(self.averaged).all():
            raise ValueError(
                f"the averaged part, of shape {self.averaged.shape}, is not a vector, or has values that are not finite"
            )
        self.guide()  # runs its checks

    @classmethod
    def of(cls, content_hash: bytes, rows: Float, present: Bool, averaged: Float) -> Base:
        """Build a base with one prototype a class: copy ``rows`` (K, d), valid where ``present`` (K,) is true."""
        # Copies: the arrays may be views of a payload that its owner goes on to change.
        received = {"rows": np.array(rows, dtype=np.float64), "present": np.array(present, dtype=np.bool_)}
        return cls(content_hash, received, np.array(averaged, dtype=np.float64))

    @classmethod
    def of_clusters(cls, content_hash: bytes, clusters: GlobalClusters, averaged: Float) -> Base:
        """Build a base with several prototypes a class, from copies of the arrays."""
        received = {
            "rows": np.array(clusters.rows, dtype=np.float64),
            "labels": np.array(clusters.labels, dtype=np.int64),
            "weights": np.array(clusters.weights, dtype=np.float64),
        }
        return cls(content_hash, received, np.array(averaged, dtype=np.float64))

    @property
    def rows(self) -> NDArray[np.float64]:
        """Return the rows of the prototypes, (K, d) or (G, d)."""
        return self.received["rows"]

    @property
    def present(self) -> NDArray[np.bool_]:
        """Return the classes that have a row, (K,), where each class has one."""
        return self.received["present"]

    def guide(self) -> Guide | None:
        """Return the guide of the site's features; None before the first useful result."""
        if not self.received:
            return None
        if "present" in self.received:
            return Targets.of(self.rows, self.present)
        return Clusters.of(self.rows, self.received["labels"], self.received["weights"])

    def to_bytes(self) -> bytes:
        """Return the bytes for the journal."""
        arrays = {**self.received, "averaged": self.averaged}
        return numpy_tensors.save({**arrays, "hash": np.frombuffer(self.hash, dtype=np.uint8)})

    @classmethod
    def from_bytes(cls, content: bytes) -> Base:
        """Read the bytes of :meth:`to_bytes`."""
        arrays = numpy_tensors.load(content)
        averaged, content_hash = arrays.pop("averaged"), arrays.pop("hash").tobytes()
        return cls(content_hash, arrays, averaged)


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


_STATE, _TARGETS, _BASE = "model", "targets", "base"
_REMEMBERED = "remembered "


class Checkpoints:
    """Latest trained state, targets and base of a site; each survives a restart bit for bit.

    :meth:`remember` keeps the three beside the current ones, for :meth:`go_back`.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def put_trained(self, trained: TrainedValues, state: dict[str, Tensor]) -> None:
        """Keep what training gave, and the ``state`` of the model with it."""
        self.journal.put(_STATE, trained.round, trained.to_bytes(state))

    def load_trained(self) -> tuple[TrainedValues, dict[str, Tensor]] | None:
        """Return what :meth:`put_trained` kept last; None before."""
        stored = self.journal.get(_STATE)
        return None if stored is None else TrainedValues.from_bytes(*stored)

    def put_targets(self, round_number: int, rows: Float, present: Bool) -> None:
        """Keep the targets (K, d) of later rounds, read where ``present`` (K,)."""
        content = numpy_tensors.save({"rows": np.ascontiguousarray(rows), "present": present})
        self.journal.put(_TARGETS, round_number, content)

    def load_targets(self) -> Targets | None:
        """Return the targets kept last; None before."""
        stored = self.journal.get(_TARGETS)
        if stored is None:
            return None
        arrays = numpy_tensors.load(stored[1])
        return Targets.of(arrays["rows"], arrays["present"])

    def put_base(self, round_number: int, base: Base) -> None:
        """Keep the base that training starts from, of round ``round_number``."""
        self.journal.put(_BASE, round_number, base.to_bytes())

    def load_base(self) -> tuple[int, Base | None]:
        """Return the base kept last and its round; 0 and None before."""
        stored = self.journal.get(_BASE)
        return (0, None) if stored is None else (stored[0], Base.from_bytes(stored[1]))

    def remember(self) -> None:
        """Keep the present state beside the current one, in place of what was remembered before."""
        for name in (_STATE, _TARGETS, _BASE):
            stored = self.journal.get(name)
            if stored is not None:
                self.journal.put(_REMEMBERED + name, *stored)

    @property
    def remembered(self) -> int:
        """The round that was trained when :meth:`remember` was last called; 0 if it never was."""
        stored = self.journal.get(_REMEMBERED + _STATE)
        return 0 if stored is None else stored[0]

    def go_back(self) -> None:
        """Make the remembered state the latest one, for good."""
        for name in (_STATE, _TARGETS, _BASE):
            stored = self.journal.get(_REMEMBERED + name)
            if stored is not None:
                self.journal.put(name, *stored)
