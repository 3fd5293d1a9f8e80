"""The prototype query: the stated noise on every class, and nothing of a class but what its noisy count says."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from numpy.typing import NDArray

from privacy.errors import NotFiniteError
from privacy.mechanisms import prototype_query as query_module
from privacy.mechanisms.discrete_gaussian import discrete_gaussian
from privacy.mechanisms.grid import SIGMA
from privacy.mechanisms.prototype_query import PrototypeQuery, Released, Sums
from tests.crypto.noise_checks import WrongNoiseError, check_independent, check_shape, check_sigma

Float = NDArray[np.float64]

CLASSES, DIM, EACH = 400, 16, 30
QUERY = PrototypeQuery(clip=2.0, count_weight=1.5, noise_multiplier=0.8, min_count=5.0)
SIGMA_OF_A_SUM = 0.8 * 2.5
LABELS = np.repeat(np.arange(CLASSES, dtype=np.int64), EACH)
FEATURES = np.random.default_rng(11).normal(size=(LABELS.size, DIM))


def _noise(released: Released, sums: Sums) -> tuple[Float, Float]:
    """Return the added noise in units of a feature: of sums (K·d,) and of weighted counts (K,)."""
    assert released.present.all()
    step, weight = QUERY.grid.step, QUERY.grid.weight
    added = released.rows * released.counts[:, None] - sums.vectors * step
    return added.ravel(), (released.counts * weight - sums.weights) * step


@pytest.fixture(scope="module")
def noise() -> tuple[Float, Float]:
    return _noise(QUERY.release(FEATURES, LABELS, CLASSES), QUERY.sum_exact(FEATURES, LABELS, CLASSES))


@pytest.mark.parametrize("part", [0, 1], ids=["sums", "counts"])
def test_release_has_the_stated_noise_and_no_other(noise: tuple[Float, Float], part: int) -> None:
    check_sigma(noise[part], SIGMA_OF_A_SUM)
    check_shape(noise[part], SIGMA_OF_A_SUM)
    for factor in (2 / 3, 3 / 2):
        with pytest.raises(WrongNoiseError):
            check_sigma(noise[part], factor * SIGMA_OF_A_SUM)


def test_noise_is_in_whole_steps(noise: tuple[Float, Float]) -> None:
    steps = np.concatenate(noise) / QUERY.grid.step
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-3)


def test_noise_is_independent_over_coordinates_and_releases(noise: tuple[Float, Float]) -> None:
    sums = QUERY.sum_exact(FEATURES, LABELS, CLASSES)
    again, _ = _noise(sums.release(), sums)
    check_independent(noise[0], again)
    check_independent(noise[0].reshape(CLASSES, DIM)[:, 0], noise[1])
    with pytest.raises(WrongNoiseError):
        check_independent(noise[0], noise[0])


def test_check_finds_half_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        query_module, "discrete_gaussian", lambda count, log2: discrete_gaussian(count, log2 - 1)
    )
    sums = QUERY.sum_exact(FEATURES, LABELS, CLASSES)
    for part in _noise(sums.release(), sums):
        with pytest.raises(WrongNoiseError):
            check_sigma(part, SIGMA_OF_A_SUM)


def test_means_of_many_records_approach_the_clipped_means() -> None:
    query = PrototypeQuery(3.0, 3.0, 0.05, 5.0)
    released = query.release(FEATURES, LABELS, CLASSES)
    norms = np.linalg.norm(FEATURES, axis=1, keepdims=True)
    clipped = FEATURES * np.minimum(1.0, 3.0 / norms)
    means = clipped.reshape(CLASSES, EACH, DIM).mean(axis=1)
    np.testing.assert_allclose(released.counts, EACH, atol=8 * SIGMA / query.grid.weight)
    assert float(np.abs(released.rows - means).max()) < 8 * 0.05 * math.hypot(3.0, 3.0) / EACH * 1.1
    assert SIGMA / query.grid.weight == pytest.approx(0.05 * math.sqrt(2.0), rel=1e-4)


# Which classes are present


def test_release_noises_classes_without_records(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(count: int, log2: int) -> NDArray[np.int64]:
        asked.append(count)
        return discrete_gaussian(count, log2)

    monkeypatch.setattr(query_module, "discrete_gaussian", counted)
    for labels in (LABELS[:EACH], LABELS, LABELS[:0]):
        released = QUERY.release(FEATURES[: labels.size], labels, CLASSES)
        assert released.counts.shape == (CLASSES,)
        assert np.unique(released.counts).size > CLASSES / 2
    assert asked == [QUERY.coordinates(CLASSES, DIM)] * 3 == [CLASSES * (DIM + 1)] * 3


def test_presence_follows_from_noisy_counts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise that takes every record of one class away, and puts as many into another that has none."""
    weight = QUERY.grid.weight
    moved = np.zeros((3, DIM + 1), dtype=np.int64)
    moved[0, DIM], moved[1, DIM], moved[2, DIM] = -25 * weight - 1, 5 * weight, 5 * weight - 1
    monkeypatch.setattr(query_module, "discrete_gaussian", lambda _count, _log2: moved.ravel())
    released = QUERY.release(FEATURES[:EACH], LABELS[:EACH], 3)
    assert released.present.tolist() == [False, True, False]
    assert released.counts == pytest.approx([5.0, 5.0, 5.0], abs=1e-5)
    assert not released.rows.any()


def test_empty_classes_are_absent_far_below_min_count() -> None:
    query = PrototypeQuery(1.0, 1.0, 1.0, 15.0)
    released = query.release(FEATURES[:EACH], LABELS[:EACH] + 7, 20)
    assert np.flatnonzero(released.present).tolist() == [7]
    assert not released.rows[~released.present].any()
    assert np.count_nonzero(released.rows[7]) >= DIM - 1  # two are zero by chance with 2e-11


def test_present_class_without_noise_and_features_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        query_module, "discrete_gaussian", lambda count, _log2: np.zeros(count, dtype=np.int64)
    )
    released = QUERY.release(np.zeros((6, 2)), np.zeros(6, dtype=np.int64), 2)
    assert released.counts.tolist() == [6.0, 0.0]
    assert released.present.tolist() == [True, False]
    assert released.rows.tolist() == [[0.0, 0.0]] * 2


# Streams


def test_add_batches_equal_the_whole_to_the_last_digit(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = QUERY.sum_exact(FEATURES, LABELS, CLASSES)
    monkeypatch.setattr(query_module, "_AT_ONCE", 100)
    streamed = QUERY.start(CLASSES, DIM)
    order = np.random.default_rng(5).permutation(LABELS.size)[::-1]
    for group in np.array_split(order, 13):
        streamed.add(FEATURES[group], LABELS[group])
    assert (streamed.vectors == whole.vectors).all()
    assert (streamed.weights == whole.weights).all()
    assert (whole.weights == EACH * QUERY.grid.weight).all()


def test_repr_shows_no_content() -> None:
    sums = QUERY.sum_exact(FEATURES[:4], LABELS[:4], 2)
    assert repr(sums) == f"Sums(<secret>, classes=2, dim={DIM})"
    assert str(int(sums.weights[0])) not in repr(sums)


# Refusals


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_add_infinite_feature_is_refused_and_adds_nothing(bad: float) -> None:
    sums = QUERY.sum_exact(FEATURES[:4], LABELS[:4], 2)
    before = sums.vectors.tolist(), sums.weights.tolist()
    features = FEATURES[:2].copy()
    features[1, 3] = bad
    with pytest.raises(NotFiniteError):
        sums.add(features, LABELS[:2])
    assert (sums.vectors.tolist(), sums.weights.tolist()) == before


@pytest.mark.parametrize(
    ("features", "labels"),
    [
        (FEATURES[:2].astype(np.float32), LABELS[:2]),
        (FEATURES[:2, :3], LABELS[:2]),
        (FEATURES[0], LABELS[:1]),
        (FEATURES[:2], LABELS[:3]),
        (FEATURES[:2], LABELS[:2].astype(np.int32)),
        (FEATURES[:2], LABELS[:2] - 1),
        (FEATURES[:2], LABELS[:2] + 2),
    ],
)
def test_add_other_dtype_or_class_is_refused(features: Float, labels: NDArray[np.int64]) -> None:
    with pytest.raises(ValueError, match=r"float64|int64|classes"):
        QUERY.start(2, DIM).add(features, labels)


def test_add_too_many_records_is_refused() -> None:
    sums = QUERY.start(2, DIM)
    sums.weights[:] = 2**31 * QUERY.grid.weight
    with pytest.raises(ValueError, match=r"2\^32"):
        sums.add(FEATURES[:1], LABELS[:1])
    sums.add(FEATURES[:0], LABELS[:0])


@pytest.mark.parametrize(
    "settings",
    [
        *[(0.0, 1.0, 1.0, 1.0), (1.0, -1.0, 1.0, 1.0), (1.0, 1.0, 0.0, 1.0), (math.nan, 1.0, 1.0, 1.0)],
        *[(1.0, math.inf, 1.0, 1.0), (1e308, 1e308, 1e10, 1.0), (5e-324, 5e-324, 1e-9, 1.0)],
        *[(1.0, 1.0, 1e-4, 1.0), (1.0, 1e-7, 1.0, 1.0), (1e-7, 1.0, 1.0, 1.0), (1.0, 1.0, 1e7, 1.0)],
        *[(1.0, 1.0, 1.0, 0.0), (1.0, 1.0, 1.0, math.nan)],
    ],
)
def test_query_invalid_settings_are_refused(settings: tuple[float, float, float, float]) -> None:
    with pytest.raises(ValueError, match=r"positive and finite|step"):
        PrototypeQuery(*settings)


@pytest.mark.parametrize(("classes", "dim"), [(0, 1), (1, 0)])
def test_start_without_classes_or_features_is_refused(classes: int, dim: int) -> None:
    with pytest.raises(ValueError, match="classes"):
        QUERY.start(classes, dim)


def test_package_needs_no_torch() -> None:
    code = "import sys, secure_client.privacy; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_noise_deviation_is_that_of_the_grid() -> None:
    assert SIGMA * QUERY.grid.step == pytest.approx(SIGMA_OF_A_SUM, rel=1e-12)
