"""Arithmetic on ciphertexts, one method per operation, with public keys only.

Vectors that need several ciphertexts are lists of parts. No method changes its arguments, except that
:meth:`Circuit.add_to` changes its first: SEAL's ciphertexts cannot be copied, and two receivers may share a sum.

:func:`load_circuit` gives each process of the coordinator the circuit of one file of evaluation keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from tenseal import sealapi

from crypto.ckks.evaluation_keys import EvaluationKeys, LoadedKeys
from crypto.ckks.packing import Complex
from crypto.ckks.parameters import POLY_DEGREE, SLOTS, Ciphertext, CkksLevel, context, level_id
from crypto.errors import KeyStoreError, MalformedError, VerificationError
from crypto.fixed_point import Float

Ciphertexts = Sequence[Ciphertext]

IMAGINARY_UNIT = POLY_DEGREE // 2
"""Exponent e for which X^e alternates between i and −i from slot to slot, and is unchanged by even rotations."""


class Circuit:
    """Evaluator of ciphertexts with one group's public keys."""

    def __init__(self, keys: LoadedKeys) -> None:
        self._keys = keys
        self._evaluator = sealapi.Evaluator(context())
        self._encoder = sealapi.CKKSEncoder(context())
        self._monomial = cache(self._encoded_monomial)

    def add(self, left: Ciphertext, right: Ciphertext) -> Ciphertext:
        """Return x + y."""
        result = sealapi.Ciphertext()
        self._evaluator.add(left, right, result)
        return result

    def add_to(self, total: Ciphertext, term: Ciphertext) -> None:
        """Add ``term`` to ``total`` in place; no other method changes an argument."""
        self._evaluator.add_inplace(total, term)

    def add_all(self, terms: Sequence[Ciphertext]) -> Ciphertext:
        """Return the sum of at least one ciphertext."""
        result = sealapi.Ciphertext()
        self._evaluator.add_many(list(terms), result)
        return result

    def add_values(self, ciphertext: Ciphertext, slots: Float | Complex) -> Ciphertext:
        """Return x + slots, with the vector (4096,) encoded at the ciphertext's own level and scale."""
        # SEAL adds only operands of one level and one scale, so the plaintext takes the ciphertext's.
        plaintext = self._encode(slots, ciphertext.parms_id(), ciphertext.scale)
        result = sealapi.Ciphertext()
        self._evaluator.add_plain(ciphertext, plaintext, result)
        return result

    def subtract(self, left: Ciphertext, right: Ciphertext) -> Ciphertext:
        """Return x − y."""
        result = sealapi.Ciphertext()
        self._evaluator.sub(left, right, result)
        return result

    def multiply(self, left: Ciphertext, right: Ciphertext) -> Ciphertext:
        """Return x·y, slot by slot, with three polynomials."""
        result = sealapi.Ciphertext()
        self._evaluator.multiply(left, right, result)
        return result

    def scale_up(self, ciphertext: Ciphertext, factor: float) -> Ciphertext:
        """Return the same values at a scale that is an integer ``factor`` times as large."""
        plaintext = sealapi.Plaintext()
        # A one encoded at scale ``factor`` is the integer ``factor``: no value changes, and nothing is rounded.
        self._encoder.encode(1.0, ciphertext.parms_id(), factor, plaintext)
        return self._multiply_plain(ciphertext, plaintext)

    def multiply_values(self, ciphertext: Ciphertext, slots: Float | Complex, scale: float) -> Ciphertext:
        """Return x·slots, slot by slot, with the vector (4096,) encoded at ``scale``, by which the result's grows."""
        return self._multiply_plain(ciphertext, self._encode(slots, ciphertext.parms_id(), scale))

    def multiply_by_monomial(self, ciphertext: Ciphertext, exponent: int) -> Ciphertext:
        """Return X^exponent·x, which rotates each slot by its own angle, exactly, at the same level and scale."""
        return self._multiply_plain(ciphertext, self._monomial(exponent, tuple(ciphertext.parms_id())))

    def relinearise(self, ciphertext: Ciphertext) -> Ciphertext:
        """Reduce a ciphertext to two polynomials."""
        result = sealapi.Ciphertext()
        self._evaluator.relinearize(ciphertext, self._keys.relinearisation, result)
        return result

    def rescale(self, ciphertext: Ciphertext) -> Ciphertext:
        """Lower a ciphertext by one level, dividing the scale by the dropped prime."""
        result = sealapi.Ciphertext()
        self._evaluator.rescale_to_next(ciphertext, result)
        return result

    def rotate(self, ciphertext: Ciphertext, step: int) -> Ciphertext:
        """Rotate the slots by a power of two above 1."""
        result = sealapi.Ciphertext()
        self._evaluator.rotate_vector(ciphertext, step, self._keys.rotation, result)
        return result

    def conjugate(self, ciphertext: Ciphertext) -> Ciphertext:
        """Return the complex conjugate of each slot."""
        result = sealapi.Ciphertext()
        self._evaluator.complex_conjugate(ciphertext, self._keys.rotation, result)
        return result

    def lower(self, ciphertext: Ciphertext, level: CkksLevel) -> Ciphertext:
        """Return the same values at the same scale, with fewer primes."""
        result = sealapi.Ciphertext()
        self._evaluator.mod_switch_to(ciphertext, level_id(level), result)
        return result

    def _multiply_plain(self, ciphertext: Ciphertext, plaintext: Any) -> Ciphertext:
        result = sealapi.Ciphertext()
        self._evaluator.multiply_plain(ciphertext, plaintext, result)
        return result

    def _encoded_monomial(self, exponent: int, level: tuple[int, ...]) -> Any:
        """Encode X^exponent at scale 1, where rounding to whole coefficients leaves exactly its one coefficient."""
        # Slot s holds a polynomial's value at ζ^(3^s), ζ a primitive 2N-th root of unity, so X^e is ζ^(e·3^s) there.
        roots = [pow(3, slot, 2 * POLY_DEGREE) * exponent % (2 * POLY_DEGREE) for slot in range(SLOTS)]
        return self._encode(np.exp(np.array(roots) * (1j * np.pi / POLY_DEGREE)), list(level), 1.0)

    def _encode(self, slots: Float | Complex, level: list[int], scale: float) -> Any:
        plaintext = sealapi.Plaintext()
        self._encoder.encode(slots.tolist(), level, scale, plaintext)
        return plaintext


@dataclass(frozen=True)
class KeysFile:
    """File at ``path`` with :meth:`EvaluationKeys.to_bytes`, and the SHA-256 of its content."""

    path: Path
    hash: bytes

    @classmethod
    def at(cls, path: Path) -> KeysFile:
        """Hash the file as it is now; raise :class:`KeyStoreError` if it cannot be read."""
        try:
            with path.open("rb") as file:
                return cls(path, hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise KeyStoreError(f"the group's evaluation keys are not in {path}: {error.strerror}") from error


# One entry suffices: a group that makes new keys no longer needs the old ones.
@lru_cache(maxsize=1)
def load_circuit(keys: KeysFile) -> Circuit:
    """Load the keys and return the circuit, once per process, because loading takes longer than some rounds.

    Raises :class:`KeyStoreError` for a file that cannot be read, and :class:`VerificationError` for a changed file.
    """
    try:
        loaded = EvaluationKeys.from_bytes(keys.path.read_bytes())
    except OSError as error:
        raise KeyStoreError(f"the evaluation keys in {keys.path} cannot be read: {error.strerror}") from error
    if loaded.hash != keys.hash:
        raise VerificationError(
            f"the evaluation keys in {keys.path} changed while an aggregation was running"
        )
    return Circuit(loaded.load())


@contextmanager
def seal_errors_as_malformed() -> Iterator[None]:
    """Convert SEAL's bare errors, e.g. for the difference of equal ciphertexts, to :class:`MalformedError`."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise MalformedError(f"the payloads cannot be combined: {error}") from error
