"""Evaluation keys, the coordinator's public keys: one to relinearise, one to conjugate, one for each rotation.

Evaluation keys decrypt nothing, but they are encryptions under the group's secret key, made by one site, and with wrong
keys the coordinator computes garbage. The maker's signature, which the coordinator verifies, binds the keys' hash to
the sealed secret. Limit: only the maker's peers can notice, by their decryptions, that the keys do not belong to the
sealed secret.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tenseal import sealapi

from crypto.ckks.parameters import POLY_DEGREE, SLOTS, CkksLevel, context
from crypto.ckks.serialization import load
from crypto.errors import MalformedError, UnknownSchemeError

_MARKER = b"protoseal-ckks-evaluation-1:"
_LENGTH_BYTES = 8
_PARTS = int(CkksLevel.UPLOAD)
"""Number of parts of a key: one for each prime that a ciphertext can have."""
_POWER = 2
"""Highest power of the secret key, since a product of two ciphertexts is relinearised at once."""

GALOIS_ELEMENTS = [
    *(pow(3, 1 << step, 2 * POLY_DEGREE) for step in range(1, SLOTS.bit_length() - 1)),
    2 * POLY_DEGREE - 1,
]
"""Galois elements of the rotations by all powers of two except 1, and last of the conjugation X -> X^-1.

Rotation by s slots is X -> X^(3^s). One set of keys serves any number of classes
(:class:`crypto.ckks.packing.Packing`).
"""


@dataclass(frozen=True)
class LoadedKeys:
    """Evaluation keys in SEAL's own types."""

    relinearisation: Any
    rotation: Any


@dataclass(frozen=True, repr=False)
class EvaluationKeys:
    """Public relinearisation and Galois keys in SEAL's serialization, about 9 MB."""

    relinearisation: bytes
    rotation: bytes

    def to_bytes(self) -> bytes:
        """Return version marker, length of the first part (8 bytes, big-endian), and both parts."""
        length = len(self.relinearisation).to_bytes(_LENGTH_BYTES, "big")
        return _MARKER + length + self.relinearisation + self.rotation

    @classmethod
    def from_bytes(cls, content: bytes) -> EvaluationKeys:
        """Split the result of :meth:`to_bytes`; only :meth:`load` checks the parts.

        Raises :class:`UnknownSchemeError` without this version's marker.
        """
        if not content.startswith(_MARKER):
            raise UnknownSchemeError("evaluation keys lack this build's version marker")
        body = content.removeprefix(_MARKER)
        split = _LENGTH_BYTES + int.from_bytes(body[:_LENGTH_BYTES], "big")
        return cls(body[_LENGTH_BYTES:split], body[split:])

    @property
    def hash(self) -> bytes:
        """SHA-256 of :meth:`to_bytes`."""
        return hashlib.sha256(self.to_bytes()).digest()

    def load(self) -> LoadedKeys:
        """Return the loaded keys; raise :class:`MalformedError` unless exactly the required keys are present.

        SEAL checks each part of a key against its parameters, but not the numbers of parts and keys. Limit: SEAL
        inflates the content before it can be checked, and a few megabytes can take gigabytes, so load untrusted keys in
        a process with bounded memory.
        """
        relinearisation = load(sealapi.RelinKeys(), self.relinearisation)
        rotation = load(sealapi.GaloisKeys(), self.rotation)
        _check_keys(relinearisation, [sealapi.RelinKeys.get_index(_POWER)])
        _check_keys(rotation, map(sealapi.GaloisKeys.get_index, GALOIS_ELEMENTS))
        return LoadedKeys(relinearisation, rotation)

    def __repr__(self) -> str:
        return f"EvaluationKeys(sha256={self.hash.hex()[:16]}…)"


def _check_keys(keys: Any, places: Iterable[int]) -> None:
    """Raise unless exactly these places have whole keys of this scheme's parameters."""
    if list(keys.parms_id()) != list(context().key_parms_id()):
        raise MalformedError("evaluation keys have other parameters than this scheme's")
    # SEAL's arithmetic reads past the end of a partial key.
    present = {place: len(parts) for place, parts in enumerate(keys.data()) if parts}
    if present != dict.fromkeys(places, _PARTS):
        raise MalformedError("evaluation keys are incomplete, or for other rotations than the circuit's")
