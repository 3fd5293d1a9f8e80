"""Shamir's secret sharing (1979) of 32-byte secrets over the prime field of 2^256 + 297 elements.

The secret is the value at 0 of a random polynomial of degree threshold − 1; share x is its value at x. Any
``threshold`` shares give the secret, and fewer are consistent with every secret, each equally likely. The limits:
shares are not authenticated (a wrong one gives a wrong secret, which shows only when there are more shares than the
threshold), and Python's integers take a time that depends on their values.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from itertools import accumulate
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
    polynomial = [int.from_bytes(secret, "big")] + [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    return tuple(_evaluate(polynomial, x).to_bytes(SHARE_BYTES, "big") for x in range(1, count + 1))


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


def _evaluate(polynomial: list[int], x: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * x + coefficient) % PRIME
    return value


def _interpolate(values: Sequence[int], places: tuple[int, ...], at: tuple[int, ...]) -> list[int]:
    """At each x of ``at``, the polynomial that has these values at these places (Lagrange)."""
    return [sum(map(mul, values, row)) % PRIME for row in _coefficients(places, at)]


@lru_cache(maxsize=8)
def _coefficients(places: tuple[int, ...], at: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """For each x of ``at``, what the value at each place counts in the value at x. Nothing in it is secret.

    The secrets of a group are shared at the same places, so they are found with the same coefficients: to compute
    them for each secret would take hundreds of times as long for a group of hundreds.
    """
    below = [pow(_product(x - other for other in places if other != x), -1, PRIME) for x in places]
    return tuple(_row(places, below, x) for x in at)


def _row(places: Sequence[int], below: Sequence[int], at: int) -> tuple[int, ...]:
    differences = [at - x for x in places]
    before = accumulate(differences, _times, initial=1)
    after = list(accumulate(reversed(differences), _times, initial=1))
    return tuple(
        _times(_times(left, right), factor)
        for left, right, factor in zip(before, reversed(after[:-1]), below, strict=False)
    )


def _product(factors: Iterable[int]) -> int:
    return reduce(_times, factors, 1)


def _times(left: int, right: int) -> int:
    return left * right % PRIME
