"""Packing of bounded values into slots: each value divided by its bound, two per slot as real and imaginary part.

Additions, and products with real numbers, keep the two parts separate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from crypto.ckks.parameters import SLOTS
from crypto.errors import ImplausibleError, MalformedError
from crypto.fixed_point import Float, Segment, check_bound, segment_slices

VALUES_PER_CIPHERTEXT = 2 * SLOTS
ROOM_BITS = 58
"""Bits of the largest value, in units of 1/scale; the last modulus has 60, so values are far from wrapping around."""
MOST_SCALE_BITS = 50
"""Bits of the largest scale, beyond which float64 encoding is coarser than the ciphertext's own error."""
FRESH_ERROR = 300.0
"""Standard deviation of a fresh ciphertext's error in each part of a slot, in units of 1/scale: 3.2·√8192 is 290."""
SURE_DEVIATIONS = 8.0
"""Number of standard deviations that, except with probability 1e-7, none of 2^26 values exceeds."""

Complex = NDArray[np.complex128]


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

    def parts_of(self, values: Float) -> Iterator[tuple[Segment, Float]]:
        """Yield each segment with its values."""
        for position, segment in enumerate(self.segments):
            yield segment, values[self._slices[position]]

    def check(self, values: Float) -> None:
        """Raise as :meth:`pack` does, without packing."""
        if values.dtype != np.float64 or values.shape != (self.length,):
            raise MalformedError(
                f"values must be float64 of shape ({self.length},), not {values.dtype} of {values.shape}"
            )
        for position, (segment, part) in enumerate(self.parts_of(values)):
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

    def unpack(self, vectors: Sequence[Complex], most: float, error: Float) -> Float:
        """Return the values (L,) in slots.

        Raises :class:`ImplausibleError` for a value more than ``error`` (L,) beyond ``most`` times its bound.
        """
        values: Float = np.concatenate(vectors).view(np.float64)[: self.length] * self.bounds
        # The comparison is written so that NaN fails too.
        if not (np.abs(values) <= most * self.bounds + error).all():
            raise ImplausibleError("a decrypted sum is beyond what its terms can add up to")
        return values
