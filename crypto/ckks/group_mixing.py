"""Mixing of groups by their cosines on ciphertexts: w_j + Σ_{k≠j} ⟨u_j, u_k⟩·w_k for each group j.

One member of each group, its leader, knows the group's direction u_j (zeros for a group without one) and the values
w_j to be mixed, and sends both freshly encrypted. The coordinator computes the cosines, each in every slot of a
ciphertext, and from them the sums. The divisors are computed in the same way: for a value 1 in w_j the sum is
1 + Σ_k ⟨u_j, u_k⟩.

The coordinator sees neither values nor cosines; members of group j learn its sums. Limits: sites share the key, and a
cosine below 0 cannot be set to 0 under encryption, so directions must have no negative components.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from crypto.ckks.bounded_packing import (
    FRESH_ERROR,
    MOST_SCALE_BITS,
    ROOM_BITS,
    SURE_DEVIATIONS,
    BoundedVector,
    Complex,
)
from crypto.ckks.parameters import SCHEME, SLOTS, CkksLevel, Form, dropped_prime
from crypto.ckks.secret_key import CkksSecret
from crypto.ckks.serialization import read_payload
from crypto.errors import BoundError, MalformedError, PrecisionError
from crypto.fixed_point import Float, Segment
from crypto.protection import Payload

COPIES = 2
"""Number of neighbouring slots with the same component of a direction; rotations by 2, 4, … then fill every slot."""
ROTATIONS = tuple(1 << step for step in range(1, SLOTS.bit_length() - 1))

_UNIT_SCALE = 2.0**45
COSINE_SCALE = _UNIT_SCALE * _UNIT_SCALE / dropped_prime(CkksLevel.UPLOAD)
_ROTATION_ERROR = 1.2e-5 * 2.0**40 / COSINE_SCALE
"""Error of a sum over all slots, in each slot; docs/explanation/ckks-error.md derives it for sums at scale 2^40."""
_COSINE_ERROR = SURE_DEVIATIONS * FRESH_ERROR * math.sqrt(2.0) / _UNIT_SCALE + _ROTATION_ERROR
_LEAST_SCALE_BITS = 30


class MixForm:
    """Public facts of a mixing of up to ``groups`` groups: directions of M components and vectors of ``segments``."""

    def __init__(self, components: int, segments: Sequence[Segment], *, groups: int) -> None:
        """Choose the layout and the scale.

        Raises ``ValueError`` without groups, components or values, and :class:`PrecisionError` for too many groups.
        """
        if components < 1 or groups < 1:
            raise ValueError("components and groups must be at least 1")
        self.components, self.groups = components, groups
        self.vector = BoundedVector(segments)
        self._scale = _scale(groups)

    @property
    def direction_parts(self) -> int:
        """Number of ciphertexts that a direction needs."""
        return -(-self.components * COPIES // SLOTS)

    @property
    def uploads(self) -> tuple[Form, ...]:
        """Forms of a leader's upload: the group's direction, then its vector."""
        direction = Form(CkksLevel.UPLOAD, _UNIT_SCALE, polynomials=1)
        vector = Form(CkksLevel.PRODUCT, self._scale, polynomials=1)
        return (direction,) * self.direction_parts + (vector,) * self.vector.parts

    @property
    def answers(self) -> tuple[Form, ...]:
        """Forms of each group's answer."""
        scale = COSINE_SCALE * self._scale / dropped_prime(CkksLevel.PRODUCT)
        return (Form(CkksLevel.ANSWER, scale, polynomials=2),) * self.vector.parts

    def error(self, magnitudes: Float) -> Float:
        """Return a bound on the error of each mixed value (L,), from ``magnitudes`` (L,) of at least Σ_k |w_k|."""
        fresh: float = SURE_DEVIATIONS * FRESH_ERROR * math.sqrt(self.groups) / self._scale
        return _COSINE_ERROR * magnitudes + self.vector.bounds * fresh

    def pack_direction(self, vector: Float) -> list[Float]:
        """Pack a vector (M,), scaled to length 1 unless zero, into slots (4096,) for each part.

        Raises :class:`BoundError` for a vector that is not finite or has a negative component, and
        :class:`MalformedError` unless it is float64 of shape (M,).
        """
        if vector.dtype != np.float64 or vector.shape != (self.components,):
            raise MalformedError(
                f"a direction must be float64 of shape ({self.components},), not {vector.dtype} of {vector.shape}"
            )
        if not ((vector >= 0.0) & np.isfinite(vector)).all():
            raise BoundError(
                "a direction to be compared under encryption has a negative or infinite component"
            )
        length = float(np.linalg.norm(vector))
        slots = np.zeros(self.direction_parts * SLOTS)
        slots[: COPIES * self.components] = np.repeat(vector / length if length else vector, COPIES)
        return list(slots.reshape(self.direction_parts, SLOTS))


class MixingSite:
    """Site half: a leader calls :meth:`protect`, every member :meth:`unprotect`."""

    def __init__(self, secret: CkksSecret, form: MixForm) -> None:
        self._secret, self._form = secret, form

    def protect(self, direction: Float, values: Float) -> Payload:
        """Encrypt a direction (M,), of any length, and values (L,).

        Raises as :meth:`MixForm.pack_direction` and :meth:`crypto.ckks.bounded_packing.BoundedVector.pack`, before
        anything is sent.
        """
        slots: list[Float | Complex] = list(self._form.pack_direction(direction))
        slots += self._form.vector.pack(values)
        pairs = zip(slots, self._form.uploads, strict=True)
        return Payload(SCHEME, blobs=tuple(self._secret.encrypt(vector, form) for vector, form in pairs))

    def unprotect(self, answer: Payload) -> Float:
        """Return the mixed values (L,), within :meth:`MixForm.error` of the exact ones.

        Raises :class:`MalformedError` for an answer of another form than prescribed, which the coordinator can see too,
        and :class:`crypto.errors.ImplausibleError` for values beyond any mix of that many groups, which the coordinator
        must not learn (:mod:`crypto.ckks.secret_key`).
        """
        vectors = [self._secret.decrypt(each) for each in read_payload(answer, self._form.answers)]
        most = float(self._form.groups)
        return self._form.vector.unpack(vectors, most, self._form.error(most * self._form.vector.bounds))


def _scale(groups: int) -> float:
    """Return the vectors' scale: the largest power of two at which the sums of that many groups fit."""
    gained = math.log2(COSINE_SCALE / dropped_prime(CkksLevel.PRODUCT))
    bits = math.floor(ROOM_BITS - gained - math.log2(math.sqrt(2.0) * groups))
    if bits < _LEAST_SCALE_BITS:
        raise PrecisionError(f"{groups} groups cannot be mixed in a modulus of 60 bits")
    return 2.0 ** min(bits, MOST_SCALE_BITS)
