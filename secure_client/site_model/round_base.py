"""Base that a group's sites train from in a round: prototypes and the averaged part of the model, from a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from algorithms.fedplcc import GlobalClusters
from algorithms.gram import Bool, Float
from algorithms.prototypes import Clusters, Guide, Targets


@dataclass(frozen=True)
class Base:
    """``received`` are the arrays that make a guide, by name, if any; ``averaged`` is (p + q,). All finite, float64.

    ``hash`` is the SHA-256 of the result that it came in: every member of the group states it before values are
    asked, so that none trains from another model unnoticed. Raises ``ValueError`` for shapes that do not fit or
    values that are not finite.
    """

    hash: bytes
    # Not to be shown: what FedDBP fuses has a site's own prototypes in it.
    received: Mapping[str, NDArray[Any]] = field(repr=False)
    averaged: NDArray[np.float64] = field(repr=False)

    def __post_init__(self) -> None:
        if self.averaged.ndim != 1 or not np.isfinite(self.averaged).all():
            raise ValueError(
                f"an averaged part of shape {self.averaged.shape}, or with values that are not finite"
            )
        self.guide()  # its checks

    @classmethod
    def of(cls, content_hash: bytes, rows: Float, present: Bool, averaged: Float) -> Base:
        """One prototype a class: ``rows`` (K, d) are read where ``present`` (K,). Copies in the types that are kept."""
        received = {"rows": np.array(rows, dtype=np.float64), "present": np.array(present, dtype=np.bool_)}
        return cls(content_hash, received, np.array(averaged, dtype=np.float64))

    @classmethod
    def of_clusters(cls, content_hash: bytes, clusters: GlobalClusters, averaged: Float) -> Base:
        """Several prototypes a class. Copies in the types that are kept."""
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
        """For the journal."""
        arrays = {**self.received, "averaged": self.averaged}
        return safetensors.numpy.save({**arrays, "hash": np.frombuffer(self.hash, dtype=np.uint8)})

    @classmethod
    def from_bytes(cls, content: bytes) -> Base:
        """Read the bytes of :meth:`to_bytes`."""
        arrays = safetensors.numpy.load(content)
        averaged, content_hash = arrays.pop("averaged"), arrays.pop("hash").tobytes()
        return cls(content_hash, arrays, averaged)
