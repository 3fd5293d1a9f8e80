"""Shamir's secret sharing (1979) of 32-byte secrets over the prime field of 2^256 + 297 elements.

The secret is the value at 0 of a random polynomial of degree threshold − 1; share x is its value at x. Any
``threshold`` shares give the secret, and fewer are consistent with every secret, each equally likely. The limits:
shares are not authenticated (a wrong one gives a wrong secret, which shows only when there are more shares than the
threshold), and Python's integers take a time that depends on their values.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from math import prod
from operator import mul

from crypto.errors import MalformedError

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33


def split(secret: bytes, threshold: int, count: int) -> tuple[bytes, ...]:
    """``count`` shares of 33 bytes; the one at position i is for x = i + 1.

    Raises ``ValueError`` unless the secret has 32 bytes and 2 ≤ threshold ≤ count: with a threshold of 1 each
    share would be the secret.
    """
    if len(secret) != SECRET_BYTES or not 2 <= threshold <= count:
        raise ValueError(
            f"a secret has {SECRET_BYTES} bytes and 2 <= threshold <= count, "
            f"not {len(secret)} bytes, {threshold} and {count}"
        )
    return _shares(secret, threshold, range(1, count + 1))


def split_among(secret: bytes, threshold: int, places: Sequence[int]) -> dict[int, bytes]:
    """As :func:`split`, for x of ``places`` alone, which are distinct and 1 or more."""
    if (
        not 2 <= threshold <= len(set(places)) == len(places)
        or min(places) < 1
        or len(secret) != SECRET_BYTES
    ):
        raise ValueError(
            f"{SECRET_BYTES} bytes are shared at distinct places from 1 on, 2 <= threshold of them"
        )
    return dict(zip(places, _shares(secret, threshold, places), strict=True))


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret (32 bytes) from shares by their x, at least ``threshold`` of them.

    Raises :class:`MalformedError` for too few, for a share that is none, for shares that are not of one
    polynomial, and for a secret of more than 32 bytes.
    """
    if len(shares) < threshold:
        raise MalformedError(f"{len(shares)} shares of a secret, {threshold} are needed")
    values = {x: check_share(shares[x]) for x in sorted(shares)}
    if any(not 1 <= x < PRIME for x in values):
        raise MalformedError("a share's position is 1 or more")
    places = tuple(values)
    through, beyond = places[:threshold], places[threshold:]
    secret, *others = _interpolate([values[x] for x in through], through, (0, *beyond))
    if others != [values[x] for x in beyond]:
        raise MalformedError("the shares of a secret contradict each other: at least one of them is wrong")
    if secret >= 2 ** (8 * SECRET_BYTES):
        raise MalformedError("shares do not give a secret: at least one of them is wrong")
    return secret.to_bytes(SECRET_BYTES, "big")


def check_share(share: bytes) -> int:
    """A share's value; :class:`MalformedError` unless it is 33 bytes and an element of the field."""
    value = int.from_bytes(share, "big")
    if len(share) != SHARE_BYTES or value >= PRIME:
        raise MalformedError(f"a share is a field element of {SHARE_BYTES} bytes")
    return value


def _shares(secret: bytes, threshold: int, places: Iterable[int]) -> tuple[bytes, ...]:
    polynomial = [int.from_bytes(secret, "big")] + [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    return tuple(_evaluate(polynomial, x).to_bytes(SHARE_BYTES, "big") for x in places)


def _evaluate(polynomial: list[int], x: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * x + coefficient) % PRIME
    return value


def _interpolate(values: Sequence[int], places: tuple[int, ...], at: tuple[int, ...]) -> list[int]:
    """At each x of ``at``, none of ``places``, the polynomial that has these values at these places.

    Lagrange's, in the barycentric form Π (x − place) · Σ weight · value / (x − place).
    """
    weights, rows = _coefficients(places, at)
    weighted = list(map(_times, weights, values))
    return [product * sum(map(mul, weighted, inverses)) % PRIME for product, inverses in rows]


@lru_cache(maxsize=8)
def _coefficients(
    places: tuple[int, ...], at: tuple[int, ...]
) -> tuple[list[int], list[tuple[int, list[int]]]]:
    """The weights of the places; for each x of ``at`` Π (x − place) and 1 / (x − place). Nothing in it is secret.

    The secrets of a group may all be shared at the same places, and are then found with the same coefficients: to
    compute them for each secret would take tens of times as long for a group of hundreds.
    """
    weights = _inverses([prod(x - other for other in places if other != x) for x in places])
    rows = [(prod(x - place for place in places), [_inverse(x - place) for place in places]) for x in at]
    return weights, rows


def _inverses(factors: Sequence[int]) -> list[int]:
    """Of each factor, by one inversion for all: by multiplications alone the others follow from it (Montgomery)."""
    products = list(accumulate((factor % PRIME for factor in factors), _times))
    inverse, inverses = pow(products[-1], -1, PRIME), list[int]()
    for factor, before in zip(reversed(factors), [*reversed(products[:-1]), 1], strict=True):
        inverses.append(_times(inverse, before))
        inverse = _times(inverse, factor)
    return inverses[::-1]


@lru_cache(maxsize=4096)
def _inverse(difference: int) -> int:
    """Of the difference of two places: in a group there are few different ones."""
    return pow(difference, -1, PRIME)


def _times(left: int, right: int) -> int:
    return left * right % PRIME
