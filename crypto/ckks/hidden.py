"""Hidden presence: what travels beside prototypes where nobody says which classes it holds.

Each site encrypts its *absences* a_i, a 1 for each class that it lacks, in all of the class's slots. The coordinator
adds them up to A = Σ_m a_m = n − cnt and uses them three times:

    counts      A comes back, so that a holder takes D = den − A·‖C_i‖² and finds out how many it is among
    complement  needs A·‖C_i‖² under encryption: the site sends x_i = ‖C_i‖² + ι·a_i, and with a_i = 0 that is the
                imaginary part of x_i·Σ_m x_m
    drowning    noise·a_i is added to all of an answer: noise where the site says it lacks the class, else 0

The scale of absences is large, for their error is multiplied by the noise, which is up to 2^19: what that leaves in
classes that a site holds is below the error of rescaling. **What is not done:** a class with too few holders is not
drowned for those that hold it, since that is not linear in A. With ``distance`` and ``uniform`` one of two holders can
read the other's prototype in its answer, if it looks at what it should leave; with every combination a site that lies,
about a class that one site holds, can make itself the second and read that one's.
"""

from __future__ import annotations

import numpy as np

from crypto.ckks.packing import Complex, Float, Packing
from crypto.ckks.parameters import (
    SCALE,
    SLOTS,
    Form,
    Level,
    answer_forms,
    dropped_prime,
    upload_forms,
)
from crypto.protection import Combination

NORMS_SCALE = 4.0 * SCALE
"""Twice its square is the square of the prototypes' scale times that by which sums of distances are larger."""
COUNT_SCALE = 2.0**38
"""Of the ones that counts are multiplied by, so that they have a form of their own."""

ABSENCE = Form(Level.PRODUCT, 2.0**55, polynomials=1)
NORMS = Form(Level.UPLOAD, NORMS_SCALE, polynomials=1)
COUNT = Form(Level.ANSWER, ABSENCE.scale * COUNT_SCALE / dropped_prime(Level.PRODUCT), polynomials=2)

_SIGNS = 1.0 - 2.0 * (np.arange(SLOTS) % 2)
"""Of the imaginary unit that ciphertexts can be multiplied by exactly (:data:`crypto.ckks.circuit.IMAGINARY_UNIT`)."""


def hidden_upload_forms(combination: Combination, parts: int) -> tuple[Form, ...]:
    """A site's payload: its prototypes in ``parts`` ciphertexts, its absences, for ``complement`` its norms."""
    norms = (NORMS,) if combination is Combination.COMPLEMENT else ()
    return (*upload_forms(Combination.UNIFORM, parts), ABSENCE, *norms)


def hidden_answer_forms(combination: Combination, parts: int) -> tuple[Form, ...]:
    """What comes back where presence is public, and then in how many sites each class is absent."""
    return (*answer_forms(combination, parts), COUNT)


def pack_norms(packing: Packing, norms: Float, absent: Float) -> Complex:
    """‖C‖² and absences, each (K,), as real and imaginary part of all slots (4096,) of a class."""
    return np.asarray(packing.replicate(norms) + 1j * _SIGNS * packing.replicate(absent))
