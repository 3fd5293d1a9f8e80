"""Groups mixed by how alike they are, on ciphertexts: w_j + Σ_{k≠j} ⟨u_j, u_k⟩·w_k for each group j, and nothing else.

One member of each group, its leader, knows the group's direction u_j (zeros for a group that has none) and the numbers
w_j to be mixed, and sends both freshly encrypted. The coordinator computes the cosines, which stay in every slot of a
ciphertext, and from them the sums. What these are to be divided by goes the same way: where w_j holds a 1, its sum
holds 1 + Σ_k ⟨u_j, u_k⟩.

The coordinator sees neither values nor cosines. Members of group j learn its sums. The limit is the scheme's: sites
share the key. And a cosine below 0 cannot be cut off here, so directions must have no negative components.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from crypto.ckks.bounded_packing import FRESH_ERROR, MOST_SCALE_BITS, ROOM_BITS, SURE, BoundedVector, Complex
from crypto.ckks.parameters import SCHEME, SLOTS, Form, Level, dropped_prime
from crypto.ckks.secret_key import CkksSecret
from crypto.ckks.serialization import read_payload
from crypto.errors import BoundError, MalformedError, PrecisionError
from crypto.fixed_point import Float, Segment
from crypto.protection import Payload

COPIES = 2
"""Each component of a direction stands in two neighbouring slots: rotations by 2, 4, … then fill every slot."""
ROTATIONS = tuple(1 << step for step in range(1, SLOTS.bit_length() - 1))

_UNIT_SCALE = 2.0**45
COSINE_SCALE = _UNIT_SCALE * _UNIT_SCALE / dropped_prime(Level.UPLOAD)
_ROTATION_ERROR = 1.2e-5 * 2.0**40 / COSINE_SCALE
"""Of a sum over all slots, in any of them: docs/explanation/ckks-error.md derives it for sums at scale 2^40."""
_COSINE_ERROR = SURE * FRESH_ERROR * math.sqrt(2.0) / _UNIT_SCALE + _ROTATION_ERROR
_LEAST_SCALE_BITS = 30


class MixForm:
    """Public facts of a mixing: directions of M components and vectors of ``segments``, of ``groups`` at most."""

    def __init__(self, components: int, segments: Sequence[Segment], *, groups: int) -> None:
        """``ValueError`` for no groups or numbers, :class:`PrecisionError` for more groups than there is room for."""
        if components < 1 or groups < 1:
            raise ValueError("there are a group or more, and components of directions")
        self.components, self.groups = components, groups
        self.vector = BoundedVector(segments)
        self._scale = _scale(groups)

    @property
    def direction_parts(self) -> int:
        """Ciphertexts that a direction needs."""
        return -(-self.components * COPIES // SLOTS)

    @property
    def uploads(self) -> tuple[Form, ...]:
        """What a leader sends: its group's direction, then its vector."""
        direction = Form(Level.UPLOAD, _UNIT_SCALE, polynomials=1)
        vector = Form(Level.PRODUCT, self._scale, polynomials=1)
        return (direction,) * self.direction_parts + (vector,) * self.vector.parts

    @property
    def answers(self) -> tuple[Form, ...]:
        """What each group gets."""
        scale = COSINE_SCALE * self._scale / dropped_prime(Level.PRODUCT)
        return (Form(Level.ANSWER, scale, polynomials=2),) * self.vector.parts

    def error(self, magnitudes: Float) -> Float:
        """Bound on the error of each mixed value (L,); ``magnitudes`` (L,) are Σ_k |w_k|, or a bound on it."""
        fresh: float = SURE * FRESH_ERROR * math.sqrt(self.groups) / self._scale
        return _COSINE_ERROR * magnitudes + self.vector.bounds * fresh

    def pack_direction(self, vector: Float) -> list[Float]:
        """A vector (M,) scaled to length 1, or zeros: slots (4096,) for each part.

        Raises :class:`BoundError` for one that is not finite or has a negative component, and
        :class:`MalformedError` unless it is float64 of shape (M,).
        """
        if vector.dtype != np.float64 or vector.shape != (self.components,):
            raise MalformedError(f"a direction is float64 of shape ({self.components},), not {vector.shape}")
        if not ((vector >= 0.0) & np.isfinite(vector)).all():
            raise BoundError(
                "a direction to be compared under encryption has a negative or infinite component"
            )
        length = float(np.linalg.norm(vector))
        slots = np.zeros(self.direction_parts * SLOTS)
        slots[: COPIES * self.components] = np.repeat(vector / length if length else vector, COPIES)
        return list(slots.reshape(self.direction_parts, SLOTS))


class MixingSite:
    """A site's half: a leader's :meth:`protect`, every member's :meth:`unprotect`."""

    def __init__(self, secret: CkksSecret, form: MixForm) -> None:
        self._secret, self._form = secret, form

    def protect(self, direction: Float, values: Float) -> Payload:
        """Fresh encryptions of a direction (M,), of any length, and of values (L,).

        Raises as :meth:`MixForm.pack_direction` and :meth:`crypto.ckks.bounded_packing.BoundedVector.pack` do, before
        anything is sent.
        """
        slots: list[Float | Complex] = list(self._form.pack_direction(direction))
        slots += self._form.vector.pack(values)
        pairs = zip(slots, self._form.uploads, strict=True)
        return Payload(SCHEME, blobs=tuple(self._secret.encrypt(vector, form) for vector, form in pairs))

    def unprotect(self, answer: Payload) -> Float:
        """The mixed values (L,), within :meth:`MixForm.error` of the exact ones.

        Raises :class:`MalformedError` for an answer of another form than prescribed, which the coordinator could
        tell as well, and :class:`crypto.errors.ImplausibleError` for values that no so many groups come to: of that
        the coordinator must not learn (:mod:`crypto.ckks.secret_key`).
        """
        vectors = [self._secret.decrypt(each) for each in read_payload(answer, self._form.answers)]
        most = float(self._form.groups)
        return self._form.vector.unpack(vectors, most, self._form.error(most * self._form.vector.bounds))


def _scale(groups: int) -> float:
    """Of vectors: the largest power of two at which the sums of so many groups fit."""
    gained = math.log2(COSINE_SCALE / dropped_prime(Level.PRODUCT))
    bits = math.floor(ROOM_BITS - gained - math.log2(math.sqrt(2.0) * groups))
    if bits < _LEAST_SCALE_BITS:
        raise PrecisionError(f"{groups} groups cannot be mixed in a modulus of 60 bits")
    return 2.0 ** min(bits, MOST_SCALE_BITS)
