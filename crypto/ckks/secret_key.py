"""Secret key of the group, with which only sites encrypt and decrypt.

**Nothing derived from a decryption may go back to the coordinator.** A CKKS decryption is the message plus the
ciphertext's noise, and with the known circuit that noise reveals the key: two decryptions suffice (Li and Micciancio,
eprint 2020/1533). The rule includes rounded values, statistics, and the *reason* why an answer was rejected.

Limit: all sites of a run share the key, so a coordinator that colludes with any site reads everything.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from tenseal import sealapi

from crypto.ckks.evaluation_keys import GALOIS_ELEMENTS, EvaluationKeys
from crypto.ckks.parameters import Ciphertext, CiphertextShape, context, level_id
from crypto.ckks.serialization import dump, load
from crypto.errors import UnknownSchemeError
from crypto.fixed_point import Float

_MARKER = b"protoseal-ckks-secret-1:"


class CkksSecret:
    """Secret key, which only :meth:`to_bytes` exports, and which cannot be pickled."""

    def __init__(self, key: sealapi.SecretKey) -> None:
        self._key = key
        self._encryptor = sealapi.Encryptor(context(), key)
        self._decryptor = sealapi.Decryptor(context(), key)
        self._encoder = sealapi.CKKSEncoder(context())

    @classmethod
    def generate(cls) -> tuple[CkksSecret, EvaluationKeys]:
        """Generate a secret key, and the public evaluation keys for the coordinator.

        SEAL seeds its generator from the operating system for each key and each encryption.
        """
        generator = sealapi.KeyGenerator(context())
        public = EvaluationKeys(
            relinearisation=dump(generator.create_relin_keys()),
            rotation=dump(generator.create_galois_keys(GALOIS_ELEMENTS)),
        )
        return cls(generator.secret_key()), public

    @classmethod
    def from_bytes(cls, content: bytes) -> CkksSecret:
        """Load the key that :meth:`to_bytes` returned.

        Raises :class:`UnknownSchemeError` without this version's marker, and :class:`crypto.errors.MalformedError` for
        bytes that SEAL cannot load. Limit: any key can be loaded, so the caller must check who made it.
        """
        if not content.startswith(_MARKER):
            raise UnknownSchemeError("a group secret lacks this build's version marker")
        return cls(load(sealapi.SecretKey(), content.removeprefix(_MARKER)))

    def to_bytes(self) -> bytes:
        """Return the *secret* key, about 232 kB, which may only be sealed to another site or stored encrypted."""
        return _MARKER + dump(self._key)

    def encrypt(self, slots: Float | NDArray[np.complex128], shape: CiphertextShape) -> bytes:
        """Encrypt a vector (4096,), with the second polynomial as a seed, which halves the size.

        The encryption is symmetric, so that a site never encrypts under a public key that the coordinator relayed.
        """
        plaintext = sealapi.Plaintext()
        self._encoder.encode(slots.tolist(), level_id(shape.level), shape.scale, plaintext)
        return dump(self._encryptor.encrypt_symmetric(plaintext))

    def decrypt(self, ciphertext: Ciphertext) -> NDArray[np.complex128]:
        """Return the slots (4096,), which include the ciphertext's noise: see the module's warning."""
        # The noise stays in: rounding it off would not make the result safe to send back (see the module).
        plaintext = sealapi.Plaintext()
        self._decryptor.decrypt(ciphertext, plaintext)
        return np.array(self._encoder.decode_complex(plaintext), dtype=np.complex128)

    def __repr__(self) -> str:
        return "CkksSecret(<redacted>)"
