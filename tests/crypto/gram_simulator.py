"""A simulator of a coordinator's view that has Gram matrices alone, and its comparison with real views.

A view is one stack (N, n, d) for each block (a class, or a class in one attempt): N draws of what the coordinator
receives from n sites. The comparison fails a right sample with a probability below 1e-9.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
View = Sequence[Float]

FALSE_ALARM = 1e-9
_DIRECTIONS = 64
_ROUNDING = 1e-13
_LEAST_DRAWS = 458
"""Least number of draws for which the bound of Wei and Dudley (2012, theorem 1) holds with its constant, 2."""


class NotExplainedError(AssertionError):
    """The view is distributed otherwise than its Gram matrices alone would have it."""


def simulate(grams: Sequence[Float], dim: int, draws: int, rng: np.random.Generator) -> list[Float]:
    """Simulate a view from Gram matrices (n, n) alone: any rows with this Gram matrix, under a Q' of its own."""
    blocks = []
    for gram in grams:
        rows = rows_with(gram, dim)
        blocks.append(np.stack([rows @ haar(dim, rng).T for _ in range(draws)]))
    return blocks


def rows_with(gram: Float, dim: int) -> Float:
    """Rows (n, d) whose inner products are ``gram``, by its eigenvectors; zero rows are exactly zero."""
    values, vectors = np.linalg.eigh(gram)
    kept = min(dim, len(gram))
    if not np.allclose(values[:-kept], 0.0, atol=1e-12):
        raise ValueError(f"no rows of dimension {dim} have this Gram matrix")
    rows = np.zeros((len(gram), dim))
    rows[:, :kept] = vectors[:, -kept:] * np.sqrt(np.maximum(values[-kept:], 0.0))
    return np.where(np.diag(gram)[:, None] > 0.0, rows, 0.0)


def haar(dim: int, rng: np.random.Generator) -> Float:
    """Haar-distributed on O(d), the way the code under test does not take: QR, signs fixed (Mezzadri 2007)."""
    q, r = np.linalg.qr(rng.normal(size=(dim, dim)))
    return np.asarray(q * np.sign(np.diag(r)))


def statistics(view: View) -> dict[str, Float]:
    """Return one number for each draw, by name, shape (N,).

    Linear forms of the whole view (by Cramér and Wold they settle its distribution when taken in all directions), the
    largest entry, the orientation of the first d rows, and inner products between blocks.
    """
    draws, _, dim = view[0].shape
    flat = np.concatenate([block.reshape(draws, -1) for block in view], axis=1)
    found = {f"entry {j}": flat[:, j] for j in range(flat.shape[1])}
    directions = np.random.default_rng(1).normal(size=(_DIRECTIONS, flat.shape[1]))
    found |= {f"direction {j}": each for j, each in enumerate(directions @ flat.T)}
    for b, block in enumerate(view):
        found[f"largest entry of block {b}"] = np.abs(block).max(axis=(1, 2))
        if block.shape[1] >= dim:
            found[f"orientation of block {b}"] = _orientation(block[:, :dim])
    return found | _between(view)


def _orientation(square: Float) -> Float:
    """1, −1, or 0 for rows that span less than the space: the sign of their determinant would be one of rounding."""
    volume = np.linalg.det(square)
    return np.where(np.abs(volume) > _ROUNDING, np.sign(volume), 0.0)


def _between(view: View) -> dict[str, Float]:
    """Return the inner products that a reused Q gives away: ⟨Q c, Q c'⟩ = ⟨c, c'⟩ for c and c' of two blocks."""
    found = {}
    for a, left in enumerate(view):
        for b, right in enumerate(view[:a]):
            products = left @ right.transpose(0, 2, 1)
            for i, m in np.ndindex(products.shape[1:]):
                found[f"row {i} of block {a} with row {m} of block {b}"] = products[:, i, m]
    return found


def check_explained(real: View, simulated: View) -> None:
    """Raise :class:`NotExplainedError` for a statistic whose distributions differ (Kolmogorov and Smirnov).

    P(D > ε) ≤ 2·exp(−N·ε²) for two samples of N ≥ 458 draws each; all statistics together stay below 1e-9.
    """
    draws = len(real[0])
    if draws < _LEAST_DRAWS or draws != len(simulated[0]):
        raise ValueError(f"the two views have {draws} and {len(simulated[0])} draws")
    ours, theirs = statistics(real), statistics(simulated)
    bound = math.sqrt(math.log(2.0 * len(ours) / FALSE_ALARM) / draws)
    worst, name = max((distance(ours[name], theirs[name]), name) for name in ours)
    if worst > bound:
        raise NotExplainedError(f"{name}: distributions {worst:.3f} apart, at most {bound:.3f} is chance")


def distance(left: Float, right: Float) -> float:
    """Return the largest distance between two samples' empirical distribution functions."""
    at = np.concatenate([left, right])
    below = [np.searchsorted(np.sort(each), at, side="right") / len(each) for each in (left, right)]
    return float(np.abs(below[0] - below[1]).max())
