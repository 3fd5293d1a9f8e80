"""Recovery of the CKKS key from a decryption that comes back (Li and Micciancio, eprint 2020/1533).

A ciphertext is (b, a) with b + a·s = m, and a CKKS decryption *is* m, noise and all: s = (m − b)/a. The attack has a
result that the coordinator sent, what came back, and public parameters. It needs one result, and takes the polynomial
m or its decoded slots.

Limit: only an exact decryption of the very ciphertext that was sent gives the key, not rounded values. Slots flooded
with noise are too large for a double to hold exactly, so that there only the polynomial gives the key.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tenseal import sealapi

from crypto.ckks.parameters import POLY_DEGREE, Ciphertext, CkksLevel, Form, context, level_id
from crypto.ckks.secret_key import CkksSecret
from crypto.ckks.serialization import dump, load
from protoseal_wire import codec
from protoseal_wire.messages import Acknowledgement

Slots = NDArray[np.complex128]

ACKNOWLEDGED = codec.encode_acknowledgement(Acknowledgement())
_ROOTS = np.array([pow(3, slot, 2 * POLY_DEGREE) for slot in range(POLY_DEGREE // 2)])
"""Slot j holds a polynomial's value at exp(iπr/N) for the j-th of these r."""
_TERNARY = 1e-6
"""Distance from a whole number beyond which a value is no coefficient: rounding leaves 1e-14, other keys spread
evenly.
"""


class NoKey(Exception):
    """Failure of the coordinator to find a secret key in what it was told."""


def recovered(sent: Ciphertext, form: Form, came_back: bytes) -> CkksSecret:
    """Return the group's secret key, or raise :class:`NoKey`.

    ``sent`` is the first ciphertext of a result, of that ``form``, and ``came_back`` its acknowledgement.
    """
    told = came_back.removeprefix(ACKNOWLEDGED)
    if not told:
        raise NoKey("an acknowledgement says nothing")
    try:
        return _key_for(sent, np.frombuffer(told, dtype=np.uint64)[:POLY_DEGREE].tolist())
    except NoKey:
        return _key_for(sent, encoded(np.frombuffer(told, dtype=np.complex128)[: POLY_DEGREE // 2], form))


def decrypted_polynomial(secret: CkksSecret, sent: Ciphertext) -> bytes:
    """Return the decryption of a ciphertext before it is decoded: a polynomial's transform, modulo the last prime."""
    _, _, key = secret.to_bytes().partition(b":")
    plaintext = sealapi.Plaintext()
    sealapi.Decryptor(context(), load(sealapi.SecretKey(), key)).decrypt(sent, plaintext)
    return np.array([plaintext[i] for i in range(POLY_DEGREE)], dtype=np.uint64).tobytes()


def _key_for(sent: Ciphertext, message: Sequence[int]) -> CkksSecret:
    """Return the key under which ``sent`` decrypts to ``message``, or raise :class:`NoKey`."""
    prime = int(context().key_context_data().parms().coeff_modulus()[0].value())
    key = [(message[i] - sent[i]) * pow(sent[POLY_DEGREE + i], -1, prime) % prime for i in range(POLY_DEGREE)]
    return key_of(ternary(key))


def encoded(slots: Slots, form: Form) -> Sequence[int]:
    """Return a decryption as the polynomial that it was, modulo the last prime: exactly, since a double has 53 bits."""
    plaintext = sealapi.Plaintext()
    sealapi.CKKSEncoder(context()).encode(slots.tolist(), level_id(CkksLevel.ANSWER), form.scale, plaintext)
    return [plaintext[i] for i in range(POLY_DEGREE)]


def ternary(transformed: Sequence[int]) -> NDArray[np.int64]:
    """Return the coefficients (N,) of a polynomial from its number-theoretic transform.

    Raises :class:`NoKey` unless they are in {-1, 0, 1}.
    """
    values = np.array(sealapi.CKKSEncoder(context()).decode_complex(plaintext_of(transformed)))
    at_roots = np.zeros(2 * POLY_DEGREE, dtype=np.complex128)
    at_roots[_ROOTS], at_roots[-_ROOTS] = values, values.conj()
    coefficients = np.fft.fft(at_roots)[:POLY_DEGREE].real / POLY_DEGREE
    key = np.rint(coefficients)
    if np.abs(coefficients - key).max() > _TERNARY or np.abs(key).max() > 1:
        raise NoKey("what was told does not go with the ciphertext")
    return key.astype(np.int64)


def plaintext_of(transformed: Sequence[int]) -> sealapi.Plaintext:
    """Return SEAL's plaintext of these numbers at scale 1, by way of its serialization: nothing else sets them."""
    version = dump(sealapi.Plaintext())[3:5]
    body = struct.pack("<4QQd", *level_id(CkksLevel.ANSWER), POLY_DEGREE, 1.0)
    numbers = struct.pack(f"<Q{POLY_DEGREE}Q", POLY_DEGREE, *transformed)
    return load(sealapi.Plaintext(), _with_header(body + _with_header(numbers, version), version))


def _with_header(body: bytes, version: bytes) -> bytes:
    """Return the body with a header that says that it is not compressed."""
    return struct.pack("<HB2sBHQ", 0xA15E, 16, version, 0, 0, 16 + len(body)) + body


def key_of(coefficients: NDArray[np.int64]) -> CkksSecret:
    """Return SEAL's secret key of a ternary polynomial, modulo all primes."""
    at_roots = np.fft.ifft(np.concatenate([coefficients, -coefficients])) * POLY_DEGREE
    plaintext, key = sealapi.Plaintext(), sealapi.SecretKey()
    encoder, primes = sealapi.CKKSEncoder(context()), list(context().key_parms_id())
    encoder.encode(at_roots[_ROOTS].tolist(), primes, 1.0, plaintext)
    with tempfile.NamedTemporaryFile() as file:
        plaintext.save(file.name)
        key.load(context(), file.name)
    return CkksSecret(key)
