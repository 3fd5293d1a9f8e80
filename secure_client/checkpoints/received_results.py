"""Results that a site has received: the base that its next training starts from, and the targets of its features.

The journal keeps both, so that a restart changes no bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import numpy as numpy_tensors

from algorithms.fedplcc import GlobalClusters
from algorithms.gram_matrix import Bool, Float
from algorithms.prototypes import Clusters, Guide, Targets
from secure_client.checkpoints.exchanged_values import ExchangedValues
from secure_client.protocol.journal import Journal
from secure_client.training.learner import Learner

TARGETS, BASE = "targets", "base"
"""Names of the documents in the journal."""


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
    def of(cls, result_hash: bytes, rows: Float, present: Bool, averaged: Float) -> Base:
        """Build a base with one prototype a class: copy ``rows`` (K, d), valid where ``present`` (K,) is true."""
        # Copies: the arrays may be views of a payload that its owner goes on to change.
        received = {"rows": np.array(rows, dtype=np.float64), "present": np.array(present, dtype=np.bool_)}
        return cls(result_hash, received, np.array(averaged, dtype=np.float64))

    @classmethod
    def of_clusters(cls, result_hash: bytes, clusters: GlobalClusters, averaged: Float) -> Base:
        """Build a base with several prototypes a class, from copies of the arrays."""
        received = {
            "rows": np.array(clusters.rows, dtype=np.float64),
            "labels": np.array(clusters.labels, dtype=np.int64),
            "weights": np.array(clusters.weights, dtype=np.float64),
        }
        return cls(result_hash, received, np.array(averaged, dtype=np.float64))

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
        averaged, result_hash = arrays.pop("averaged"), arrays.pop("hash").tobytes()
        return cls(result_hash, arrays, averaged)


class ReceivedResults:
    """Present base and targets of a site, which the journal keeps."""

    def __init__(self, learner: Learner, journal: Journal, values: ExchangedValues) -> None:
        self._learner = learner
        self._journal = journal
        self._values = values
        self.base: Base | None = None
        """Base of training; None before the group's first result."""
        self.base_round = 0
        """Round whose result is the base."""
        self.guide: Guide | None = None
        """Targets of training; None before the first useful result."""

    @property
    def base_hash(self) -> bytes:
        """Hash of the base of training; empty before the group's first result."""
        return b"" if self.base is None else self.base.hash

    @property
    def averaged(self) -> Float | None:
        """Averaged part of the base, (p + q,); None before the group's first result."""
        return None if self.base is None else self.base.averaged

    def load(self) -> None:
        """Read what the journal has. A method has either a base, whose rows are the targets, or targets alone."""
        base, targets = self._journal.get(BASE), self._journal.get(TARGETS)
        self.base_round = 0
        self.base = None
        self.guide = None
        if base is not None:
            self.base_round = base[0]
            self.base = Base.from_bytes(base[1])
            self.guide = self.base.guide()
        elif targets is not None:
            arrays = numpy_tensors.load(targets[1])
            self.guide = Targets.of(arrays["rows"], arrays["present"])

    def take_targets(self, round_number: int, rows: Float, present: Bool) -> None:
        """Set the targets of later rounds: (K, d), valid where ``present`` (K,) is true."""
        self.guide = Targets.of(rows, present)
        content = numpy_tensors.save({"rows": np.ascontiguousarray(rows), "present": present})
        self._journal.put(TARGETS, round_number, content)

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
        # Under the new hash: a site that went on stating the old one would show that it could not use the result.
        present = self.base or Base(b"", {}, self._values.averaged_part())
        self._take(round_number, replace(present, hash=base))

    def _take(self, round_number: int, base: Base) -> None:
        if len(base.averaged) != sum(self._learner.averaged_sizes):
            raise ValueError(
                f"{len(base.averaged)} averaged numbers do not fit the averaged part of this site's model"
            )
        self.base_round = round_number
        self.base = base
        self.guide = base.guide()
        self._journal.put(BASE, round_number, base.to_bytes())
