"""Vectors as plain lists, one number at a time: common parts of the literal readings of the papers."""

from __future__ import annotations

import math
from collections.abc import Sequence

Vector = list[float]
Matrix = list[Vector]


def inner(a: Sequence[float], b: Sequence[float]) -> float:
    total = 0.0
    for x, y in zip(a, b, strict=True):
        total += x * y
    return total


def distance(a: Sequence[float], b: Sequence[float]) -> float:
    total = 0.0
    for x, y in zip(a, b, strict=True):
        total += (x - y) ** 2
    return math.sqrt(total)


def mean(vectors: Sequence[Sequence[float]]) -> Vector:
    sums = [0.0] * len(vectors[0])
    for vector in vectors:
        for j, value in enumerate(vector):
            sums[j] += value
    return [value / len(vectors) for value in sums]
