"""Gaussian noise from the operating system's entropy, in float64.

Limit: values lie on the grid of float64 arithmetic. That suffices for noise flooding, where the noise is added under
encryption. It does not suffice to *release* a float with differential privacy, because the grid itself leaks values
(Mironov 2012); a release needs a discrete distribution.
"""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]

_MANTISSA_BITS = 53


def gaussian(count: int, sigma: float) -> Float:
    """Return ``count`` independent draws from N(0, sigma²), float64, by Box and Muller (1958).

    No draw lies beyond 8.6 sigma, because the uniform values have 53 bits. Raises ``ValueError`` unless count ≥ 0 and
    sigma is positive and finite.
    """
    if count < 0 or not 0.0 < sigma < np.inf:
        raise ValueError(f"count must be at least 0 and sigma positive and finite, not {count} and {sigma}")
    half = (count + 1) // 2
    radius = sigma * np.sqrt(-2.0 * np.log(_uniform(half)))
    angle = 2.0 * np.pi * _uniform(half)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def truncated_gaussian(count: int, sigma: float, bound: float) -> Float:
    """Return draws as :func:`gaussian`, redrawing each draw whose magnitude exceeds ``bound``.

    Raises ``ValueError`` also if bound < sigma, where too many draws would be rejected.
    """
    if bound < sigma:
        raise ValueError(f"the bound {bound} must be at least sigma, {sigma}")
    draws = gaussian(count, sigma)
    while (beyond := np.flatnonzero(np.abs(draws) > bound)).size:
        draws[beyond] = gaussian(beyond.size, sigma)
    return draws


def _uniform(count: int) -> Float:
    """Return multiples of 2^-53 in (0, 1], so that their logarithm is finite."""
    words = np.frombuffer(secrets.token_bytes(8 * count), dtype="<u8") >> (64 - _MANTISSA_BITS)
    return np.asarray((words.astype(np.float64) + 1.0) * 2.0**-_MANTISSA_BITS)
