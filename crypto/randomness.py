"""Gaussian noise from the operating system's entropy, in float64.

The limit: values lie on the grid of float64 arithmetic. That is enough to drown a value in noise that is added
under encryption. It is not enough to *release* a float with differential privacy, where the grid itself gives
values away (Mironov 2012); a release needs a discrete distribution.
"""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]

_MANTISSA_BITS = 53


def gaussian(count: int, sigma: float) -> Float:
    """``count`` independent draws from N(0, sigma²), float64, by Box and Muller (1958).

    No draw lies beyond 8.6 sigma: the uniform values have 53 bits. Raises ``ValueError`` unless count ≥ 0 and
    sigma is positive and finite.
    """
    if count < 0 or not 0.0 < sigma < np.inf:
        raise ValueError(f"count is 0 or more and sigma positive and finite, not {count} and {sigma}")
    half = (count + 1) // 2
    radius = sigma * np.sqrt(-2.0 * np.log(_uniform(half)))
    angle = 2.0 * np.pi * _uniform(half)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def truncated_gaussian(count: int, sigma: float, bound: float) -> Float:
    """Like :func:`gaussian`, with each draw beyond ``bound`` in magnitude drawn again.

    Raises ``ValueError`` also when bound < sigma, where most draws would be thrown away.
    """
    if bound < sigma:
        raise ValueError(f"a bound of {bound} is below sigma, {sigma}")
    draws = gaussian(count, sigma)
    while (beyond := np.flatnonzero(np.abs(draws) > bound)).size:
        draws[beyond] = gaussian(beyond.size, sigma)
    return draws


def _uniform(count: int) -> Float:
    """Multiples of 2^-53 in (0, 1], so that their logarithm is finite."""
    words = np.frombuffer(secrets.token_bytes(8 * count), dtype="<u8") >> (64 - _MANTISSA_BITS)
    return np.asarray((words.astype(np.float64) + 1.0) * 2.0**-_MANTISSA_BITS)
