"""Simulation of the coordinator's view under ``rotation`` from the Gram matrices, and from nothing less.

The simulator of :mod:`tests.crypto.gram_simulator` has the Gram matrices alone, and makes views that the comparison
must not tell from real ones. The same comparison must tell each weakened rotation from it:
each is orthogonal, turns back, keeps every inner product, and gives away more than those. Keys are hashes of counters,
and the simulator's generator is seeded: every run compares the same draws.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from crypto import rotation
from crypto.keys import derive
from crypto.plain import PlainServer
from crypto.protection import Cohort
from crypto.rotation import SCHEME, RotationSite, rotate
from tests.crypto.gram_simulator import (
    Float,
    NotExplainedError,
    check_explained,
    distance,
    haar,
    rows_with,
    simulate,
)

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


DRAWS = 3000
DIM = 4


def _shortened(rows: Float) -> Float:
    return np.asarray(rows / np.linalg.norm(rows, axis=1).max())


_SPREAD = np.random.default_rng(4).normal(size=(5, DIM)) + 0.5
ROWS = {
    "axes": np.eye(DIM),
    "spread": _shortened(_SPREAD),
    "in a plane": _shortened(_SPREAD[:, :2] @ _SPREAD[:2]),
    "one zero": _shortened(_SPREAD * np.array([[1.0], [1.0], [0.0], [1.0], [1.0]])),
    "fewer than d": _shortened(_SPREAD[:3]),
    "nearly alike": _shortened(_SPREAD[:1] + 1e-3 * _SPREAD),
}
"""Prototypes (n, d) of one class. The axes show Q itself: most doubles show there best."""


def seed(number: int) -> bytes:
    return hashlib.sha256(f"seed {number}".encode()).digest()


def generator() -> np.random.Generator:
    return np.random.default_rng(7)


def one_class(turn: Rotate, rows: Float, draws: int = DRAWS) -> list[Float]:
    """Return the view of one class under ``turn``, with a fresh key for each draw: one block (N, n, d)."""
    return [np.stack([turn(seed(number), rows) for number in range(draws)])]


# One class


@pytest.mark.parametrize("name", ROWS)
def test_server_view_of_one_class_equals_simulation_from_gram_matrix(name: str) -> None:
    rows = ROWS[name]
    check_explained(one_class(rotate, rows), simulate([rows @ rows.T], DIM, DRAWS, generator()))


def test_comparison_haar_by_qr_passes() -> None:
    rows = ROWS["axes"]
    simulated = simulate([rows @ rows.T], DIM, DRAWS, generator())
    check_explained(one_class(by_matrix(haar), rows), simulated)


@pytest.mark.parametrize("draw", MATRICES, ids=lambda draw: draw.__name__)
@pytest.mark.parametrize("name", ["axes", "spread"])
def test_comparison_matrix_not_haar_fails(name: str, draw: Callable[..., Float]) -> None:
    rows = ROWS[name]
    simulated = simulate([rows @ rows.T], DIM, DRAWS, generator())
    with pytest.raises(NotExplainedError):
        check_explained(one_class(by_matrix(draw), rows), simulated)


@pytest.mark.parametrize("weaken", CHANGES, ids=lambda weaken: weaken.__name__)
def test_comparison_weakened_rotation_fails(
    weaken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = ROWS["axes"]
    weaken(monkeypatch)
    turned = rotate(seed(0), rows)
    np.testing.assert_allclose(turned @ turned.T, rows @ rows.T, atol=1e-12)  # no check of the values sees it
    np.testing.assert_allclose(rotate(seed(0), turned, inverse=True), rows, atol=1e-12)
    simulated = simulate([rows @ rows.T], DIM, DRAWS, generator())
    with pytest.raises(NotExplainedError):
        check_explained(one_class(rotate, rows), simulated)


def test_comparison_row_not_rotated_fails() -> None:
    rows = ROWS["spread"]
    real = one_class(rotate, rows)
    real[0][:, 2] = rows[2]
    with pytest.raises(NotExplainedError):
        check_explained(real, simulate([rows @ rows.T], DIM, DRAWS, generator()))


def test_server_view_fewer_sites_than_dimensions_hides_orientation() -> None:
    """The groups SO(d) and O(d) then give the same view: the comparison above refuses a difference that shows."""
    rows = ROWS["fewer than d"]
    simulated = simulate([rows @ rows.T], DIM, DRAWS, generator())
    check_explained(one_class(by_matrix(proper), rows), simulated)


# One rotation of all classes together, as the clustering has it

CLASSES, CLASS_DIM, WIDE_DRAWS = 4, 8, 2000
WIDE = CLASSES * CLASS_DIM


def _all_classes() -> Float:
    """Five sites' rows (5, K·d): no component negative, and two sites lack a class."""
    rows = np.abs(np.random.default_rng(5).normal(size=(5, CLASSES, CLASS_DIM)))
    rows[1, 3] = rows[2, 0] = 0.0
    return _shortened(rows.reshape(5, WIDE))


WIDE_ROWS = {"all classes": _all_classes(), "axes": np.eye(WIDE)}


def check_wide(turn: Rotate, name: str) -> None:
    rows = WIDE_ROWS[name]
    simulated = simulate([rows @ rows.T], WIDE, WIDE_DRAWS, generator())
    check_explained(one_class(turn, rows, WIDE_DRAWS), simulated)


@pytest.mark.full
@pytest.mark.parametrize("name", WIDE_ROWS)
def test_server_view_of_large_rotation_equals_simulation(name: str) -> None:
    check_wide(rotate, name)


@pytest.mark.full
@pytest.mark.parametrize(
    "draw", [block_by_block(CLASS_DIM), one_reflection, plane_rotations], ids=lambda draw: draw.__name__
)
def test_comparison_large_matrix_not_haar_fails(draw: Callable[..., Float]) -> None:
    """First of all one rotation for each class, which would show what each class's prototypes have in common."""
    with pytest.raises(NotExplainedError):
        check_wide(by_matrix(draw), "all classes")


@pytest.mark.full
@pytest.mark.parametrize(
    ("weaken", "name"),
    [(cut_short(WIDE // 2), "all classes"), (no_signs, "axes")],
    ids=["cut short", "no signs"],
)
def test_comparison_weakened_large_rotation_fails(
    weaken: Callable[[pytest.MonkeyPatch], None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weaken(monkeypatch)
    with pytest.raises(NotExplainedError):
        check_wide(rotate, name)


# Classes and attempts

SITES = ("a", "b", "c")
COHORT = Cohort(SITES, np.array([[True, True], [True, False], [True, True]]), dim=DIM)
CONTEXTS = (b"attempt 1", b"attempt 2")
STACK = _shortened(np.random.default_rng(6).normal(size=(6, DIM))).reshape(3, 2, DIM)
"""Prototypes that are the same in both attempts, as in a repeated round."""


def both_attempts() -> list[Float]:
    """Return the coordinator's view of two attempts: a block (N, n, d) for each class of each attempt."""
    draws = []
    for number in range(DRAWS):
        halves = [RotationSite(seed(number), context) for context in CONTEXTS]
        draws.append([_received(half) for half in halves])
    every = np.array(draws)  # (N, attempts, n, K, d)
    return [every[:, attempt, :, k] for attempt in range(2) for k in range(2)]


def _received(half: RotationSite) -> list[Float]:
    return [half.protect(rows, name, COHORT).arrays[0] for name, rows in zip(SITES, STACK, strict=True)]


def known() -> list[Float]:
    """Return each block's Gram matrix as an honest run's coordinator has it: the simulator is given nothing else."""
    seen: list[Float] = []

    def weights(gram: Float, holds: NDArray[np.bool_]) -> Float:
        seen.extend(gram)
        return np.zeros_like(gram)

    for context in CONTEXTS:
        half, server = RotationSite(seed(DRAWS), context), PlainServer(weights, SCHEME)
        sent = {name: half.protect(rows, name, COHORT) for name, rows in zip(SITES, STACK, strict=True)}
        server.combine(sent, COHORT)
    return seen


@pytest.fixture(scope="module")
def simulated() -> list[Float]:
    return simulate(known(), DIM, DRAWS, generator())


@pytest.mark.full
def test_server_view_of_two_attempts_equals_simulation(simulated: list[Float]) -> None:
    check_explained(both_attempts(), simulated)


def _same_for_all_classes(seed: bytes, context: bytes, number: int) -> bytes:
    return derive(seed, "rotation", context)


def _same_for_all_attempts(seed: bytes, context: bytes, number: int) -> bytes:
    return derive(seed, "rotation", number.to_bytes(4, "big"))


def _same_once(seed: bytes, context: bytes, number: int) -> bytes:
    """Class 1 of the first attempt and class 0 of the second, as a counter that runs on may have it."""
    return derive(seed, "rotation", bytes([CONTEXTS.index(context) + number]))


@pytest.mark.full
@pytest.mark.parametrize("reuse", [_same_for_all_classes, _same_for_all_attempts, _same_once])
def test_comparison_matrix_used_twice_fails(
    reuse: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch, simulated: list[Float]
) -> None:
    monkeypatch.setattr(rotation, "class_key", reuse)
    with pytest.raises(NotExplainedError, match=r"row \d of block \d with row \d of block \d"):
        check_explained(both_attempts(), simulated)


@pytest.mark.full
def test_comparison_one_seed_for_all_runs_fails(
    monkeypatch: pytest.MonkeyPatch, simulated: list[Float]
) -> None:
    monkeypatch.setattr(rotation, "class_key", lambda seed, context, number: hashlib.sha256(context).digest())
    with pytest.raises(NotExplainedError):
        check_explained(both_attempts(), simulated)


# The comparison itself


def test_distance_equals_scipy_kolmogorov_smirnov() -> None:
    assert distance(np.array([1.0, 2.0, 3.0, 4.0]), np.array([3.0, 4.0, 5.0, 6.0])) == 0.5
    assert distance(np.array([1.0, 1.0]), np.array([1.0, 1.0])) == 0.0
    assert distance(np.zeros(3), np.ones(3)) == 1.0


@pytest.mark.parametrize("name", ROWS)
def test_simulator_keeps_gram_matrix_and_changes_rows(name: str) -> None:
    rows = ROWS[name]
    other = rows_with(rows @ rows.T, DIM)
    np.testing.assert_allclose(other @ other.T, rows @ rows.T, atol=1e-12)
    if name != "axes":
        assert np.abs(other - rows).max() > 0.1


def test_simulator_gram_matrix_of_higher_rank_refused() -> None:
    with pytest.raises(ValueError, match="4"):
        rows_with(np.eye(5), 4)


def test_comparison_too_few_draws_refused() -> None:
    view = [np.zeros((457, 1, 1))]
    with pytest.raises(ValueError, match="draws"):
        check_explained(view, view)
