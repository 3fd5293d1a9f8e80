"""Sums under the group's key: the coordinator adds ciphertexts, and every site decrypts the same sum.

Values are divided by their agreed bounds, and two stand in a slot, as real and imaginary part: additions keep them
apart, and both are wanted. A fresh ciphertext of the lowest level is enough for additions. It takes 8 bytes for each
value up, twice as much as float32, and the sum takes 16 down.

The coordinator sees neither values nor sums. Who decrypts sees the sum over everyone in it, so what too few sites hold
has to be zero before it is encrypted. The limits: sites share the key, so that the coordinator and one site that helps
it read everything; and nothing here proves that the coordinator added up what it should.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from tenseal import sealapi

from crypto.ckks.parameters import SCHEME, SLOTS, Ciphertext, Form, Level, context
from crypto.ckks.secret import CkksSecret
from crypto.ckks.serialization import dump, read_payload
from crypto.errors import ImplausibleError, MalformedError, PrecisionError
from crypto.fixed_point import Float, Segment, check_bound, segment_slices
from crypto.protection import Payload

_IN_A_CIPHERTEXT = 2 * SLOTS
_ROOM_BITS = 58
"""Of the last modulus's 60: a sum of this magnitude, in units of 1/scale, is far from wrapping around."""
_MOST_SCALE_BITS = 50
"""Beyond it double precision, in which values are encoded, is coarser than the ciphertext's own error."""
_FRESH_ERROR = 300.0
"""Standard deviation of a fresh ciphertext's error in each part of a slot, in units of 1/scale: 3.2·√8192 is 290."""
_SURE = 8.0
"""So many standard deviations no one of 2^26 values exceeds, but with a probability of 1e-7."""


class SumForm:
    """Public facts of a sum: vectors of ``segments``, up to ``terms`` of which are added."""

    def __init__(self, segments: Sequence[Segment], *, terms: int) -> None:
        """Empty segments are left out. ``ValueError`` unless there is a value, and ``terms`` is 1 or more.

        Raises :class:`PrecisionError` for more terms than the modulus has room for beside 30 bits of precision.
        """
        if terms < 1:
            raise ValueError(f"a sum has 1 term or more, not {terms}")
        self.segments = tuple(segment for segment in segments if segment.length)
        if not self.segments:
            raise ValueError("a vector has at least one value")
        self.terms = terms
        self.scale = _scale(terms)
        self._slices = segment_slices(self.segments)
        self._bounds = np.repeat(
            [segment.bound for segment in self.segments], [segment.length for segment in self.segments]
        )

    @property
    def length(self) -> int:
        """L: the values of all segments together."""
        return sum(segment.length for segment in self.segments)

    @property
    def parts(self) -> int:
        """Ciphertexts that hold them."""
        return -(-self.length // _IN_A_CIPHERTEXT)

    @property
    def uploads(self) -> tuple[Form, ...]:
        """What a site sends: fresh ciphertexts, whose second polynomial travels as a seed."""
        return (Form(Level.ANSWER, self.scale, polynomials=1),) * self.parts

    @property
    def answers(self) -> tuple[Form, ...]:
        """What a sum is."""
        return (Form(Level.ANSWER, self.scale, polynomials=2),) * self.parts

    def error(self, terms: int) -> Float:
        """Bound on the error of each value of a sum of so many vectors, shape (L,)."""
        return np.asarray(self._bounds * (_SURE * _FRESH_ERROR * math.sqrt(terms) / self.scale))

    def pack(self, values: Float) -> list[NDArray[np.complex128]]:
        """Values (L,) over their bounds, two in a slot: vectors of (4096,).

        Raises :class:`crypto.errors.BoundError` for a value that is not finite or beyond its segment's bound, and
        :class:`MalformedError` unless values are float64 of shape (L,).
        """
        if values.dtype != np.float64 or values.shape != (self.length,):
            raise MalformedError(
                f"values are float64 of shape ({self.length},), not {values.dtype} of {values.shape}"
            )
        for position, segment in enumerate(self.segments):
            check_bound(values[self._slices[position]], segment, position)
        slots = np.zeros(self.parts * _IN_A_CIPHERTEXT)
        slots[: self.length] = values / self._bounds
        return list(slots.view(np.complex128).reshape(self.parts, SLOTS))

    def unpack(self, vectors: Sequence[NDArray[np.complex128]], terms: int) -> Float:
        """The sum of ``terms`` vectors, shape (L,), from its slots: within :meth:`error` of the exact one.

        Raises :class:`ImplausibleError` for values that no so many vectors within their bounds add up to.
        ``ValueError`` unless 1 ≤ terms ≤ the terms that there is room for.
        """
        if not 1 <= terms <= self.terms:
            raise ValueError(f"a sum has between 1 and {self.terms} terms, not {terms}")
        values: Float = np.concatenate(vectors).view(np.float64)[: self.length] * self._bounds
        # Written so that NaN fails too.
        if not (np.abs(values) <= terms * self._bounds + self.error(terms)).all():
            raise ImplausibleError("a decrypted sum is beyond what its terms can add up to")
        return values


class SummingSite:
    """A site's half: encrypts its vector, reads the sum."""

    def __init__(self, secret: CkksSecret, form: SumForm) -> None:
        self._secret, self._form = secret, form

    def protect(self, values: Float) -> Payload:
        """Fresh encryptions of values (L,); raises as :meth:`SumForm.pack` does, before anything is sent."""
        vectors = zip(self._form.pack(values), self._form.uploads, strict=True)
        return Payload(SCHEME, blobs=tuple(self._secret.encrypt(vector, form) for vector, form in vectors))

    def unprotect(self, answer: Payload, terms: int) -> Float:
        """The sum (L,) of ``terms`` vectors.

        Raises :class:`MalformedError` for an answer of another form than prescribed, which the coordinator could
        tell as well, and :class:`ImplausibleError` for what shows only in the decryption: of that the coordinator
        must not learn (:mod:`crypto.ckks.secret`).
        """
        ciphertexts = read_payload(answer, self._form.answers)
        return self._form.unpack([self._secret.decrypt(each) for each in ciphertexts], terms)


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


def _scale(terms: int) -> float:
    """The largest power of two at which ``terms`` slots of magnitude √2 fit."""
    bits = min(_MOST_SCALE_BITS, math.floor(_ROOM_BITS - math.log2(math.sqrt(2.0) * terms)))
    if bits < 30:
        raise PrecisionError(f"sums of {terms} terms do not fit a modulus of 60 bits")
    return 2.0**bits
