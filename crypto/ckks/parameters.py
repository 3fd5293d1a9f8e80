"""The scheme's fixed parameters, and the form each ciphertext on the wire must have.

Ring degree 8192 and moduli of 60, 55, 30 and 60 bits: 205 of the 218 bits that the homomorphic encryption
standard allows for 128-bit security with a ternary secret. Two multiplications deep.

The first rescaling divides by 30 bits, so that a distance stands ten bits above the scale of what is uploaded: the
errors of key switching, whose size is fixed, count a thousandth. The second divides by 55 and takes this back.
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

DOUBLINGS = 5
"""How often taking packed sums apart doubles them (:mod:`crypto.ckks.packed_sums`); their scale accounts for it."""
UNIT_SCALE = 2.0**39
"""Of the ones that a denominator is multiplied by, to be rescaled as its numerators are. Half the scale of what
those are multiplied by, so that it has another form than they."""

_MODULI = sealapi.CoeffModulus.Create(POLY_DEGREE, [60, 55, 30, 60])
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


def dropped_prime(level: Level) -> float:
    """What rescaling from a level divides by."""
    return float(_MODULI[level - 1].value())


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


_DISTANCE_SCALE = SCALE * SCALE / dropped_prime(Level.UPLOAD) * 2.0**DOUBLINGS
_RESCALED = dropped_prime(Level.PRODUCT)

PROTOTYPE = Form(Level.UPLOAD, SCALE, polynomials=1)
CORRECTION = Form(Level.PRODUCT, _DISTANCE_SCALE, polynomials=1)
NUMERATOR = Form(Level.ANSWER, _DISTANCE_SCALE * SCALE / _RESCALED, polynomials=2)
DENOMINATOR = Form(Level.ANSWER, _DISTANCE_SCALE * UNIT_SCALE / _RESCALED, polynomials=2)
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
