"""Weakened rotations: each is orthogonal, turns back, keeps every inner product, and gives away more than those."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from crypto import rotation
from tests.crypto.gram_simulator import haar

Float = NDArray[np.float64]
Rotate = Callable[..., Float]


def by_matrix(draw: Callable[[int, np.random.Generator], Float]) -> Rotate:
    """``rotate`` with a matrix (d, d) that ``draw`` makes from a generator seeded with the key."""

    def rotate(key: bytes, vectors: Float, inverse: bool = False) -> Float:
        q = draw(vectors.shape[1], np.random.default_rng(int.from_bytes(key, "big")))
        return np.asarray(vectors @ (q if inverse else q.T))

    return rotate


def qr_without_signs(dim: int, rng: np.random.Generator) -> Float:
    """LAPACK's Q, whose R has diagonal entries of either sign."""
    return np.linalg.qr(rng.normal(size=(dim, dim)))[0]


def signed_permutation(dim: int, rng: np.random.Generator) -> Float:
    """Entries change places and signs only."""
    return np.asarray(np.eye(dim)[rng.permutation(dim)] * rng.choice([-1.0, 1.0], size=dim))


def proper(dim: int, rng: np.random.Generator) -> Float:
    """Haar on SO(d): never a reflection."""
    q = haar(dim, rng)
    q[:, 0] *= np.sign(np.linalg.det(q))
    return q


def one_reflection(dim: int, rng: np.random.Generator) -> Float:
    """I − 2uuᵀ for a random direction u."""
    u = rng.normal(size=dim)
    return np.asarray(np.eye(dim) - 2.0 * np.outer(u, u) / (u @ u))


def plane_rotations(dim: int, rng: np.random.Generator) -> Float:
    """Return a random angle in each plane of two neighbouring axes, once."""
    q = np.eye(dim)
    for axis, angle in enumerate(rng.uniform(0.0, 2.0 * np.pi, size=dim - 1)):
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        q[[axis, axis + 1]] = turn @ q[[axis, axis + 1]]
    return q


def block_by_block(size: int) -> Callable[[int, np.random.Generator], Float]:
    """Return a Haar matrix for each ``size`` entries, as for each class, and none for all of them."""

    def draw(dim: int, rng: np.random.Generator) -> Float:
        q = np.zeros((dim, dim))
        for start in range(0, dim, size):
            q[start : start + size, start : start + size] = haar(size, rng)
        return q

    draw.__name__ = f"blocks_of_{size}"
    return draw


MATRICES = [qr_without_signs, signed_permutation, proper, one_reflection, plane_rotations]


def no_signs(patch: pytest.MonkeyPatch) -> None:
    """Stewart's product without the matrix of signs."""

    def turn(part: Float, x: Float, inverse: bool) -> None:
        normal = x.copy()
        normal[0] += np.copysign(np.linalg.norm(x), x[0])
        part -= np.outer(part @ normal, 2.0 * normal / (normal @ normal))

    patch.setattr(rotation, "_reflect", turn)


def left_out(size: int) -> Callable[[pytest.MonkeyPatch], None]:
    """Return the product without the reflection of one size."""

    def weaken(patch: pytest.MonkeyPatch) -> None:
        honest = rotation._reflect
        patch.setattr(rotation, "_reflect", lambda p, x, i: None if len(x) == size else honest(p, x, i))

    weaken.__name__ = f"reflection_{size}_left_out"
    return weaken


def cut_short(least: int) -> Callable[[pytest.MonkeyPatch], None]:
    """Return the product without its reflections below a size, each of which would do least and cost as much."""

    def weaken(patch: pytest.MonkeyPatch) -> None:
        honest = rotation._reflect
        patch.setattr(rotation, "_reflect", lambda p, x, i: None if len(x) < least else honest(p, x, i))

    weaken.__name__ = f"cut_short_at_{least}"
    return weaken


def one_stream(patch: pytest.MonkeyPatch) -> None:
    """Every reflection begins with the same draws."""
    honest = rotation._normals
    patch.setattr(rotation, "_normals", lambda key, dim, size: honest(key, dim, dim)[:size].copy())


def uniform_values(patch: pytest.MonkeyPatch) -> None:
    """Directions towards points of a cube, not of a ball."""
    patch.setattr(
        rotation,
        "_normals",
        lambda key, dim, size: rotation._uniform(rotation._words(key, dim, size))[:size] - 0.5,
    )


def positive_values(patch: pytest.MonkeyPatch) -> None:
    """Directions of one orthant only."""
    honest = rotation._normals
    patch.setattr(rotation, "_normals", lambda key, dim, size: np.abs(honest(key, dim, size)))


CHANGES = [no_signs, left_out(1), left_out(2), left_out(4), one_stream, uniform_values, positive_values]
