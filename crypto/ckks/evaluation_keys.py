"""The public keys with which the coordinator computes: one to relinearise, one to conjugate, one for each rotation.

They open nothing. Still they are encryptions under the group's secret key, made by one site, and a coordinator
that is given others computes garbage. Their hash is bound to the sealed secret by the maker's signature, which the
coordinator verifies; that the maker made them with the very secret that it sealed, nobody but its peers can find out,
by what they decrypt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tenseal import sealapi

from crypto.ckks.parameters import POLY_DEGREE, SLOTS, Level, context
from crypto.ckks.serialization import load
from crypto.errors import MalformedError, UnknownSchemeError

_MARKER = b"protoseal-ckks-evaluation-1:"
_LENGTH_BYTES = 8
_PARTS = int(Level.UPLOAD)
"""A key has a part for each prime that a ciphertext can have."""
_POWER = 2
"""A product of two ciphertexts is relinearised at once, so that no higher power of the secret key occurs."""

GALOIS_ELEMENTS = [
    *(pow(3, 1 << step, 2 * POLY_DEGREE) for step in range(1, SLOTS.bit_length() - 1)),
    2 * POLY_DEGREE - 1,
]
"""Rotation by s slots is X -> X^(3^s): all powers of two but 1, so that one set of keys serves any number of classes
(:class:`crypto.ckks.packing.Packing`). The last one, X -> X^-1, conjugates."""


@dataclass(frozen=True)
class LoadedKeys:
    """Keys in SEAL's own types."""

    relinearisation: Any
    rotation: Any


@dataclass(frozen=True, repr=False)
class EvaluationKeys:
    """SEAL's serialization of relinearisation and Galois keys, about 9 MB. Public."""

    relinearisation: bytes
    rotation: bytes

    def to_bytes(self) -> bytes:
        """Version marker, length of the first part (8 bytes, big-endian), both parts."""
        length = len(self.relinearisation).to_bytes(_LENGTH_BYTES, "big")
        return _MARKER + length + self.relinearisation + self.rotation

    @classmethod
    def from_bytes(cls, content: bytes) -> EvaluationKeys:
        """The inverse of :meth:`to_bytes`. The parts are not looked at before :meth:`load`.

        Raises :class:`UnknownSchemeError` without this version's marker.
        """
        if not content.startswith(_MARKER):
            raise UnknownSchemeError("evaluation keys have no version marker of this build")
        body = content.removeprefix(_MARKER)
        split = _LENGTH_BYTES + int.from_bytes(body[:_LENGTH_BYTES], "big")
        return cls(body[_LENGTH_BYTES:split], body[split:])

    @property
    def hash(self) -> bytes:
        """SHA-256 of :meth:`to_bytes`."""
        return hashlib.sha256(self.to_bytes()).digest()

    def load(self) -> LoadedKeys:
        """The keys, ready for use; :class:`MalformedError` unless they are all there, and no others.

        SEAL holds each part of a key to its parameters; how many parts and keys there are, it leaves open. It
        inflates the content before anything can be said about it: a few megabytes can take gigabytes. Keys that
        nobody has checked belong in a process with bounded memory.
        """
        relinearisation = load(sealapi.RelinKeys(), self.relinearisation)
        rotation = load(sealapi.GaloisKeys(), self.rotation)
        _check_key_level(relinearisation)
        _check_key_level(rotation)
        _check_parts(relinearisation, [sealapi.RelinKeys.get_index(_POWER)])
        _check_parts(rotation, map(sealapi.GaloisKeys.get_index, GALOIS_ELEMENTS))
        return LoadedKeys(relinearisation, rotation)

    def __repr__(self) -> str:
        return f"EvaluationKeys(sha256={self.hash.hex()[:16]}…)"


def _check_key_level(keys: Any) -> None:
    if list(keys.parms_id()) != list(context().key_parms_id()):
        raise MalformedError("evaluation keys of other parameters")


def _check_parts(keys: Any, places: Iterable[int]) -> None:
    """Whole keys in these places and nowhere else: SEAL's arithmetic reads past the end of one with fewer parts."""
    present = {place: len(parts) for place, parts in enumerate(keys.data()) if parts}
    if present != dict.fromkeys(places, _PARTS):
        raise MalformedError("evaluation keys for other steps than the circuit's, or without all their parts")
