"""Fixed point: real vectors as words of the ring of integers modulo 2^32 or 2^64, so that sums are exact.

A value x of a segment with f fractional bits becomes round(x · 2^f), negative ones in two's complement. f follows
from the agreed bound and from how many vectors may be added at most, so that overflow is impossible rather than
unlikely: |Σ round(x · 2^f)| ≤ terms · (bound · 2^f + 1/2) < 2^(ring_bits − 2). A value beyond its bound is an
error before anything is sent; nothing wraps, and nothing is clipped here. Sites set their values to the bounds
beforehand, so that no record decides whether this error comes (:mod:`secure_client.bounds`).

A segment of whole numbers has f = 0 and takes nothing else: its sums come out as they are, up to 2^53.

Honest sums keep to less than half of the ring, so a uniformly random word is taken for one with probability below
1/2, and a whole vector of L random words with probability below 2^-L: a sum whose masks do not cancel is caught
where L is large. The limit: a few random words among good ones, or an error that stays within the bounds, is not.
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

Float = NDArray[np.float64]

MAX_FRACTION_BITS = 40
MIN_FRACTION_BITS = 16
_WORDS = {32: (np.uint32, np.int32), 64: (np.uint64, np.int64)}
"""Ring bits: the type of a word, and the type that reads it as a signed number."""


_MOST_WHOLE = 2**53
"""Up to it each whole number is a float64."""


@dataclass(frozen=True)
class Segment:
    """``length`` neighbouring values (0 or more), each of magnitude at most ``bound``; ``whole`` numbers, or any."""

    length: int
    bound: float
    whole: bool = False

    def __post_init__(self) -> None:
        if self.length < 0:
            raise ValueError(f"a segment has 0 or more values, not {self.length}")
        if not 0.0 < self.bound < float("inf"):
            raise ValueError(f"a segment's bound is positive and finite, not {self.bound}")


class FixedPoint:
    """The words of vectors that consist of ``segments``, up to ``terms`` of which are added."""

    def __init__(self, segments: Sequence[Segment], *, terms: int, ring_bits: int = 64) -> None:
        """Empty segments are left out.

        Raises :class:`PrecisionError` when a segment would have fewer than 16 fractional bits, or sums of whole numbers
        could be above 2^53 or a quarter of the ring, and ``ValueError`` unless there is a value, ``terms`` is 1 or more
        and ``ring_bits`` 32 or 64.
        """
        if ring_bits not in _WORDS or terms < 1:
            raise ValueError(f"a ring has 32 or 64 bits and terms are 1 or more, not {ring_bits} and {terms}")
        self.segments = tuple(segment for segment in segments if segment.length)
        if not self.segments:
            raise ValueError("a vector has at least one value")
        self.terms = terms
        self.ring_bits = ring_bits
        self.fraction_bits = tuple(_bits_of(segment, terms, ring_bits) for segment in self.segments)
        self._slices = segment_slices(self.segments)

    @property
    def length(self) -> int:
        """L: the values of all segments together."""
        return sum(segment.length for segment in self.segments)

    @property
    def resolution(self) -> Float:
        """2^-f for each value, shape (L,). Encoding moves a value by at most half of it; whole numbers it does not."""
        steps = [2.0**-bits for bits in self.fraction_bits]
        return np.repeat(steps, [segment.length for segment in self.segments])

    def encode(self, values: Float) -> Words:
        """round(x · 2^f), halves to even, as words of shape (L,). The scaling itself does not round.

        Raises :class:`BoundError` for a value that is not finite or beyond its segment's bound, or that is no whole
        number where its segment is of these, and :class:`MalformedError` unless values are float64 of shape (L,).
        """
        if values.dtype != np.float64 or values.shape != (self.length,):
            raise MalformedError(
                f"values are float64 of shape ({self.length},), not {values.dtype} of {values.shape}"
            )
        unsigned, signed = _WORDS[self.ring_bits]
        numbers = np.empty(self.length, dtype=signed)
        for position, segment in enumerate(self.segments):
            part = values[self._slices[position]]
            check_bound(part, segment, position)
            numbers[self._slices[position]] = np.rint(part * 2.0 ** self.fraction_bits[position])
        return numbers.view(unsigned)

    def decode_sum(self, words: Words, terms: int) -> Float:
        """The sum of ``terms`` encoded vectors, shape (L,): exact, then rounded once to float64.

        Raises :class:`MalformedError` for a word that no ``terms`` values within the bounds add up to (the module
        says how surely that catches garbage), and unless words are of this ring and shape. ``ValueError`` unless
        1 ≤ terms ≤ the terms that the words have room for.
        """
        if not 1 <= terms <= self.terms:
            raise ValueError(f"a sum has between 1 and {self.terms} terms, not {terms}")
        unsigned, signed = _WORDS[self.ring_bits]
        if words.dtype != unsigned or words.shape != (self.length,):
            raise MalformedError(
                f"words are {np.dtype(unsigned)} of shape ({self.length},), not {words.dtype} of {words.shape}"
            )
        numbers = words.view(signed)
        values = np.empty(self.length)
        for position, segment in enumerate(self.segments):
            bits, part = self.fraction_bits[position], numbers[self._slices[position]]
            _check_sum(part, _largest_sum(segment.bound, bits, terms), position)
            values[self._slices[position]] = part * 2.0**-bits
        return values


def narrowest_ring(segments: Sequence[Segment], *, terms: int) -> int:
    """32 where each segment keeps 16 fractional bits in a ring of 32 bits with so many terms, else 64.

    That is where terms · (bound + 2^-17) is below 2^14, or of whole numbers terms · (bound + ½) up to 2^30. Lengths
    count for nothing, but that a segment without values is left out. Whether 64 are enough, :class:`FixedPoint` says.
    """
    try:
        for segment in segments:
            if segment.length:
                _bits_of(segment, terms, 32)
    except PrecisionError:
        return 64
    return 32


def _bits_of(segment: Segment, terms: int, ring_bits: int) -> int:
    if not segment.whole:
        return _fraction_bits(segment.bound, terms, ring_bits)
    most = min(_MOST_WHOLE, 2 ** (ring_bits - 2))
    if terms * _largest_word(segment.bound, 0) > most:
        raise PrecisionError(
            f"sums of {terms} whole numbers up to {segment.bound:g} go beyond {most:g}: lower the bound, or the"
            " number of terms" + (", or use a ring of 64 bits" if ring_bits == 32 else "")
        )
    return 0


@lru_cache(maxsize=256)
def _fraction_bits(bound: float, terms: int, ring_bits: int) -> int:
    for bits in range(MAX_FRACTION_BITS, MIN_FRACTION_BITS - 1, -1):
        if terms * _largest_word(bound, bits) < 2 ** (ring_bits - 2):
            return bits
    raise PrecisionError(
        f"sums of {terms} values up to {bound:g} leave fewer than {MIN_FRACTION_BITS} fractional bits in a ring of "
        f"{ring_bits} bits: lower the bound" + (", or use a ring of 64 bits" if ring_bits == 32 else "")
    )


def _largest_word(bound: float, bits: int) -> Fraction:
    """What no encoded value's magnitude exceeds. Exact: a bound is a float, and a float is a fraction."""
    return Fraction(bound) * Fraction(2**bits) + Fraction(1, 2)


def _largest_sum(bound: float, bits: int, terms: int) -> int:
    return int(terms * _largest_word(bound, bits))


def segment_slices(segments: Sequence[Segment]) -> tuple[slice, ...]:
    """Where each segment lies in a vector of all of them."""
    ends = np.cumsum([segment.length for segment in segments]).tolist()
    return tuple(slice(end - segment.length, end) for end, segment in zip(ends, segments, strict=True))


def check_bound(values: Float, segment: Segment, position: int) -> None:
    """Raise :class:`BoundError` for a value beyond the segment's bound, or none at all.

    Written so that NaN, which is neither above nor below, fails too.
    """
    within = np.abs(values) <= segment.bound
    if not within.all():
        worst = float(np.abs(values[~within]).max())
        raise BoundError(
            f"segment {position} holds a value of magnitude {worst:g}; its agreed bound is {segment.bound:g}"
        )
    if segment.whole and (values != np.rint(values)).any():
        raise BoundError(
            f"segment {position} holds a value that is no whole number, where only such are agreed"
        )


def _check_sum(numbers: NDArray[np.int32] | NDArray[np.int64], largest: int, position: int) -> None:
    """Two comparisons: the smallest number of a ring has no magnitude in it."""
    if ((numbers > largest) | (numbers < -largest)).any():
        raise MalformedError(
            f"segment {position} of a sum lies beyond what its terms can add up to: masks that do not cancel, "
            "or a site that did not keep to its bounds"
        )
