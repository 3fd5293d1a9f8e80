"""Error bounds of PFPL under ``ckks``, for a site's distances to its peers and for its combination of their prototypes.

The limits on the number of sites and on ``agreement_threshold`` follow from the bounds.
``docs/explanation/ckks-error.md`` derives the constants.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crypto.errors import PrecisionError

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
