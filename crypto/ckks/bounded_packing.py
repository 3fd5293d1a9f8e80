"""Vectors of bounded numbers as slots: each divided by its bound, two in a slot, as real and imaginary part.

Additions and products with real numbers keep the two parts apart, and both are wanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from crypto.ckks.parameters import SLOTS
from crypto.errors import ImplausibleError, MalformedError
from crypto.fixed_point import Float, Segment, check_bound, segment_slices

IN_A_CIPHERTEXT = 2 * SLOTS
ROOM_BITS = 58
"""Of the last modulus's 60: a value of this magnitude, in units of 1/scale, is far from wrapping around."""
MOST_SCALE_BITS = 50
"""Beyond it double precision, in which values are encoded, is coarser than the ciphertext's own error."""
FRESH_ERROR = 300.0
"""Standard deviation of a fresh ciphertext's error in each part of a slot, in units of 1/scale: 3.2·√8192 is 290."""
SURE = 8.0
"""So many standard deviations no one of 2^26 values exceeds, but with a probability of 1e-7."""

Complex = NDArray[np.complex128]


class BoundedVector:
    """The layout of vectors (L,) of ``segments``; empty ones are left out. ``ValueError`` unless there is a value."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = tuple(segment for segment in segments if segment.length)
        if not self.segments:
            raise ValueError("a vector has at least one value")
        self._slices = segment_slices(self.segments)
        lengths = [segment.length for segment in self.segments]
        self.bounds: Float = np.repeat([segment.bound for segment in self.segments], lengths)
        """Of each value, shape (L,)."""

    @property
    def length(self) -> int:
        """L: the values of all segments together."""
        return len(self.bounds)

    @property
    def parts(self) -> int:
        """Ciphertexts that hold them."""
        return -(-self.length // IN_A_CIPHERTEXT)

    def parts_of(self, values: Float) -> Iterator[tuple[Segment, Float]]:
        """Each segment with its values."""
        for position, segment in enumerate(self.segments):
            yield segment, values[self._slices[position]]

    def check(self, values: Float) -> None:
        """Raise as :meth:`pack` does."""
        if values.dtype != np.float64 or values.shape != (self.length,):
            raise MalformedError(
                f"values are float64 of shape ({self.length},), not {values.dtype} of {values.shape}"
            )
        for position, (segment, part) in enumerate(self.parts_of(values)):
            check_bound(part, segment, position)

    def pack(self, values: Float) -> list[Complex]:
        """Values (L,) over their bounds: a vector of slots (4096,) for each part.

        Raises :class:`crypto.errors.BoundError` for a value that is not finite or beyond its segment's bound, and
        :class:`MalformedError` unless values are float64 of shape (L,).
        """
        self.check(values)
        slots = np.zeros(self.parts * IN_A_CIPHERTEXT)
        slots[: self.length] = values / self.bounds
        return list(slots.view(np.complex128).reshape(self.parts, SLOTS))

    def unpack(self, vectors: Sequence[Complex], most: float, error: Float) -> Float:
        """The values (L,) in slots.

        Raises :class:`ImplausibleError` for one that is further than ``error`` (L,) beyond ``most`` times its bound.
        """
        values: Float = np.concatenate(vectors).view(np.float64)[: self.length] * self.bounds
        # Written so that NaN fails too.
        if not (np.abs(values) <= most * self.bounds + error).all():
            raise ImplausibleError("a decrypted sum is beyond what its terms can add up to")
        return values
