"""What a group's sites start a round from: the group's prototypes and extractor, as the last RESULT gave them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from algorithms.linear import Bool, Float
from algorithms.prototypes import Targets


@dataclass(frozen=True)
class Base:
    """``rows`` (K, d) are read where ``present`` (K,); ``extractor`` is (p + q,). All finite, float64.

    ``hash`` is the SHA-256 of the result that it came in: every member of the group states it before values are
    asked, so that none trains from another model unnoticed. Raises ``ValueError`` for shapes that do not fit or
    values that are not finite.
    """

    hash: bytes
    rows: NDArray[np.float64]
    present: NDArray[np.bool_]
    extractor: NDArray[np.float64]

    @classmethod
    def of(cls, content_hash: bytes, rows: Float, present: Bool, extractor: Float) -> Base:
        """Copies in the types that are kept."""
        if extractor.ndim != 1 or not np.isfinite(extractor).all():
            raise ValueError(f"an extractor of shape {extractor.shape}, or with values that are not finite")
        Targets.of(rows, present)  # its checks
        return cls(
            content_hash,
            np.array(rows, dtype=np.float64),
            np.array(present, dtype=np.bool_),
            np.array(extractor, dtype=np.float64),
        )

    def targets(self) -> Targets:
        """What the site's features are aligned with."""
        return Targets.of(self.rows, self.present)

    def to_bytes(self) -> bytes:
        """For the journal."""
        arrays = {"rows": self.rows, "present": self.present, "extractor": self.extractor}
        return safetensors.numpy.save({**arrays, "hash": np.frombuffer(self.hash, dtype=np.uint8)})

    @classmethod
    def from_bytes(cls, content: bytes) -> Base:
        """What :meth:`to_bytes` wrote."""
        arrays = safetensors.numpy.load(content)
        return cls.of(arrays["hash"].tobytes(), arrays["rows"], arrays["present"], arrays["extractor"])
