"""Where each value of a (K, d) matrix stands in the slots of its ciphertexts.

A slot holds two features, as real and imaginary part. With Kpad the next power of two ≥ K, 2 or more, and F = 4096/Kpad
slots for a class in a ciphertext, feature j of class k stands in slot (j mod F)·Kpad + k of ciphertext ⌊j / 2F⌋, in the
real part when j mod 2F < F, else in the imaginary one. Rotations by Kpad, 2·Kpad, … then sum over slots and leave each
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
Complex = NDArray[np.complex128]


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
        """Kpad. Rotations by odd steps would change the sign of the imaginary unit as it is multiplied by."""
        return 1 << max(1, (self.classes - 1).bit_length())

    @property
    def copies(self) -> int:
        """F: slots of a class in one ciphertext, each with room for two features."""
        return SLOTS // self.stride

    @property
    def parts(self) -> int:
        """Ciphertexts that d features need."""
        return -(-self.dim // (2 * self.copies))

    @property
    def rotations(self) -> list[int]:
        """Steps whose rotations, each added to what came before, sum over a class's slots of a ciphertext."""
        return [self.stride << step for step in range(self.copies.bit_length() - 1)]

    def pack(self, rows: Float) -> list[Complex]:
        """Rows (K, d) as one vector of slots (4096,) for each ciphertext."""
        features = np.zeros((self.parts * 2 * self.copies, self.stride))
        features[: self.dim, : self.classes] = rows.T
        halves = features.reshape(self.parts, 2, SLOTS)
        return list(halves[:, 0] + 1j * halves[:, 1])

    def unpack(self, vectors: Sequence[Complex]) -> Float:
        """The inverse of :meth:`pack`; what stands in other slots is dropped."""
        return self.join([self.replicas(vector) for vector in vectors])

    def join(self, parts: Sequence[Complex]) -> Float:
        """Rows (K, d) from the classes' slots (K, F) of each ciphertext."""
        halves = [half for part in parts for half in (part.real, part.imag)]
        return np.concatenate(halves, axis=1)[:, : self.dim]

    def replicate(self, values: Float) -> Float:
        """One value for each class, shape (K,), in all of the class's slots (4096,)."""
        slots = np.zeros((self.copies, self.stride))
        slots[:, : self.classes] = values
        return slots.reshape(SLOTS)

    def replicas(self, vector: Complex) -> Complex:
        """All slots of each class, shape (K, F): for a replicated value, its copies."""
        return vector.reshape(self.copies, self.stride)[:, : self.classes].T
