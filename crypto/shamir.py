"""Shamir's secret sharing (1979) of 32-byte secrets over the prime field of 2^256 + 297 elements.

The secret is the value at 0 of a random polynomial of degree threshold − 1; share x is the polynomial's value at x.
Any ``threshold`` shares reveal the secret; fewer are consistent with every secret, each equally likely.

Limits: shares are not authenticated (a wrong share gives a wrong secret, which is noticed only with more shares than
the threshold), and arithmetic on Python's integers is not constant-time.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from math import prod
from operator import mul

from crypto.errors import MalformedError

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33


def split(secret: bytes, threshold: int, places: Sequence[int]) -> dict[int, bytes]:
    """Split the secret into shares of 33 bytes, one for each of the distinct x ≥ 1 of ``places``, and return them by x.

    Raises ``ValueError`` unless the secret has 32 bytes and 2 ≤ threshold ≤ number of places: with a threshold of 1
    each share would be the secret.
    """
    if (
        not 2 <= threshold <= len(set(places)) == len(places)
        or min(places) < 1
        or len(secret) != SECRET_BYTES
    ):
        raise ValueError(
            f"a secret must have {SECRET_BYTES} bytes, places must be distinct and at least 1, "
            "and 2 <= threshold <= number of places must hold"
        )
    polynomial = [int.from_bytes(secret, "big")] + [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    return {x: _evaluate(polynomial, x).to_bytes(SHARE_BYTES, "big") for x in places}


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Return the secret (32 bytes) from at least ``threshold`` shares by their x.

    Raises :class:`MalformedError` for too few shares, for bytes that are not a share, for shares that do not lie on
    one polynomial, and for a secret of more than 32 bytes.
    """
    if len(shares) < threshold:
        raise MalformedError(f"{len(shares)} shares of a secret, {threshold} are needed")
    values = {x: check_share(shares[x]) for x in sorted(shares)}
    if any(not 1 <= x < PRIME for x in values):
        raise MalformedError("a share's position is 1 or more")
    # Any ``threshold`` shares fix the polynomial; the others must lie on it, or at least one of all is wrong.
    places = tuple(values)
    through, beyond = places[:threshold], places[threshold:]
    secret, *others = _interpolate([values[x] for x in through], through, (0, *beyond))
    if others != [values[x] for x in beyond]:
        raise MalformedError("the shares of a secret contradict each other: at least one of them is wrong")
    # The field has 297 elements more than there are secrets: no honest split gives these.
    if secret >= 2 ** (8 * SECRET_BYTES):
        raise MalformedError("shares do not give a secret: at least one of them is wrong")
    return secret.to_bytes(SECRET_BYTES, "big")


def check_share(share: bytes) -> int:
    """Return a share's value; raise :class:`MalformedError` unless the share is a field element of 33 bytes."""
    value = int.from_bytes(share, "big")
    if len(share) != SHARE_BYTES or value >= PRIME:
        raise MalformedError(f"a share must be a field element of {SHARE_BYTES} bytes")
    return value


def _evaluate(polynomial: list[int], x: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * x + coefficient) % PRIME
    return value


def _interpolate(values: Sequence[int], places: tuple[int, ...], at: tuple[int, ...]) -> list[int]:
    """Evaluate at each x of ``at``, disjoint from ``places``, the polynomial with these values at ``places``.

    Lagrange interpolation in the barycentric form Π (x − place) · Σ weight · value / (x − place).
    """
    weights, rows = _coefficients(places, at)
    weighted = list(map(_times, weights, values))
    return [product * sum(map(mul, weighted, inverses)) % PRIME for product, inverses in rows]


@lru_cache(maxsize=8)
def _coefficients(
    places: tuple[int, ...], at: tuple[int, ...]
) -> tuple[list[int], list[tuple[int, list[int]]]]:
    """Return the weights of the places and, for each x of ``at``, Π (x − place) and 1 / (x − place); none is secret.

    The secrets of a group may all be shared at the same places. Caching their common coefficients saves tens of times
    the computation in a group of hundreds.
    """
    weights = _inverses([prod(x - other for other in places if other != x) for x in places])
    rows = [(prod(x - place for place in places), [_inverse(x - place) for place in places]) for x in at]
    return weights, rows


def _inverses(factors: Sequence[int]) -> list[int]:
    """Return each factor's inverse, with a single inversion and multiplications for the others (Montgomery)."""
    products = list(accumulate((factor % PRIME for factor in factors), _times))
    inverse, inverses = pow(products[-1], -1, PRIME), list[int]()
    for factor, before in zip(reversed(factors), [*reversed(products[:-1]), 1], strict=True):
        inverses.append(_times(inverse, before))
        inverse = _times(inverse, factor)
    return inverses[::-1]


@lru_cache(maxsize=4096)
def _inverse(difference: int) -> int:
    """Return the inverse of a difference of two places; cached, since a group has few distinct differences."""
    return pow(difference, -1, PRIME)


def _times(left: int, right: int) -> int:
    return left * right % PRIME
