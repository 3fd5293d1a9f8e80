"""The scheme's fixed parameters, and the form each ciphertext on the wire must have.

Ring degree 8192 and moduli of 60, 40, 40 and 60 bits: 200 of the 218 bits that the homomorphic encryption
standard allows for 128-bit security with a ternary secret. Two multiplications deep.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any

from tenseal import sealapi

from crypto.protection import Combination

SCHEME = "ckks/1"

POLY_DEGREE = 8192
SLOTS = POLY_DEGREE // 2
SCALE = 2.0**40

# The bindings ship no types.
Ciphertext = Any

_MODULI = sealapi.CoeffModulus.Create(POLY_DEGREE, [60, 40, 40, 60])
_DISTANCE_SCALE = SCALE * SCALE / _MODULI[2].value()
_PRODUCT_SCALE = _DISTANCE_SCALE * SCALE / _MODULI[1].value()
_ROOM_FOR_HEADERS = 1024


@cache
def context() -> Any:
    """The SEAL context of these parameters, one per process."""
    parameters = sealapi.EncryptionParameters(sealapi.SCHEME_TYPE.CKKS)
    parameters.set_poly_modulus_degree(POLY_DEGREE)
    parameters.set_coeff_modulus(_MODULI)
    return sealapi.SEALContext(parameters, True, sealapi.SEC_LEVEL_TYPE.TC128)


class Level(IntEnum):
    """Number of primes left in the modulus."""

    ANSWER = 1
    PRODUCT = 2
    UPLOAD = 3


@cache
def level_id(level: Level) -> list[int]:
    """SEAL's identifier (``parms_id``) of a level."""
    data = context().first_context_data()
    for _ in range(Level.UPLOAD - level):
        data = data.next_context_data()
    return list(data.parms_id())


@dataclass(frozen=True)
class Form:
    """What a ciphertext must be, exactly, at one place on the wire.

    SEAL's own ``load`` takes any level and any scale, so that a sender could choose how a value is read.
    """

    level: Level
    scale: float
    polynomials: int
    """2 for a whole ciphertext, 1 for a fresh one whose second polynomial travels as a seed."""

    @property
    def max_bytes(self) -> int:
        """What it takes uncompressed. SEAL compresses what it can, so the exact length varies."""
        return self.polynomials * self.level * POLY_DEGREE * 8 + _ROOM_FOR_HEADERS


PROTOTYPE = Form(Level.UPLOAD, SCALE, polynomials=1)
CORRECTION = Form(Level.PRODUCT, _DISTANCE_SCALE, polynomials=1)
NUMERATOR = Form(Level.ANSWER, _PRODUCT_SCALE, polynomials=2)
DENOMINATOR = Form(Level.ANSWER, _DISTANCE_SCALE, polynomials=2)
SUM = Form(Level.ANSWER, SCALE, polynomials=2)


def upload_forms(combination: Combination, parts: int) -> tuple[Form, ...]:
    """A site's payload: its prototypes in ``parts`` ciphertexts, and for ``complement`` the correction."""
    correction = (CORRECTION,) if combination is Combination.COMPLEMENT else ()
    return (PROTOTYPE,) * parts + correction


def answer_forms(combination: Combination, parts: int) -> tuple[Form, ...]:
    """The coordinator's answer: numerators in ``parts`` ciphertexts and a denominator, or a bare sum."""
    if combination is Combination.UNIFORM:
        return (SUM,) * parts
    return (NUMERATOR,) * parts + (DENOMINATOR,)
