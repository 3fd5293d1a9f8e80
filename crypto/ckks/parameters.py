"""Parameters of the scheme, which are fixed, the form that each ciphertext on the wire must have, and error bounds.

The ring degree is 8192 and the moduli have 60, 55, 30 and 60 bits: 205 of the 218 bits that the homomorphic encryption
standard allows for 128-bit security with a ternary secret. The multiplicative depth is two.

The first rescaling divides by 30 bits, so that a distance is ten bits above the scale of the uploads and the errors of
key switching, whose size is fixed, weigh a thousandth. The second rescaling divides by 55 bits and reverses this.

The limits on the number of sites and on PFPL's ``agreement_threshold`` follow from the bounds on the error of a site's
distances to its peers and of its combination of their prototypes. ``docs/explanation/ckks-error.md`` derives the
constants.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tenseal import sealapi

from crypto.errors import PrecisionError
from crypto.protection import Combination

SCHEME = "ckks/1"

POLY_DEGREE = 8192
SLOTS = POLY_DEGREE // 2
SCALE = 2.0**40

# The bindings ship no types.
Ciphertext = Any

DOUBLINGS = 5
"""Number of doublings when packed sums are unpacked (:mod:`crypto.ckks.peer_combination`), which their scale covers."""
UNIT_SCALE = 2.0**39
"""Scale of the ones by which a denominator is multiplied, so that it is rescaled like its numerators.

The scale is half that of the numerators' factors, so that denominator and numerators have different forms.
"""

_MODULI = sealapi.CoeffModulus.Create(POLY_DEGREE, [60, 55, 30, 60])
_ROOM_FOR_HEADERS = 1024


@cache
def context() -> Any:
    """Return the SEAL context of these parameters, one per process."""
    parameters = sealapi.EncryptionParameters(sealapi.SCHEME_TYPE.CKKS)
    parameters.set_poly_modulus_degree(POLY_DEGREE)
    parameters.set_coeff_modulus(_MODULI)
    return sealapi.SEALContext(parameters, True, sealapi.SEC_LEVEL_TYPE.TC128)


class CkksLevel(IntEnum):
    """Number of primes left in the modulus."""

    ANSWER = 1
    PRODUCT = 2
    UPLOAD = 3


@cache
def level_id(level: CkksLevel) -> list[int]:
    """Return SEAL's identifier (``parms_id``) of a level."""
    data = context().first_context_data()
    for _ in range(CkksLevel.UPLOAD - level):
        data = data.next_context_data()
    return list(data.parms_id())


def dropped_prime(level: CkksLevel) -> float:
    """Return the prime by which rescaling from a level divides."""
    return float(_MODULI[level - 1].value())


@dataclass(frozen=True)
class CiphertextShape:
    """Required form of a ciphertext at one place on the wire.

    SEAL's own ``load`` accepts any level and any scale, so a sender could otherwise choose how a value is read.
    """

    level: CkksLevel
    scale: float
    polynomials: int
    """Number of polynomials: 2 for a whole ciphertext, 1 for a fresh one whose second polynomial is sent as a seed."""

    @property
    def max_bytes(self) -> int:
        """Uncompressed size in bytes, an upper bound, because SEAL compresses and the exact size varies."""
        return self.polynomials * self.level * POLY_DEGREE * 8 + _ROOM_FOR_HEADERS


# Levels and scales of PFPL's circuit. Rows are uploaded at SCALE. A distance is their product at SCALE², rescaled by
# the 30-bit prime to the level PRODUCT, at a scale 2^DOUBLINGS times as large. A numerator is distance times row,
# rescaled by the 55-bit prime to ANSWER; its denominator is multiplied by ones at UNIT_SCALE, so that both lose the
# same prime.
_DISTANCE_SCALE = SCALE * SCALE / dropped_prime(CkksLevel.UPLOAD) * 2.0**DOUBLINGS
_RESCALED = dropped_prime(CkksLevel.PRODUCT)

PROTOTYPE = CiphertextShape(CkksLevel.UPLOAD, SCALE, polynomials=1)
CORRECTION = CiphertextShape(CkksLevel.PRODUCT, _DISTANCE_SCALE, polynomials=1)
NUMERATOR = CiphertextShape(CkksLevel.ANSWER, _DISTANCE_SCALE * SCALE / _RESCALED, polynomials=2)
DENOMINATOR = CiphertextShape(CkksLevel.ANSWER, _DISTANCE_SCALE * UNIT_SCALE / _RESCALED, polynomials=2)
SUM = CiphertextShape(CkksLevel.ANSWER, SCALE, polynomials=2)


def upload_shapes(combination: Combination, parts: int) -> tuple[CiphertextShape, ...]:
    """Return the forms of a site's payload: prototypes in ``parts`` ciphertexts, for ``complement`` a correction."""
    correction = (CORRECTION,) if combination is Combination.COMPLEMENT else ()
    return (PROTOTYPE,) * parts + correction


def answer_shapes(combination: Combination, parts: int) -> tuple[CiphertextShape, ...]:
    """Return the forms of an answer: numerators in ``parts`` ciphertexts and a denominator, or a bare sum."""
    if combination is Combination.UNIFORM:
        return (SUM,) * parts
    return (NUMERATOR,) * parts + (DENOMINATOR,)


Float = NDArray[np.float64]

MAX_SITES = 256
"""Largest number of sites; with more, n²-fold sums plus flooding noise could wrap around the last modulus."""

_DISTANCE_ERROR = 1.2e-7
_ROUNDING = 3e-8
_FRESH = 1e-8


def check_cohort_size(sites: int) -> None:
    """Raise :class:`PrecisionError` for fewer than two sites or more than :data:`MAX_SITES`."""
    if not 2 <= sites <= MAX_SITES:
        raise PrecisionError(f"protection 'ckks' serves 2 to {MAX_SITES} sites, not {sites}")


def total_error(sites: int) -> float:
    """Return a bound on the error of D_i in any slot, with ``sites`` in the cohort."""
    return _DISTANCE_ERROR * (sites - 1) + _ROUNDING


def check_tau(tau: float, sites: int) -> None:
    """Raise :class:`PrecisionError` unless tau is at least the error of D, below which equal peers look different."""
    if tau < total_error(sites):
        raise PrecisionError(
            f"an agreement threshold of {tau:g} is below the error of 'ckks' with {sites} sites; "
            f"set agreement_threshold to {total_error(sites):g} or more"
        )


def peer_error(total: Float, counts: NDArray[np.int64], sites: int) -> Float:
    """Return a bound on the error of each coordinate of a site's combination of peers, (K,) like the arguments.

    ``total`` is D_i = Σ_m ‖C_i − C_m‖² over the cnt holders (``counts``) of each class, and above 0. Holders' errors
    cancel up to the holders' distances, at most 2·√D; errors of the n − cnt absent sites do not cancel:

        ε·(2(n − 1)/√D + (n − cnt)/D) + η/D + φ

    With D = 1 the bound also covers classes without a division by D: all classes of ``uniform``, and classes of
    ``complement`` with two holders.
    """
    absent = (sites - counts) / total
    apart = 2.0 * (sites - 1) / np.sqrt(total)
    return np.asarray(_DISTANCE_ERROR * (apart + absent) + _ROUNDING / total + _FRESH)
