"""The search for prototypes in bytes: what it finds, what it does not, and how often it is wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from protoseal.audit.leakage_search import FALSE_ALARM, best_cosines, leak_threshold, likeness

Vectors = NDArray[np.float64]

DIM = 64


def prototypes(seed: int = 0, rows: int = 6) -> Vectors:
    """Draw rows like class means of ReLU features: a third of the features dead, and much in common."""
    rng = np.random.default_rng(seed)
    common = rng.normal(0.3, 1.0, DIM)
    return np.asarray(np.maximum(common + 0.5 * rng.normal(size=(rows, DIM)), 0.0))


def filler(size: int, seed: int = 0) -> bytes:
    """Return bytes without meaning, as in ciphertexts."""
    return np.random.default_rng(seed + 1000).bytes(size)


def hidden(content: bytes, *, shift: int = 0) -> list[bytes]:
    """Put the content somewhere in a word of 40 kB, at any alignment."""
    return [filler(20_000 + shift) + content + filler(20_000, seed=1)]


def noisy(vectors: Vectors, decibels: float, seed: int = 3) -> Vectors:
    """Add Gaussian noise at a signal-to-noise ratio, of each row's energy to that of its noise."""
    noise = np.random.default_rng(seed).normal(size=vectors.shape)
    size = np.linalg.norm(vectors, axis=1, keepdims=True) / np.linalg.norm(noise, axis=1, keepdims=True)
    return np.asarray(vectors + noise * size * 10 ** (-decibels / 20))


LEAKS: dict[str, Callable[[Vectors], bytes]] = {
    "float64": lambda rows: rows.tobytes(),
    "float32": lambda rows: rows.astype("<f4").tobytes(),
    "fixed point in 32 bits": lambda rows: (rows * 2**20).astype("<i4").tobytes(),
    "fixed point in 64 bits": lambda rows: (rows * 2**40).astype("<i8").tobytes(),
    "tiny": lambda rows: (rows * 1e-200).tobytes(),
    "huge": lambda rows: (rows * 1e30).astype("<f4").tobytes(),
    "negated": lambda rows: (-3.0 * rows).tobytes(),
    "one row of them": lambda rows: rows[4].tobytes(),
    "noise at 10 dB": lambda rows: noisy(rows, 10.0).tobytes(),
    "noise at 10 dB, float32": lambda rows: noisy(rows, 10.0).astype("<f4").tobytes(),
}


@pytest.mark.parametrize("shift", [0, 1, 3, 7])
@pytest.mark.parametrize("leak", LEAKS)
def test_likeness_copy_at_any_alignment_leaks(leak: str, shift: int) -> None:
    vectors = prototypes()
    assert likeness(hidden(LEAKS[leak](vectors), shift=shift), [], vectors).leaks
    others = prototypes(seed=9)  # the same kind of numbers, and none of them in the bytes
    assert not likeness(hidden(LEAKS[leak](vectors[:, ::-1]), shift=shift), [], others).leaks


def test_likeness_copy_under_heavy_noise_passes() -> None:
    """A limit, not a wish: below about 6 dB a copy is no nearer than what chance brings forth."""
    vectors = prototypes()
    found = likeness(hidden(noisy(vectors, -3.0).tobytes()), [], vectors)
    assert not found.leaks
    assert 0.8 < found.threshold < 0.95


def test_likeness_reused_mask_leaks_in_difference() -> None:
    first, second = prototypes(seed=1), prototypes(seed=2)
    mask = 100.0 * np.random.default_rng(5).normal(size=first.shape)
    sent = [(mask + rows).tobytes() for rows in (first, second)]
    moved = second - first
    assert not likeness(sent, [], moved).leaks
    assert likeness(sent, [sent], moved).leaks
    fresh = [sent[0], (mask[::-1] + second).tobytes()]
    assert not likeness(fresh, [fresh], moved).leaks


def test_likeness_cancelling_noise_leaks_in_mean() -> None:
    vectors = prototypes()
    noise = 10.0 * np.random.default_rng(5).normal(size=vectors.shape)
    sent = [(vectors + sign * noise).tobytes() for sign in (1.0, -1.0)]
    assert not likeness(sent, [], vectors).leaks
    assert likeness(sent, [sent], vectors).leaks


def test_likeness_unequal_lengths_combine_common_part() -> None:
    first, second = prototypes(seed=1), prototypes(seed=2)
    mask = 100.0 * np.random.default_rng(5).normal(size=first.shape)
    parts = [(mask + first).tobytes() + filler(40), (mask + second).tobytes() + filler(3)]
    assert likeness([], [parts], second - first).leaks


def test_likeness_random_bytes_do_not_leak() -> None:
    """150 words: with the stated probability, one in 6,000 such tests would fail for any choice of seeds."""
    assert FALSE_ALARM <= 1e-6
    assert not any(
        likeness([filler(6_000, seed)], [], prototypes(seed), seed=seed).leaks for seed in range(150)
    )


def test_leak_threshold_tail_is_no_heavier_than_supposed() -> None:
    """Prototypes beat twins by a factor in 1 − c² no more often than the threshold's exponent allows."""
    found = [likeness([filler(3_000, seed)], [], prototypes(seed), seed=seed) for seed in range(150)]
    gaps = [np.log((1 - each.twins**2) / (1 - each.prototypes**2)) for each in found]
    for allowed in (0.1, 0.02):
        factor = np.log(1 / allowed) * 4 / (DIM - 1)
        assert np.mean([gap > factor for gap in gaps]) <= allowed
    assert np.mean([gap > 0 for gap in gaps]) > 0.15  # prototypes do win as often as one of three should


@pytest.mark.parametrize(
    "content",
    [
        bytes(5_000),
        b"\x01" * 5_000,
        bytes(range(256)) * 20,
        b"-----BEGIN CERTIFICATE-----\n" * 200,
        np.arange(600.0).tobytes(),
        np.full(600, np.nan).tobytes() + np.full(600, np.inf).tobytes(),
    ],
    ids=["zeros", "constant", "repeating", "text", "ramp", "not numbers"],
)
def test_likeness_orderly_bytes_do_not_leak(content: bytes) -> None:
    assert not any(likeness([content], [[content, content]], prototypes(s), seed=s).leaks for s in range(5))


def test_leak_threshold_few_features_need_exact_copy() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(3, 16))
    found = likeness(hidden(vectors.tobytes()), [], vectors)
    assert found.leaks
    assert found.threshold > 0.98
    assert not likeness(hidden(noisy(vectors, 10.0).tobytes()), [], vectors).leaks


def test_leak_threshold_rises_with_twins_and_fewer_features() -> None:
    assert leak_threshold(0.5, 64) < leak_threshold(0.8, 64) < leak_threshold(0.8, 16) < 1.0


@pytest.mark.parametrize(
    ("vectors", "word"),
    [
        (np.ones((2, 8)), "constant"),
        (np.zeros((0, 8)), "row"),
        (np.array([[1.0, np.nan]]), "finite"),
        (np.arange(8.0), "matrix"),
    ],
)
def test_likeness_indistinguishable_vectors_are_refused(vectors: Vectors, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        likeness([filler(1_000)], [], vectors)


@settings(max_examples=60)
@given(st.integers(1, 40), st.integers(0, 120), st.integers(0, 2**32 - 1))
def test_best_cosines_equal_loop_over_windows(dim: int, length: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values, units = rng.standard_cauchy(length), rng.normal(size=(3, dim))
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    least = 0.3 * dim
    expected = np.zeros(3)
    for start in range(length - dim + 1):
        window = values[start : start + dim]
        if np.abs(window).sum() >= least * np.abs(window).max():
            expected = np.maximum(expected, np.abs(units @ window) / np.linalg.norm(window))
    np.testing.assert_allclose(best_cosines(values, units, least), expected, atol=1e-5)
