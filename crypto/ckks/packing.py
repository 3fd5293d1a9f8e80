"""Packing of a (K, d) matrix into the slots of ciphertexts.

A slot has two features, as real and imaginary part. With Kpad the next power of two ≥ K, at least 2, and F = 4096/Kpad
slots for a class in a ciphertext, feature j of class k is in slot (j mod F)·Kpad + k of ciphertext ⌊j / 2F⌋, in the
real part if j mod 2F < F, else in the imaginary part. Rotations by Kpad, 2·Kpad, … then sum over slots and leave each
class's sum in all of its slots, for all classes at once. All other slots are zero.
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
    """Layout for K classes and d features."""

    classes: int
    dim: int

    def __post_init__(self) -> None:
        if not 1 <= self.classes <= SLOTS:
            raise PrecisionError(f"a ciphertext can hold 1 to {SLOTS} classes, not {self.classes}")

    @property
    def stride(self) -> int:
        """Stride Kpad, which is even because odd rotations would change the sign of the imaginary unit."""
        return 1 << max(1, (self.classes - 1).bit_length())

    @property
    def copies(self) -> int:
        """Number F of a class's slots in one ciphertext, each with room for two features."""
        return SLOTS // self.stride

    @property
    def parts(self) -> int:
        """Number of ciphertexts that d features need."""
        return -(-self.dim // (2 * self.copies))

    @property
    def rotations(self) -> list[int]:
        """Steps of the rotations that sum a class's slots when each rotation is added to its input."""
        return [self.stride << step for step in range(self.copies.bit_length() - 1)]

    def pack(self, rows: Float) -> list[Complex]:
        """Pack rows (K, d) into one vector of slots (4096,) for each ciphertext."""
        features = np.zeros((self.parts * 2 * self.copies, self.stride))
        features[: self.dim, : self.classes] = rows.T
        halves = features.reshape(self.parts, 2, SLOTS)
        return list(halves[:, 0] + 1j * halves[:, 1])

    def unpack(self, vectors: Sequence[Complex]) -> Float:
        """Unpack rows (K, d) from the vectors of :meth:`pack`, ignoring other slots."""
        return self.join([self.replicas(vector) for vector in vectors])

    def join(self, parts: Sequence[Complex]) -> Float:
        """Join the classes' slots (K, F) of each ciphertext to rows (K, d)."""
        halves = [half for part in parts for half in (part.real, part.imag)]
        return np.concatenate(halves, axis=1)[:, : self.dim]

    def replicate(self, values: Float) -> Float:
        """Copy each class's value (K,) to all of the class's slots (4096,)."""
        slots = np.zeros((self.copies, self.stride))
        slots[:, : self.classes] = values
        return slots.reshape(SLOTS)

    def replicas(self, vector: Complex) -> Complex:
        """Return all slots of each class, (K, F), which are copies of a replicated value."""
        return vector.reshape(self.copies, self.stride)[:, : self.classes].T
