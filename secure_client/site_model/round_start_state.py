"""Base from which a group's sites train in a round: prototypes and the averaged part of the model, from a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from algorithms.fedplcc import GlobalClusters
from algorithms.gram_matrix import Bool, Float
from algorithms.prototypes import Clusters, Guide, Targets


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
        return safetensors.numpy.save({**arrays, "hash": np.frombuffer(self.hash, dtype=np.uint8)})

    @classmethod
    def from_bytes(cls, content: bytes) -> Base:
        """Read the bytes of :meth:`to_bytes`."""
        arrays = safetensors.numpy.load(content)
        averaged, content_hash = arrays.pop("averaged"), arrays.pop("hash").tobytes()
        return cls(content_hash, arrays, averaged)
