"""Sums under the group's key: the coordinator adds ciphertexts, and every site decrypts the same sum.

A fresh ciphertext of the lowest level suffices for additions. An upload takes 8 bytes per value, twice as much as
float32, and the sum 16.

The coordinator sees neither values nor sums. A site that decrypts sees the sum, so values that too few sites hold must
be set to zero before encryption. Limits: sites share the key, so a coordinator that colludes with one site reads
everything, and nothing here proves that the coordinator added the right ciphertexts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from tenseal import sealapi

from crypto.ckks.packing import FRESH_ERROR, MOST_SCALE_BITS, ROOM_BITS, SURE_DEVIATIONS, BoundedVector
from crypto.ckks.parameters import SCHEME, Ciphertext, CiphertextShape, CkksLevel, context
from crypto.ckks.secret_key import CkksSecret
from crypto.ckks.serialization import dump, read_payload
from crypto.errors import MalformedError, PrecisionError
from crypto.fixed_point import Float, Segment
from crypto.protection import Payload

_LEAST_SCALE_BITS = 30
_COARSE = 2.0**26
_STEP = 2.0**-20


class SumLayout:
    """Public facts of a sum: vectors consist of ``segments``, and up to ``terms`` are added.

    A ciphertext's error is proportional to a segment's bound. For a bound above 2^26 each value is sent as two: a
    multiple of 2^-20 times the bound, whose sum is rounded to such a multiple and so is exact, and the remainder.
    """

    def __init__(self, segments: Sequence[Segment], *, terms: int) -> None:
        """Choose the layout and the scale.

        Raises ``ValueError`` unless there is a value and ``terms`` is at least 1, and :class:`PrecisionError` for more
        terms than the modulus can hold with 30 bits of precision.
        """
        if terms < 1:
            raise ValueError(f"a sum must have 1 term or more, not {terms}")
        self.segments = BoundedVector(segments)
        self.vector = BoundedVector(
            [digit for segment in self.segments.segments for digit in _digits(segment)]
        )
        self.terms = terms
        self.scale = _scale(terms)

    @property
    def uploads(self) -> tuple[CiphertextShape, ...]:
        """Shapes of a site's upload: fresh ciphertexts, whose second polynomial is sent as a seed."""
        return (CiphertextShape(CkksLevel.ANSWER, self.scale, polynomials=1),) * self.vector.parts

    @property
    def answers(self) -> tuple[CiphertextShape, ...]:
        """Shapes of the sum's ciphertexts."""
        return (CiphertextShape(CkksLevel.ANSWER, self.scale, polynomials=2),) * self.vector.parts

    @property
    def length(self) -> int:
        """Number of values L of all segments together."""
        return self.segments.length

    def error(self, terms: int) -> Float:
        """Return a bound on the error of each value of a sum of ``terms`` vectors, (L,), besides float64's rounding."""
        finest = [_digits(segment)[-1].bound for segment in self.segments.segments]
        lengths = [segment.length for segment in self.segments.segments]
        return np.repeat(finest, lengths) * self.relative_error(terms)

    def relative_error(self, terms: int) -> float:
        """Return a bound on the error of each value divided by its bound."""
        return SURE_DEVIATIONS * FRESH_ERROR * math.sqrt(terms) / self.scale

    def split(self, values: Float) -> Float:
        """Split values (L,) with large bounds in two; raise as :meth:`BoundedVector.pack`."""
        self.segments.check(values)
        parts: list[Float] = []
        for segment, part in self.segments.by_segment(values):
            # The high part is a multiple of the step, so rounding makes the sum of high parts exact: at 256 terms its
            # error is below a thousandth of a step.
            step = segment.bound * _STEP
            high = np.rint(part / step) * step
            parts += [high, part - high] if segment.bound > _COARSE else [part]
        return np.concatenate(parts)

    def join(self, sums: Float) -> Float:
        """Join sums of vectors that :meth:`split` returned to sums of values (L,)."""
        digits, parts = iter(self.vector.by_segment(sums)), []
        for segment in self.segments.segments:
            _, part = next(digits)
            if segment.bound > _COARSE:
                step, (_, low) = segment.bound * _STEP, next(digits)
                part = np.rint(part / step) * step + low
            parts.append(part)
        return np.concatenate(parts)


class SummingSite:
    """Site half: encrypts the site's vector and decrypts the sum."""

    def __init__(self, secret: CkksSecret, layout: SumLayout) -> None:
        self._secret = secret
        self._layout = layout

    def protect(self, values: Float) -> Payload:
        """Encrypt values (L,).

        Raises, before anything is sent, :class:`crypto.errors.BoundError` for a value beyond its bound and
        :class:`MalformedError` for a vector of another form.
        """
        vectors = zip(self._layout.vector.pack(self._layout.split(values)), self._layout.uploads, strict=True)
        return Payload(SCHEME, blobs=tuple(self._secret.encrypt(vector, shape) for vector, shape in vectors))

    def unprotect(self, answer: Payload, terms: int) -> Float:
        """Return the sum (L,) of ``terms`` vectors, within :meth:`SumLayout.error` of the exact sum.

        Raises :class:`MalformedError` for an answer of another form than prescribed, which the coordinator can see too,
        :class:`crypto.errors.ImplausibleError` for values beyond any sum of ``terms`` vectors, which the coordinator
        must not learn (:mod:`crypto.ckks.secret_key`), and ``ValueError`` unless 1 ≤ terms ≤ the layout's terms.
        """
        if not 1 <= terms <= self._layout.terms:
            raise ValueError(f"a sum must have between 1 and {self._layout.terms} terms, not {terms}")
        vectors = [self._secret.decrypt(part) for part in read_payload(answer, self._layout.answers)]
        slack = self._layout.vector.bounds * self._layout.relative_error(terms)
        return self._layout.join(self._layout.vector.unpack(vectors, terms, slack))


class SummingServer:
    """Server half: additions of ciphertexts, which need no keys."""

    def __init__(self, layout: SumLayout) -> None:
        self._layout = layout
        self._evaluator = sealapi.Evaluator(context())

    def validate(self, payload: Payload) -> None:
        """Raise :class:`MalformedError` unless each ciphertext has exactly the form prescribed for it.

        Limit: the encrypted values cannot be checked, so a site can spoil a sum.
        """
        read_payload(payload, self._layout.uploads)

    def add(self, payloads: Iterable[Payload]) -> Payload:
        """Add one payload or more, reading one at a time.

        Raises :class:`MalformedError` for a payload of another form, and for ciphertexts made to cancel out.
        """
        remaining = iter(payloads)
        total = read_payload(next(remaining), self._layout.uploads)
        for payload in remaining:
            self._add(total, read_payload(payload, self._layout.uploads))
        return Payload(SCHEME, blobs=tuple(dump(part) for part in total))

    def _add(self, total: Sequence[Ciphertext], more: Sequence[Ciphertext]) -> None:
        try:
            for part, other in zip(total, more, strict=True):
                self._evaluator.add_inplace(part, other)
        except RuntimeError as error:
            raise MalformedError(f"ciphertexts cannot be added: {error}") from error


def _digits(segment: Segment) -> tuple[Segment, ...]:
    """Return the segment, or for a large bound the two segments of its high and low parts."""
    if segment.bound <= _COARSE:
        return (segment,)
    return segment, Segment(segment.length, segment.bound * _STEP / 2.0)


def _scale(terms: int) -> float:
    """Return the largest power of two at which a sum of ``terms`` slots of magnitude √2 fits."""
    # A slot holds two values of magnitude 1 as real and imaginary part, so its magnitude is up to √2.
    bits = min(MOST_SCALE_BITS, math.floor(ROOM_BITS - math.log2(math.sqrt(2.0) * terms)))
    if bits < _LEAST_SCALE_BITS:
        raise PrecisionError(f"sums of {terms} terms do not fit a modulus of 60 bits")
    return 2.0**bits
