"""Sums under the group's key: the coordinator adds ciphertexts, and every site decrypts the same sum.

A fresh ciphertext of the lowest level is enough for additions. It takes 8 bytes for each value up, twice as much as
float32, and the sum takes 16 down.

The coordinator sees neither values nor sums. Who decrypts sees the sum over everyone in it, so what too few sites hold
has to be zero before it is encrypted. The limits: sites share the key, so that the coordinator and one site that helps
it read everything; and nothing here proves that the coordinator added up what it should.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from tenseal import sealapi

from crypto.ckks.bounded_packing import FRESH_ERROR, MOST_SCALE_BITS, ROOM_BITS, SURE, BoundedVector
from crypto.ckks.parameters import SCHEME, Ciphertext, Form, Level, context
from crypto.ckks.secret_key import CkksSecret
from crypto.ckks.serialization import dump, read_payload
from crypto.errors import MalformedError, PrecisionError
from crypto.fixed_point import Float, Segment
from crypto.protection import Payload

_LEAST_SCALE_BITS = 30
_COARSE = 2.0**26
_STEP = 2.0**-20


class SumForm:
    """Public facts of a sum: vectors of ``segments``, up to ``terms`` of which are added.

    A ciphertext's error is in proportion to a segment's bound. Where that is above 2^26 each value travels as two: a
    multiple of 2^-20 times the bound, whose sum is rounded to such a multiple and so is exact, and what is left over.
    """

    def __init__(self, segments: Sequence[Segment], *, terms: int) -> None:
        """``ValueError`` unless there is a value, and ``terms`` is 1 or more.

        Raises :class:`PrecisionError` for more terms than the modulus has room for beside 30 bits of precision.
        """
        if terms < 1:
            raise ValueError(f"a sum has 1 term or more, not {terms}")
        self.segments = BoundedVector(segments)
        self.vector = BoundedVector(
            [digit for segment in self.segments.segments for digit in _digits(segment)]
        )
        self.terms = terms
        self.scale = _scale(terms)

    @property
    def uploads(self) -> tuple[Form, ...]:
        """What a site sends: fresh ciphertexts, whose second polynomial travels as a seed."""
        return (Form(Level.ANSWER, self.scale, polynomials=1),) * self.vector.parts

    @property
    def answers(self) -> tuple[Form, ...]:
        """What a sum is."""
        return (Form(Level.ANSWER, self.scale, polynomials=2),) * self.vector.parts

    @property
    def length(self) -> int:
        """L: the values of all segments together."""
        return self.segments.length

    def error(self, terms: int) -> Float:
        """Bound on the error of each value of a sum of so many vectors, shape (L,), beside float64's own rounding."""
        finest = [_digits(segment)[-1].bound for segment in self.segments.segments]
        lengths = [segment.length for segment in self.segments.segments]
        return np.repeat(finest, lengths) * self.relative_error(terms)

    def relative_error(self, terms: int) -> float:
        """The same of a slot's part, which is a value over its bound."""
        return SURE * FRESH_ERROR * math.sqrt(terms) / self.scale

    def split(self, values: Float) -> Float:
        """Values (L,) as they travel. Raises as :meth:`crypto.ckks.bounded_packing.BoundedVector.pack` does."""
        self.segments.check(values)
        parts: list[Float] = []
        for segment, part in self.segments.parts_of(values):
            step = segment.bound * _STEP
            high = np.rint(part / step) * step
            parts += [high, part - high] if segment.bound > _COARSE else [part]
        return np.concatenate(parts)

    def join(self, sums: Float) -> Float:
        """The reverse of :meth:`split`, for sums of such vectors: shape (L,)."""
        digits, parts = iter(self.vector.parts_of(sums)), []
        for segment in self.segments.segments:
            _, part = next(digits)
            if segment.bound > _COARSE:
                step, (_, low) = segment.bound * _STEP, next(digits)
                part = np.rint(part / step) * step + low
            parts.append(part)
        return np.concatenate(parts)


class SummingSite:
    """A site's half: encrypts its vector, reads the sum."""

    def __init__(self, secret: CkksSecret, form: SumForm) -> None:
        self._secret, self._form = secret, form

    def protect(self, values: Float) -> Payload:
        """Fresh encryptions of values (L,).

        Raises, before anything is sent, :class:`crypto.errors.BoundError` for a value beyond its bound and
        :class:`MalformedError` for a vector of another form.
        """
        vectors = zip(self._form.vector.pack(self._form.split(values)), self._form.uploads, strict=True)
        return Payload(SCHEME, blobs=tuple(self._secret.encrypt(vector, form) for vector, form in vectors))

    def unprotect(self, answer: Payload, terms: int) -> Float:
        """The sum (L,) of ``terms`` vectors, within :meth:`SumForm.error` of the exact one.

        Raises :class:`MalformedError` for an answer of another form than prescribed, which the coordinator could
        tell as well, and :class:`crypto.errors.ImplausibleError` for values that so many vectors do not add up to: of
        that the coordinator must not learn (:mod:`crypto.ckks.secret_key`). ``ValueError`` unless 1 ≤ terms ≤ the terms
        that there is room for.
        """
        if not 1 <= terms <= self._form.terms:
            raise ValueError(f"a sum has between 1 and {self._form.terms} terms, not {terms}")
        vectors = [self._secret.decrypt(each) for each in read_payload(answer, self._form.answers)]
        slack = self._form.vector.bounds * self._form.relative_error(terms)
        return self._form.join(self._form.vector.unpack(vectors, terms, slack))


class SummingServer:
    """The coordinator's half: additions, for which it needs no keys at all."""

    def __init__(self, form: SumForm) -> None:
        self._form = form
        self._evaluator = sealapi.Evaluator(context())

    def validate(self, payload: Payload) -> None:
        """Raise :class:`MalformedError` unless each ciphertext has exactly the form prescribed for it.

        What is encrypted cannot be checked: a site can spoil a sum.
        """
        read_payload(payload, self._form.uploads)

    def add(self, payloads: Iterable[Payload]) -> Payload:
        """The sum of one payload or more, which are looked at one after the other.

        Raises :class:`MalformedError` for a payload of another form, and for ciphertexts made to cancel out.
        """
        remaining = iter(payloads)
        total = read_payload(next(remaining), self._form.uploads)
        for payload in remaining:
            self._add(total, read_payload(payload, self._form.uploads))
        return Payload(SCHEME, blobs=tuple(dump(part) for part in total))

    def _add(self, total: Sequence[Ciphertext], more: Sequence[Ciphertext]) -> None:
        try:
            for part, other in zip(total, more, strict=True):
                self._evaluator.add_inplace(part, other)
        except RuntimeError as error:
            raise MalformedError(f"ciphertexts that cannot be added: {error}") from error


def _digits(segment: Segment) -> tuple[Segment, ...]:
    """As what a segment travels."""
    if segment.bound <= _COARSE:
        return (segment,)
    return segment, Segment(segment.length, segment.bound * _STEP / 2.0)


def _scale(terms: int) -> float:
    """The largest power of two at which ``terms`` slots of magnitude √2 fit."""
    bits = min(MOST_SCALE_BITS, math.floor(ROOM_BITS - math.log2(math.sqrt(2.0) * terms)))
    if bits < _LEAST_SCALE_BITS:
        raise PrecisionError(f"sums of {terms} terms do not fit a modulus of 60 bits")
    return 2.0**bits
