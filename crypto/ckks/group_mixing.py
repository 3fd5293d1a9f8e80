"""Mixing of groups by their cosines on ciphertexts: w_j + Σ_{k≠j} ⟨u_j, u_k⟩·w_k for each group j.

One member of each group, its leader, knows the group's direction u_j (zeros for a group without one) and the values
w_j to be mixed, and sends both freshly encrypted. The coordinator computes the cosines, each in every slot of a
ciphertext, and from them the sums. The divisors are computed in the same way: for a value 1 in w_j the sum is
1 + Σ_k ⟨u_j, u_k⟩.

The coordinator sees neither values nor cosines; members of group j learn its sums. Limits: sites share the key, and a
cosine below 0 cannot be set to 0 under encryption, so directions must have no negative components.

:class:`MixLayout` has the public facts, :class:`MixingSite` is a site's half and :class:`MixingServer` the
coordinator's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from tenseal import sealapi

from crypto.ckks.circuit import Circuit, KeysFile, load_circuit, seal_errors_as_malformed
from crypto.ckks.packing import (
    FRESH_ERROR,
    MOST_SCALE_BITS,
    ROOM_BITS,
    SURE_DEVIATIONS,
    BoundedVector,
    Complex,
)
from crypto.ckks.parameters import SCHEME, SLOTS, Ciphertext, CiphertextShape, CkksLevel, dropped_prime
from crypto.ckks.secret_key import CkksSecret
from crypto.ckks.serialization import dump, load, read_ciphertext, read_ciphertexts, read_payload
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


class MixLayout:
    """Public facts of a mixing of up to ``groups`` groups: directions of M components and vectors of ``segments``."""

    def __init__(self, components: int, segments: Sequence[Segment], *, groups: int) -> None:
        """Choose the layout and the scale.

        Raises ``ValueError`` without groups, components or values, and :class:`PrecisionError` for too many groups.
        """
        if components < 1 or groups < 1:
            raise ValueError("components and groups must be at least 1")
        self.components = components
        self.groups = groups
        self.vector = BoundedVector(segments)
        self._scale = _scale(groups)

    @property
    def direction_parts(self) -> int:
        """Number of ciphertexts that a direction needs."""
        return -(-self.components * COPIES // SLOTS)

    @property
    def uploads(self) -> tuple[CiphertextShape, ...]:
        """Shapes of a leader's upload: the group's direction, then its vector."""
        direction = CiphertextShape(CkksLevel.UPLOAD, _UNIT_SCALE, polynomials=1)
        vector = CiphertextShape(CkksLevel.PRODUCT, self._scale, polynomials=1)
        return (direction,) * self.direction_parts + (vector,) * self.vector.parts

    @property
    def answers(self) -> tuple[CiphertextShape, ...]:
        """Shapes of each group's answer."""
        scale = COSINE_SCALE * self._scale / dropped_prime(CkksLevel.PRODUCT)
        return (CiphertextShape(CkksLevel.ANSWER, scale, polynomials=2),) * self.vector.parts

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
        # A negative cosine cannot be set to 0 under encryption; components of one sign give none.
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

    def __init__(self, secret: CkksSecret, layout: MixLayout) -> None:
        self._secret = secret
        self._layout = layout

    def protect(self, direction: Float, values: Float) -> Payload:
        """Encrypt a direction (M,), of any length, and values (L,).

        Raises as :meth:`MixLayout.pack_direction` and :meth:`crypto.ckks.packing.BoundedVector.pack`, before
        anything is sent.
        """
        slots: list[Float | Complex] = list(self._layout.pack_direction(direction))
        slots += self._layout.vector.pack(values)
        pairs = zip(slots, self._layout.uploads, strict=True)
        return Payload(SCHEME, blobs=tuple(self._secret.encrypt(vector, shape) for vector, shape in pairs))

    def unprotect(self, answer: Payload) -> Float:
        """Return the mixed values (L,), within :meth:`MixLayout.error` of the exact ones.

        Raises :class:`MalformedError` for an answer of another form than prescribed, which the coordinator can see too,
        and :class:`crypto.errors.ImplausibleError` for values beyond any mix of that many groups, which the coordinator
        must not learn (:mod:`crypto.ckks.secret_key`).
        """
        vectors = [self._secret.decrypt(part) for part in read_payload(answer, self._layout.answers)]
        # A cosine is at most 1, so a mix is at most a sum of all groups' values.
        terms = float(self._layout.groups)
        return self._layout.vector.unpack(
            vectors, terms, self._layout.error(terms * self._layout.vector.bounds)
        )


def _scale(groups: int) -> float:
    """Return the vectors' scale: the largest power of two at which the sums of that many groups fit."""
    # Each product with a cosine multiplies the scale, and the last rescaling divides it; the sum must fit what is left.
    gained = math.log2(COSINE_SCALE / dropped_prime(CkksLevel.PRODUCT))
    bits = math.floor(ROOM_BITS - gained - math.log2(math.sqrt(2.0) * groups))
    if bits < _LEAST_SCALE_BITS:
        raise PrecisionError(f"{groups} groups cannot be mixed in a modulus of 60 bits")
    return 2.0 ** min(bits, MOST_SCALE_BITS)


Pair = tuple[int, int]
Cosines = Mapping[Pair, bytes]
_PARTS_AT_ONCE = 8
"""Number of vectors' parts in one task, which also loads the cosines of all groups."""


@dataclass(frozen=True)
class Columns:
    """Parts of the vectors of all groups: ``parts``[p][j] is part p of group j, in the shape ``shape``."""

    shape: CiphertextShape
    parts: Sequence[Sequence[bytes]] = field(repr=False)


class MixingServer:
    """Server half that mixes groups without the sites' secret key."""

    def __init__(self, layout: MixLayout, keys_path: Path, executor: Executor | None) -> None:
        """Take the evaluation keys' file and an executor, as :class:`crypto.ckks.peer_server.CkksServer`."""
        self._layout = layout
        self._keys_path = keys_path
        self._map: Callable[..., Iterable[Any]] = executor.map if executor else map

    def validate(self, payload: Payload) -> None:
        """Raise :class:`crypto.errors.MalformedError` unless each ciphertext has exactly the form prescribed."""
        read_payload(payload, self._layout.uploads)

    def mix(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Return each group's sums, in the groups' order.

        Each pair of groups costs 12 key switches (11 rotations and a relinearisation), each part of each answer one.
        Raises :class:`crypto.errors.MalformedError` for payloads that cannot be combined, and
        :class:`crypto.errors.KeyStoreError` without evaluation keys.
        """
        keys, shapes = KeysFile.at(self._keys_path), self._layout.uploads
        directions, vectors = zip(*map(self._split, payloads), strict=True)
        # ⟨u_j, u_k⟩ = ⟨u_k, u_j⟩: one cosine, the costly part, serves both groups of a pair.
        pairs = list(combinations(range(len(payloads)), 2))
        sides = [(directions[j], directions[k]) for j, k in pairs]
        cosines = dict(zip(pairs, self._map(partial(_cosine, keys, shapes[0]), sides), strict=True))
        parts = list(zip(*vectors, strict=True))
        columns = [
            Columns(shapes[-1], parts[start : start + _PARTS_AT_ONCE])
            for start in range(0, len(parts), _PARTS_AT_ONCE)
        ]
        mixed = [part for piece in self._map(partial(_mix_columns, keys, cosines), columns) for part in piece]
        return [Payload(SCHEME, blobs=blobs) for blobs in zip(*mixed, strict=True)]

    def _split(self, payload: Payload) -> tuple[Sequence[bytes], Sequence[bytes]]:
        """Return the ciphertexts of a direction and of a vector, whose forms are checked when they are read."""
        if len(payload.blobs) != len(self._layout.uploads):
            raise MalformedError(
                f"a payload has {len(payload.blobs)} ciphertexts instead of {len(self._layout.uploads)}"
            )
        split = self._layout.direction_parts
        return payload.blobs[:split], payload.blobs[split:]


def _cosine(keys: KeysFile, shape: CiphertextShape, sides: tuple[Sequence[bytes], Sequence[bytes]]) -> bytes:
    """Return ⟨u_j, u_k⟩ in every slot, at the level of products."""
    circuit = load_circuit(keys)
    with seal_errors_as_malformed():
        left, right = (read_ciphertexts(side, (shape,) * len(side)) for side in sides)
        products = [circuit.multiply(x, y) for x, y in zip(left, right, strict=True)]
        # Added first, so that one relinearisation serves all parts. Rescaling lowers the cosine to the level of the
        # groups' vectors.
        total = circuit.rescale(circuit.relinearise(circuit.add_all(products)))
        # Rotations by 2, 4, … leave in every slot the sum over the slots of its parity, which has each component once.
        for step in ROTATIONS:
            total = circuit.add(total, circuit.rotate(total, step))
        return dump(total)


def _mix_columns(keys: KeysFile, cosines: Cosines, columns: Columns) -> list[list[bytes]]:
    """Return for each part a list of one ciphertext for each group."""
    circuit = load_circuit(keys)
    with seal_errors_as_malformed():
        loaded = {pair: load(sealapi.Ciphertext(), blob) for pair, blob in cosines.items()}
        return [_mix_part(circuit, loaded, part, columns.shape) for part in columns.parts]


def _mix_part(
    circuit: Circuit, cosines: Mapping[Pair, Ciphertext], blobs: Sequence[bytes], shape: CiphertextShape
) -> list[bytes]:
    vectors = [read_ciphertext(blob, shape) for blob in blobs]
    # The group's own vector gets the scale of a product, without which the two could not be added; its factor is 1.
    totals = [circuit.scale_up(vector, COSINE_SCALE) for vector in vectors]
    for (j, k), cosine in cosines.items():
        circuit.add_to(totals[j], circuit.multiply(cosine, vectors[k]))
        circuit.add_to(totals[k], circuit.multiply(cosine, vectors[j]))
    # Three polynomials until here: relinearising each sum costs one key switch, each product would cost one per pair.
    return [dump(circuit.rescale(circuit.relinearise(total))) for total in totals]
