"""``rotation``: known answers, an isometry with its inverse, and the results of ``plain``."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from algorithms.pfpl import Weighting, peer_weights
from crypto import rotation
from crypto.errors import MalformedError
from crypto.keys import encode
from crypto.plain import GramServer, PlainServer, PlainSite
from crypto.protection import Cohort, Payload, Rows, SiteHalf, directions, whole_numbers
from crypto.rotation import SCHEME, RotationSite, class_key, rotate
from tests.crypto.bad_rows import BAD_ROWS, check_payload_refused, check_rows_refused, other_payloads
from tests.crypto.noise_checks import check_independent, check_shape, check_sigma

Float = NDArray[np.float64]
Case = dict[str, Any]

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "rotation.json").read_text())
KEY = hashlib.sha256(b"a key").digest()
SEED = hashlib.sha256(b"a seed").digest()
CONTEXT = b"run, round, attempt"
ROUNDING = 1e-14


def named(cases: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", VECTORS[cases], ids=lambda case: case["name"])


def unit_rows(*shape: int) -> Float:
    values = np.random.default_rng(3).normal(size=shape) + 0.3
    return np.asarray(values / np.linalg.norm(values, axis=-1, keepdims=True))


def matrix(key: bytes, dim: int) -> Float:
    return rotate(key, np.eye(dim)).T


# Known answers


def _stream(case: Case) -> tuple[list[str], Float]:
    key, dim, size = bytes.fromhex(case["key"]), case["dim"], case["size"]
    words = [f"{word:016x}" for word in rotation._words(key, dim, size)]
    return words, rotation._normals(key, dim, size)


@named("stream")
def test_normals_equal_vectors(case: Case) -> None:
    words, normals = _stream(case)
    assert words == case["words"]
    np.testing.assert_allclose(normals, case["normals"], rtol=0, atol=ROUNDING)


@named("bad_stream")
def test_normals_differ_from_bad_vectors(case: Case) -> None:
    words, normals = _stream(case)
    assert (words == case["words"]) is (case["differs"] == "normals")
    assert len(normals) != len(case["normals"]) or np.abs(normals - case["normals"]).max() > 0.01


def _error(case: Case) -> float:
    turned = rotate(bytes.fromhex(case["key"]), np.array(case["vectors"]))
    return float(np.abs(turned - case["rotated"]).max())


@named("rotations")
def test_rotate_equals_vectors(case: Case) -> None:
    assert _error(case) < ROUNDING
    turned = np.array(case["rotated"])
    back = rotate(bytes.fromhex(case["key"]), turned, inverse=True)
    np.testing.assert_allclose(back, case["vectors"], rtol=0, atol=ROUNDING)


@named("bad_rotations")
def test_rotate_differs_from_bad_vectors(case: Case) -> None:
    assert _error(case) > 0.1


def _class_key(case: Case) -> str:
    return class_key(bytes.fromhex(case["seed"]), bytes.fromhex(case["context"]), case["number"]).hex()


@named("class_keys")
def test_class_key_equals_vectors(case: Case) -> None:
    assert _class_key(case) == case["key"]


@named("bad_class_keys")
def test_class_key_differs_from_bad_vectors(case: Case) -> None:
    assert _class_key(case) != case["key"]


@named("refused_keys")
def test_rotate_key_of_other_length_refused(case: Case) -> None:
    key = bytes.fromhex(case["key"])
    with pytest.raises(MalformedError, match=case["failure"]):
        rotate(key, np.eye(2))
    with pytest.raises(MalformedError, match=case["failure"]):
        RotationSite(key, CONTEXT)


# The stream


def test_normals_are_normal_and_independent() -> None:
    count = 40_000
    draws = rotation._normals(KEY, count, count)
    check_sigma(draws, 1.0)
    check_shape(draws, 1.0)
    check_independent(
        draws[: count // 2], draws[count // 2 :]
    )  # cosine and sine of the same radius and angle
    check_independent(draws[:-1], draws[1:])


def test_normals_own_stream_for_each_reflection() -> None:
    words = np.concatenate([rotation._words(KEY, 65, size) for size in range(1, 66)])
    assert len(np.unique(words)) == len(words) == 65 * 66 // 2 + 33


def test_uniform_values_exclude_both_ends() -> None:
    """A logarithm of 0 is infinite, and one of 1 gives a radius of 0, which has no direction."""
    ends = rotation._uniform(np.array([0, 2**64 - 1], dtype=np.uint64))
    assert ends[0] == 2.0**-53
    assert ends[1] == 1.0 - 2.0**-53


# An isometry


@pytest.mark.parametrize("dim", [1, 2, 3, 8, 17, 200])
def test_rotation_matrix_orthogonal(dim: int) -> None:
    q = matrix(KEY, dim)
    np.testing.assert_allclose(q @ q.T, np.eye(dim), atol=ROUNDING)


@pytest.mark.parametrize(("m", "dim"), [(1, 1), (3, 2), (4, 65), (20, 512), (0, 4)])
def test_rotate_inverse_restores_vectors(m: int, dim: int) -> None:
    vectors = unit_rows(m, dim)
    before = vectors.copy()
    np.testing.assert_allclose(rotate(KEY, rotate(KEY, vectors), inverse=True), vectors, atol=ROUNDING)
    np.testing.assert_allclose(rotate(KEY, rotate(KEY, vectors, inverse=True)), vectors, atol=ROUNDING)
    assert (vectors == before).all()


@pytest.mark.parametrize("dim", [5, 192, 1920])
def test_rotate_keeps_inner_products(dim: int) -> None:
    vectors = unit_rows(6, dim)
    vectors[1] = vectors[0] + 1e-5 * vectors[2]  # so near that float32 would lose the distance
    vectors[3] *= 1e-3
    turned = rotate(KEY, vectors)
    np.testing.assert_allclose(turned @ turned.T, vectors @ vectors.T, rtol=0, atol=1e-14)
    assert np.linalg.norm(turned[1] - turned[0]) == pytest.approx(1e-5, rel=1e-9)
    assert np.abs(turned - vectors).max() > 0.01


def test_rotate_row_independent_of_other_rows() -> None:
    """Each site turns its own row, and they must all have turned them by one matrix."""
    vectors = unit_rows(5, 40)
    alone = np.concatenate([rotate(KEY, vectors[i : i + 1]) for i in range(5)])
    np.testing.assert_allclose(rotate(KEY, vectors), alone, atol=ROUNDING)


def test_rotations_of_two_dimensions_unrelated() -> None:
    """Else the last reflections of two dimensions under one key would be the same."""
    small, large = rotation._normals(KEY, 4, 3), rotation._normals(KEY, 5, 3)
    assert np.abs(small - large).max() > 0.1


def test_rotate_zeros_without_sign() -> None:
    """Reflections leave signs in the zeros of a zero row; they would tell the server bits of the keystream."""
    zeros = np.zeros((1, 16))
    turned = zeros.copy()
    for size in range(1, 17):
        rotation._reflect(turned[:, 16 - size :], rotation._normals(KEY, 16, size), inverse=False)
    assert np.signbit(turned).any()
    for row in (zeros, -zeros):
        assert not np.signbit(rotate(KEY, row)).any()
        assert not np.signbit(rotate(KEY, row, inverse=True)).any()


@pytest.mark.parametrize("vectors", [np.zeros(3), np.zeros((1, 2, 3)), np.zeros((1, 3), dtype=np.float32)])
def test_rotate_other_shape_or_dtype_refused(vectors: Float) -> None:
    with pytest.raises(MalformedError, match=r"float64"):
        rotate(KEY, vectors)


# A site

SITES = ("a", "b", "c", "d", "e")
HOLDS = np.array(
    [
        [True, True, False, True, True],
        [True, True, True, True, False],
        [True, False, True, True, False],
        [True, True, True, False, False],
        [True, False, False, False, False],
    ]
)
COHORT = Cohort(SITES, HOLDS, dim=24)
"""Classes of 5, 3, 3, 3 holders and one."""


@pytest.fixture
def rows() -> dict[str, Rows]:
    values = unit_rows(5, 5, 24) * np.linspace(0.5, 1.0, 5)[:, None, None]
    values[:, 3] = values[0, 3]  # where all agree
    return dict(zip(SITES, values, strict=True))


def exchange(site: SiteHalf, server: PlainServer, rows: dict[str, Rows]) -> Float:
    payloads = {name: site.protect(rows[name], name, COHORT) for name in SITES}
    for name, payload in payloads.items():
        server.validate(payload, name, COHORT)
    answers = server.combine(payloads, COHORT)
    return np.stack([site.unprotect(answers[name], rows[name], name, COHORT) for name in SITES])


@pytest.mark.parametrize("weighting", Weighting)
def test_rotation_result_equals_plain(rows: dict[str, Rows], weighting: Weighting) -> None:
    weights = partial(peer_weights, weighting=weighting, tau=1e-8)
    expected = exchange(PlainSite(), PlainServer(weights), rows)
    got = exchange(RotationSite(SEED, CONTEXT), PlainServer(weights, SCHEME), rows)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)
    own = np.stack([rows[name] for name in SITES])
    assert (got[~HOLDS] == own[~HOLDS]).all()
    assert np.abs(got[:, :3] - own[:, :3])[HOLDS[:, :3]].max() > 0.01


def test_unprotect_other_seed_or_context_useless(rows: dict[str, Rows]) -> None:
    weights = partial(peer_weights, weighting=Weighting.UNIFORM, tau=1e-8)
    honest = RotationSite(SEED, CONTEXT)
    server = PlainServer(weights, SCHEME)
    answers = server.combine({name: honest.protect(rows[name], name, COHORT) for name in SITES}, COHORT)
    right = honest.unprotect(answers["a"], rows["a"], "a", COHORT)
    for other in (RotationSite(KEY, CONTEXT), RotationSite(SEED, CONTEXT + b"2")):
        wrong = other.unprotect(answers["a"], rows["a"], "a", COHORT)
        assert (np.linalg.norm(wrong - right, axis=1)[HOLDS[0]] > 0.1).all()


def test_colluding_site_reads_all_rows(rows: dict[str, Rows]) -> None:
    """The limit that the module states: the seed is all that stands between the server and every row."""
    payload = RotationSite(SEED, CONTEXT).protect(rows["b"], "b", COHORT)
    seen = rotate(class_key(SEED, CONTEXT, 0), payload.arrays[0][:1], inverse=True)
    np.testing.assert_allclose(seen[0], rows["b"][0], atol=ROUNDING)


def test_rows_of_other_classes_do_not_travel(rows: dict[str, Rows]) -> None:
    rows["e"][1:] = np.nan
    payload = RotationSite(SEED, CONTEXT).protect(rows["e"], "e", COHORT)
    assert payload.arrays[0][0].any()
    assert not payload.arrays[0][1:].any()


def contexts() -> dict[str, tuple[bytes, bytes, int]]:
    """Return (seed, context, class) that differ in one thing each, with the context laid out as a caller would."""

    def context(run: bytes = b"run-1", number: int = 1, attempt: int = 1) -> bytes:
        return encode("attempt", run, number.to_bytes(8, "big"), attempt.to_bytes(8, "big"))

    return {
        "as it is": (SEED, context(), 0),
        "class": (SEED, context(), 1),
        "round": (SEED, context(number=2), 0),
        "attempt": (SEED, context(attempt=2), 0),
        "run": (SEED, context(run=b"run-2"), 0),
        "seed": (KEY, context(), 0),
    }


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(contexts(), 2)))
def test_class_key_distinct_for_class_and_attempt(one: str, other: str) -> None:
    left, right = (class_key(*contexts()[each]) for each in (one, other))
    vectors = unit_rows(2, 24)
    between = rotate(left, vectors) @ rotate(right, vectors).T
    assert np.abs(between - vectors @ vectors.T).max() > 0.1
    assert np.abs(matrix(left, 24) - matrix(right, 24)).max() > 0.1


def test_protect_rotates_each_class_by_its_key() -> None:
    rows = np.broadcast_to(unit_rows(1, 24), (5, 24)).copy()
    sent = RotationSite(SEED, CONTEXT).protect(rows, "a", COHORT).arrays[0]
    for k in np.flatnonzero(HOLDS[0]):
        np.testing.assert_array_equal(sent[k], rotate(class_key(SEED, CONTEXT, int(k)), rows[:1])[0])


def test_rotation_site_repr_redacted() -> None:
    site = RotationSite(SEED, CONTEXT)
    assert repr(site) == str(site) == "RotationSite(<redacted>)"
    with pytest.raises(MalformedError) as refused:
        RotationSite(SEED[:-1], CONTEXT)
    assert SEED.hex()[:8] not in str(refused.value)


def test_rotation_site_empty_context_refused() -> None:
    with pytest.raises(ValueError, match="context"):
        RotationSite(SEED, b"")


@pytest.mark.parametrize(("spoil", "reason"), BAD_ROWS)
def test_bad_rows_refused_in_both_directions(
    rows: dict[str, Rows], spoil: Callable[[Rows], Rows], reason: str
) -> None:
    site, server = RotationSite(SEED, CONTEXT), PlainServer(lambda gram, holds: gram, SCHEME)
    check_rows_refused(site, server, spoil(rows["a"] * HOLDS[0][:, None]), rows["a"], COHORT, reason)


@pytest.mark.parametrize(("payload", "error"), other_payloads(SCHEME, COHORT))
def test_other_schemes_and_forms_refused(
    payload: Payload, error: type[Exception], rows: dict[str, Rows]
) -> None:
    site, server = RotationSite(SEED, CONTEXT), PlainServer(lambda gram, holds: gram, SCHEME)
    check_payload_refused(site, server, payload, rows["a"], COHORT, error)


def test_gram_under_rotation_equals_plain() -> None:
    """One class whose row is all of a site's prototypes: no class's own Gram matrix is in what is sent."""
    cohort = Cohort(SITES, np.ones((5, 1), dtype=np.bool_), dim=5 * 24)
    whole = unit_rows(5, 5 * 24)
    found = []
    for site, scheme in ((PlainSite(), "plain/1"), (RotationSite(SEED, CONTEXT), SCHEME)):
        server = GramServer(scheme)
        sent = {name: site.protect(whole[i : i + 1], name, cohort) for i, name in enumerate(SITES)}
        for name, payload in sent.items():
            server.validate(payload, name, cohort)
        found.append(server.gram(sent, cohort))
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=1e-14)
    turned = np.concatenate([payload.arrays[0] for payload in sent.values()])
    assert np.abs(turned[:, :24] @ turned[:, :24].T - whole[:, :24] @ whole[:, :24].T).max() > 0.01


ROWS_SEED, ROWS_CONTEXT, DIM = bytes(range(32)), b"run, round, attempt, phase", 12
SITE = RotationSite(ROWS_SEED, ROWS_CONTEXT)
ROWS = directions(np.random.default_rng(0).normal(size=(6, DIM)))
CLASSES = np.array([0, 0, 2, 2, 2, 5])


def test_rotate_rows_own_rotation_for_each_class() -> None:
    turned = SITE.rotate_rows(ROWS, CLASSES)
    for k in set(CLASSES.tolist()):
        np.testing.assert_array_equal(
            turned[k == CLASSES], rotate(class_key(ROWS_SEED, ROWS_CONTEXT, k), ROWS[k == CLASSES])
        )
    same = CLASSES[:, None] == CLASSES[None, :]
    np.testing.assert_allclose((turned @ turned.T)[same], (ROWS @ ROWS.T)[same], atol=1e-14)
    assert np.abs((turned @ turned.T)[~same] - (ROWS @ ROWS.T)[~same]).max() > 0.1


def test_rotate_rows_independent_of_other_rows() -> None:
    np.testing.assert_array_equal(
        SITE.rotate_rows(ROWS[2:4], CLASSES[2:4]), SITE.rotate_rows(ROWS, CLASSES)[2:4]
    )


def test_rotate_rows_empty_and_zero_rows_unchanged() -> None:
    assert SITE.rotate_rows(ROWS[:0], CLASSES[:0]).shape == (0, DIM)
    assert not SITE.rotate_rows(np.zeros((2, DIM)), CLASSES[:2]).any()


@pytest.mark.parametrize("factor", [1.001, np.nan, np.inf])
def test_rotate_rows_too_long_row_refused(factor: float) -> None:
    with pytest.raises(MalformedError):
        SITE.rotate_rows(ROWS * factor, CLASSES)


def test_directions_have_length_1_but_zeros() -> None:
    rows = np.array([[3.0, 4.0], [0.0, 0.0], [1e-200, 0.0], [-2.0, 0.0]])
    found = directions(rows)
    assert not found[2].any(), "neither 0 nor 1 in length"
    np.testing.assert_allclose(found, [[0.6, 0.8], [0.0, 0.0], [0.0, 0.0], [-1.0, 0.0]])


@pytest.mark.parametrize("bad", [-1.0, 0.5, 3.0, 1e300, np.nan])
def test_whole_numbers_fraction_or_too_large_refused(bad: float) -> None:
    assert whole_numbers(np.array([0.0, 2.0]), 3).tolist() == [0, 2]
    with pytest.raises(MalformedError):
        whole_numbers(np.array([0.0, bad]), 3)
