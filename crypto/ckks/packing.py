"""Packing of rows, and of vectors of bounded values, into the slots of ciphertexts.

A slot has two real values, as real and imaginary part. Additions, and products with real numbers, keep them separate.

:class:`Packing` lays out a (K, d) matrix for products. With Kpad the next power of two ≥ K, at least 2, and
F = 4096/Kpad slots for a class in a ciphertext, feature j of class k is in slot (j mod F)·Kpad + k of ciphertext
⌊j / 2F⌋, in the real part if j mod 2F < F, else in the imaginary part. Rotations by Kpad, 2·Kpad, … then sum over slots
and leave each class's sum in all of its slots, for all classes at once. All other slots are zero.

:class:`BoundedVector` lays out a vector (L,) for sums: each value is divided by its bound, in the order of the vector.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crypto.ckks.parameters import SLOTS
from crypto.errors import ImplausibleError, MalformedError, PrecisionError
from crypto.fixed_point import Float, Segment, check_bound, segment_slices

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
        # Features go down the rows and classes across, so that slot (j mod F)·Kpad + k follows by reading row by row.
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


VALUES_PER_CIPHERTEXT = 2 * SLOTS
ROOM_BITS = 58
"""Bits of the largest value, in units of 1/scale; the last modulus has 60, so values are far from wrapping around."""
MOST_SCALE_BITS = 50
"""Bits of the largest scale, beyond which float64 encoding is coarser than the ciphertext's own error."""
FRESH_ERROR = 300.0
"""Standard deviation of a fresh ciphertext's error in each part of a slot, in units of 1/scale: 3.2·√8192 is 290."""
SURE_DEVIATIONS = 8.0
"""Number of standard deviations that, except with probability 1e-7, none of 2^26 values exceeds."""


class BoundedVector:
    """Layout of vectors (L,) of ``segments``, without empty segments; raises ``ValueError`` unless there is a value."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = tuple(segment for segment in segments if segment.length)
        if not self.segments:
            raise ValueError("a vector must have at least one value")
        self._slices = segment_slices(self.segments)
        lengths = [segment.length for segment in self.segments]
        self.bounds: Float = np.repeat([segment.bound for segment in self.segments], lengths)
        """Bound of each value, shape (L,)."""

    @property
    def length(self) -> int:
        """Number of values L of all segments together."""
        return len(self.bounds)

    @property
    def parts(self) -> int:
        """Number of ciphertexts that the values need."""
        return -(-self.length // VALUES_PER_CIPHERTEXT)

    def by_segment(self, values: Float) -> Iterator[tuple[Segment, Float]]:
        """Yield each segment with its values."""
        for position, segment in enumerate(self.segments):
            yield segment, values[self._slices[position]]

    def check(self, values: Float) -> None:
        """Raise as :meth:`pack` does, without packing."""
        if values.dtype != np.float64 or values.shape != (self.length,):
            raise MalformedError(
                f"values must be float64 of shape ({self.length},), not {values.dtype} of {values.shape}"
            )
        for position, (segment, part) in enumerate(self.by_segment(values)):
            check_bound(part, segment, position)

    def pack(self, values: Float) -> list[Complex]:
        """Divide values (L,) by their bounds, and pack them into a vector of slots (4096,) for each part.

        Raises :class:`crypto.errors.BoundError` for a value that is not finite or beyond its segment's bound, and
        :class:`MalformedError` unless values are float64 of shape (L,).
        """
        self.check(values)
        slots = np.zeros(self.parts * VALUES_PER_CIPHERTEXT)
        slots[: self.length] = values / self.bounds
        return list(slots.view(np.complex128).reshape(self.parts, SLOTS))

    def unpack(self, vectors: Sequence[Complex], terms: float, error: Float) -> Float:
        """Return the values (L,) in slots.

        Raises :class:`ImplausibleError` for a value more than ``error`` (L,) beyond ``terms`` times its bound.
        """
        values: Float = np.concatenate(vectors).view(np.float64)[: self.length] * self.bounds
        # The comparison is written so that NaN fails too.
        if not (np.abs(values) <= terms * self.bounds + error).all():
            raise ImplausibleError("a decrypted sum is beyond what its terms can add up to")
        return values
