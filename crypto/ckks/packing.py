"""Where each value of a (K, d) matrix stands in the slots of its ciphertexts.

Feature j of class k stands in slot (j mod F)·Kpad + k of ciphertext ⌊j / F⌋, with Kpad the next power of two ≥ K
and F = 4096/Kpad features in a ciphertext. Rotations by Kpad, 2·Kpad, … then sum over features and leave each
class's sum in all of its slots, for all classes at once. Slots that are not named hold zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crypto.ckks.parameters import SLOTS
from crypto.errors import PrecisionError

Float = NDArray[np.float64]


@dataclass(frozen=True)
class Packing:
    """The layout for K classes and d features."""

    classes: int
    dim: int

    def __post_init__(self) -> None:
        if not 1 <= self.classes <= SLOTS:
            raise PrecisionError(f"a ciphertext carries 1 to {SLOTS} classes, not {self.classes}")

    @property
    def stride(self) -> int:
        """Kpad."""
        return 1 << (self.classes - 1).bit_length()

    @property
    def features(self) -> int:
        """F: features in one ciphertext."""
        return SLOTS // self.stride

    @property
    def parts(self) -> int:
        """Ciphertexts that d features need."""
        return -(-self.dim // self.features)

    @property
    def rotations(self) -> list[int]:
        """Steps whose rotations, each added to what came before, sum over the features of a ciphertext."""
        return [self.stride << step for step in range(self.features.bit_length() - 1)]

    def pack(self, rows: Float) -> list[Float]:
        """Rows (K, d) as one vector of slots (4096,) for each ciphertext."""
        slots = np.zeros((self.parts * self.features, self.stride))
        slots[: self.dim, : self.classes] = rows.T
        return list(slots.reshape(self.parts, SLOTS))

    def unpack(self, vectors: Sequence[Float]) -> Float:
        """The inverse of :meth:`pack`; what stands in other slots is dropped."""
        slots = np.concatenate(vectors).reshape(-1, self.stride)
        return slots[: self.dim, : self.classes].T

    def replicate(self, values: Float) -> Float:
        """One value for each class, shape (K,), in all of the class's slots (4096,)."""
        slots = np.zeros((self.features, self.stride))
        slots[:, : self.classes] = values
        return slots.reshape(SLOTS)

    def replicas(self, vector: Float) -> Float:
        """All slots of each class, shape (K, F): for a replicated value, its copies."""
        return vector.reshape(self.features, self.stride)[:, : self.classes].T
