"""The group's secret key: what it encrypts and decrypts never leaves a site.

**Nothing derived from a decryption may go back to the coordinator.** A CKKS decryption is the message plus the
ciphertext's noise, and with the known circuit that noise gives away the key: two decryptions suffice (Li and
Micciancio, eprint 2020/1533). Not a rounded value, not a statistic, not *why* an answer was refused.

The key is shared by all sites of a run. A coordinator that colludes with any of them reads everything.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from tenseal import sealapi

from crypto.ckks.evaluation_keys import GALOIS_ELEMENTS, EvaluationKeys
from crypto.ckks.packing import Float
from crypto.ckks.parameters import Ciphertext, Form, context, level_id
from crypto.ckks.serialization import dump, load
from crypto.errors import UnknownSchemeError

_MARKER = b"protoseal-ckks-secret-1:"


class CkksSecret:
    """The secret key. It has no representation but :meth:`to_bytes`, and cannot be pickled."""

    def __init__(self, key: sealapi.SecretKey) -> None:
        self._key = key
        self._encryptor = sealapi.Encryptor(context(), key)
        self._decryptor = sealapi.Decryptor(context(), key)
        self._encoder = sealapi.CKKSEncoder(context())

    @classmethod
    def generate(cls) -> tuple[CkksSecret, EvaluationKeys]:
        """A fresh secret key, and the public keys for the coordinator's side of it.

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
        """The key that :meth:`to_bytes` gave.

        Raises :class:`UnknownSchemeError` without this version's marker, :class:`MalformedError` for what SEAL
        cannot load. Who made it is the caller's to check: any key can be loaded.
        """
        if not content.startswith(_MARKER):
            raise UnknownSchemeError("a group secret has no version marker of this build")
        return cls(load(sealapi.SecretKey(), content.removeprefix(_MARKER)))

    def to_bytes(self) -> bytes:
        """The *secret* key, about 232 kB. To be sealed to another site or stored encrypted, and nothing else."""
        return _MARKER + dump(self._key)

    def encrypt(self, slots: Float | NDArray[np.complex128], form: Form) -> bytes:
        """A fresh encryption of a vector (4096,), its second polynomial as a seed: half the size.

        Symmetric: a site never encrypts under a public key that the coordinator relayed.
        """
        plaintext = sealapi.Plaintext()
        self._encoder.encode(slots.tolist(), level_id(form.level), form.scale, plaintext)
        return dump(self._encryptor.encrypt_symmetric(plaintext))

    def decrypt(self, ciphertext: Ciphertext) -> NDArray[np.complex128]:
        """The slots (4096,), with the ciphertext's noise in them: see the module's warning."""
        plaintext = sealapi.Plaintext()
        self._decryptor.decrypt(ciphertext, plaintext)
        return np.array(self._encoder.decode_complex(plaintext), dtype=np.complex128)

    def __repr__(self) -> str:
        return "CkksSecret(<redacted>)"
