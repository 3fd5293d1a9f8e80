"""Rotations and fixed point in Python's numbers, written from docs/reference/protocol.md alone."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from fractions import Fraction

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

Numbers = list[float]


def normals(key: bytes, dim: int, size: int) -> Numbers:
    """x of one step: its keystream's words, and Box and Muller."""
    half = (size + 1) // 2
    nonce = dim.to_bytes(6, "little") + size.to_bytes(6, "little")
    stream = (
        Cipher(algorithms.ChaCha20(key, bytes(4) + nonce), mode=None).encryptor().update(bytes(16 * half))
    )
    uniform = [((word >> 12) + 0.5) * 2.0**-52 for (word,) in struct.iter_unpack("<Q", stream)]
    radius = [math.sqrt(-2.0 * math.log(y)) for y in uniform[:half]]
    angle = [2.0 * math.pi * y for y in uniform[half:]]
    both = [r * math.cos(a) for r, a in zip(radius, angle, strict=True)]
    return (both + [r * math.sin(a) for r, a in zip(radius, angle, strict=True)])[:size]


def rotated(key: bytes, vector: Sequence[float], *, back: bool = False) -> Numbers:
    """Return a row under the class's rotation, or rotated back."""
    dim, result = len(vector), list(vector)
    steps = range(1, dim + 1)
    for size in reversed(steps) if back else steps:
        x, part = normals(key, dim, size), result[dim - size :]
        sign = -1.0 if x[0] >= 0 else 1.0
        u = [x[0] - sign * math.sqrt(sum(each * each for each in x)), *x[1:]]
        if not back:
            part[0] *= sign
        along = 2.0 * sum(a * b for a, b in zip(u, part, strict=True)) / sum(a * a for a in u)
        part = [p - along * a for p, a in zip(part, u, strict=True)]
        if back:
            part[0] *= sign
        result[dim - size :] = part
    return result


def fraction_bits(bound: float, sites: int, ring: int) -> int:
    """f; ``ValueError`` where there is none."""
    for f in range(40, 15, -1):
        if sites * (Fraction(bound) * 2**f + Fraction(1, 2)) < 2 ** (ring - 2):
            return f
    raise ValueError("no room")


def narrowest_ring(segments: Sequence[tuple[int, float]], sites: int) -> int:
    """Return the ring's bits where the agreement says none; segments are lengths and bounds."""
    largest = max(Fraction(bound) for length, bound in segments if length)
    return 32 if sites * (largest + Fraction(1, 1 << 17)) < 1 << 14 else 64


def word(value: float, bound: float, sites: int, ring: int) -> int:
    """Return a number in fixed point."""
    if not abs(value) <= bound:
        raise ValueError("beyond its bound")
    number: int = round(Fraction(value) * (1 << fraction_bits(bound, sites, ring)))
    return number % (1 << ring)
