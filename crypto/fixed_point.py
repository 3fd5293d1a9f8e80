"""Fixed-point encoding of real vectors as words of the integers modulo 2^32 or 2^64, so that sums are exact.

A value x of a segment with f fractional bits becomes round(x · 2^f), in two's complement. f follows from the agreed
bound and the largest number of vectors in a sum, so that overflow is impossible:
|Σ round(x · 2^f)| ≤ terms · (bound · 2^f + 1/2) < 2^(ring_bits − 2). A value beyond its bound raises an error before
anything is sent; nothing wraps, and nothing is clipped here. Sites clip values to the bounds beforehand, so that no
record decides whether the error is raised (:mod:`secure_client.privacy.bounds`).

A segment of whole numbers has f = 0 and takes only whole numbers: its sums are exact up to 2^53.

Honest sums use less than half of the ring, so a uniformly random word passes as a sum with probability below 1/2, and
a vector of L random words with probability below 2^-L: for large L a sum whose masks do not cancel is detected.
Limit: a few random words among good ones, or an error within the bounds, is not detected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from crypto.errors import BoundError, MalformedError, PrecisionError
from crypto.protection import Words

__all__ = ["FixedPoint", "Float", "Segment"]

Float = NDArray[np.float64]
"""Array of float64."""

MAX_FRACTION_BITS = 40
MIN_FRACTION_BITS = 16
_WORDS = {32: (np.uint32, np.int32), 64: (np.uint64, np.int64)}
"""Types of a word, unsigned and signed, by ring bits."""


_MOST_WHOLE = 2**53
"""Largest number up to which float64 represents every whole number."""


@dataclass(frozen=True)
class Segment:
    """Range of ``length`` ≥ 0 consecutive values of magnitude at most ``bound``, only integers if ``whole``."""

    length: int
    bound: float
    whole: bool = False

    def __post_init__(self) -> None:
        if self.length < 0:
            raise ValueError(f"a segment's length must be at least 0, not {self.length}")
        if not 0.0 < self.bound < float("inf"):
            raise ValueError(f"a segment's bound must be positive and finite, not {self.bound}")


class FixedPoint:
    """Encoder of vectors that consist of ``segments``, of which up to ``terms`` are added."""

    def __init__(self, segments: Sequence[Segment], *, terms: int, ring_bits: int = 64) -> None:
        """Choose each segment's fractional bits; empty segments are left out.

        Raises :class:`PrecisionError` if a segment would have fewer than 16 fractional bits, or sums of whole numbers
        could exceed 2^53 or a quarter of the ring, and ``ValueError`` unless there is a value, ``terms`` is at least 1
        and ``ring_bits`` is 32 or 64.
        """
        if ring_bits not in _WORDS or terms < 1:
            raise ValueError(f"ring_bits must be 32 or 64 and terms at least 1, not {ring_bits} and {terms}")
        self.segments = tuple(segment for segment in segments if segment.length)
        if not self.segments:
            raise ValueError("a vector must have at least one value")
        self.terms = terms
        self.ring_bits = ring_bits
        self.fraction_bits = tuple(_choose_bits(segment, terms, ring_bits) for segment in self.segments)
        self._slices = segment_slices(self.segments)

    @property
    def length(self) -> int:
        """Number of values L of all segments together."""
        return sum(segment.length for segment in self.segments)

    @property
    def resolution(self) -> Float:
        """Step 2^-f of each value, (L,); encoding moves a value by at most half a step, whole numbers not at all."""
        steps = [2.0**-bits for bits in self.fraction_bits]
        return np.repeat(steps, [segment.length for segment in self.segments])

    def encode(self, values: Float) -> Words:
        """Return round(x · 2^f), halves to even, as words of shape (L,); the scaling itself does not round.

        Raises :class:`BoundError` for a value that is not finite or beyond its segment's bound, or that is not whole in
        a segment of whole numbers, and :class:`MalformedError` unless values are float64 of shape (L,).
        """
        if values.dtype != np.float64 or values.shape != (self.length,):
            raise MalformedError(
                f"values must be float64 of shape ({self.length},), not {values.dtype} of {values.shape}"
            )
        unsigned, signed = _WORDS[self.ring_bits]
        numbers = np.empty(self.length, dtype=signed)
        for position, segment in enumerate(self.segments):
            part = values[self._slices[position]]
            check_bound(part, segment, position)
            numbers[self._slices[position]] = np.rint(part * 2.0 ** self.fraction_bits[position])
        return numbers.view(unsigned)

    def decode_sum(self, words: Words, terms: int) -> Float:
        """Return the sum of ``terms`` encoded vectors, shape (L,): exact, then rounded once to float64.

        Raises :class:`MalformedError` for a word that no sum of ``terms`` values within the bounds gives (the module
        states how likely random words are detected) and for words of another ring or shape, and ``ValueError`` unless
        1 ≤ terms ≤ this encoder's ``terms``.
        """
        if not 1 <= terms <= self.terms:
            raise ValueError(f"a sum must have between 1 and {self.terms} terms, not {terms}")
        unsigned, signed = _WORDS[self.ring_bits]
        if words.dtype != unsigned or words.shape != (self.length,):
            raise MalformedError(
                f"words must be {np.dtype(unsigned)} of shape ({self.length},), not {words.dtype} of {words.shape}"
            )
        numbers = words.view(signed)
        values = np.empty(self.length)
        for position, segment in enumerate(self.segments):
            bits, part = self.fraction_bits[position], numbers[self._slices[position]]
            largest = int(terms * _largest_word(segment.bound, bits))
            # Two comparisons instead of abs, which the ring's smallest number overflows.
            if ((part > largest) | (part < -largest)).any():
                raise MalformedError(
                    f"segment {position} of a sum is beyond what its terms can add up to: masks that do not cancel, "
                    "or a site that exceeded its bounds"
                )
            values[self._slices[position]] = part * 2.0**-bits
        return values


def narrowest_ring(segments: Sequence[Segment], *, terms: int) -> int:
    """Return 32 if each segment keeps 16 fractional bits in a ring of 32 bits with ``terms`` terms, else 64.

    For 32, terms · (bound + 2^-17) must be below 2^14, or for whole numbers terms · (bound + ½) at most 2^30. Segments
    without values are ignored. :class:`FixedPoint` raises if 64 bits are too few as well.
    """
    try:
        for segment in segments:
            if segment.length:
                _choose_bits(segment, terms, 32)
    except PrecisionError:
        return 64
    return 32


def _choose_bits(segment: Segment, terms: int, ring_bits: int) -> int:
    if not segment.whole:
        return _fraction_bits(segment.bound, terms, ring_bits)
    largest = min(_MOST_WHOLE, 2 ** (ring_bits - 2))
    if terms * _largest_word(segment.bound, 0) > largest:
        raise PrecisionError(
            f"sums of {terms} whole numbers up to {segment.bound:g} exceed {largest:g}: lower the bound, or the"
            " number of terms" + (", or use a ring of 64 bits" if ring_bits == 32 else "")
        )
    return 0


@lru_cache(maxsize=256)
def _fraction_bits(bound: float, terms: int, ring_bits: int) -> int:
    # Exact fractions: platforms must choose the same bits, or their words do not add up. The spare bit of the ring is
    # what lets random words be noticed (see the module).
    for bits in range(MAX_FRACTION_BITS, MIN_FRACTION_BITS - 1, -1):
        if terms * _largest_word(bound, bits) < 2 ** (ring_bits - 2):
            return bits
    raise PrecisionError(
        f"sums of {terms} values up to {bound:g} leave fewer than {MIN_FRACTION_BITS} fractional bits in a ring of "
        f"{ring_bits} bits: lower the bound" + (", or use a ring of 64 bits" if ring_bits == 32 else "")
    )


def _largest_word(bound: float, bits: int) -> Fraction:
    """Return the largest magnitude of an encoded value, exactly, because a float is a fraction."""
    return Fraction(bound) * Fraction(2**bits) + Fraction(1, 2)


def segment_slices(segments: Sequence[Segment]) -> tuple[slice, ...]:
    """Return each segment's slice in a vector of all segments."""
    ends = np.cumsum([segment.length for segment in segments]).tolist()
    return tuple(slice(end - segment.length, end) for end, segment in zip(ends, segments, strict=True))


def check_bound(values: Float, segment: Segment, position: int) -> None:
    """Raise :class:`BoundError` unless all values are within the segment's bound, and whole if the segment is."""
    # NaN is neither above nor below the bound, so "not within" refuses it where "beyond" would not.
    within = np.abs(values) <= segment.bound
    if not within.all():
        worst = float(np.abs(values[~within]).max())
        raise BoundError(
            f"segment {position} holds a value of magnitude {worst:g}; its agreed bound is {segment.bound:g}"
        )
    if segment.whole and (values != np.rint(values)).any():
        raise BoundError(
            f"segment {position} must hold whole numbers, but holds a value that is no whole number"
        )
