"""Do the bytes that a coordinator received look like any site's prototypes?

Every received message is read as float32, float64, int32 and int64 at every alignment, alone, and as mean and
difference with the same site's message of other rounds. Each window of d consecutive values is compared by cosine
with each prototype, and with *twins* of it: the same numbers in a random order. Where nothing leaks, a prototype is
exchangeable with its twins, so its best cosine ranks among theirs like a random draw.

The limit: this finds values that are there to be read, not values that could be computed from what is there. It is
the check that a protection was applied at all, and applied to everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float64]

_DTYPES = ("<f4", "<f8", "<i4", "<i8")
_LARGEST = 1e150  # squares of a window still fit float64
_CHUNK = 1 << 15  # windows at a time: bounds the memory


@dataclass(frozen=True)
class Likeness:
    """How close the view comes to the prototypes (``prototypes``) and to their twins (``twins``): best cosines.

    ``z`` is the standard score of the prototypes' mean rank among their twins: about standard normal where nothing
    leaks.
    """

    prototypes: float
    twins: float
    z: float

    @property
    def leaks(self) -> bool:
        """A prototype is in the view as it is, or prototypes are closer to it than chance would have them."""
        return self.prototypes > 1 - 1e-6 or self.z > 6.0


def likeness(messages: Sequence[Sequence[bytes]], vectors: Vectors, *, twins: int, seed: int) -> Likeness:
    """Compare ``messages[site][round]`` with ``vectors`` of shape (V, d), each with ``twins`` twins.

    Raises ``ValueError`` for a vector that is constant: it equals its twins.
    """
    if np.any(np.ptp(vectors, axis=1) == 0):
        raise ValueError("a constant vector has no twin that differs from it")
    generator = np.random.default_rng(seed)
    candidates = np.stack([vectors, *(generator.permuted(vectors, axis=1) for _ in range(twins))])
    candidates /= np.linalg.norm(candidates, axis=2, keepdims=True)
    flat = candidates.reshape(-1, vectors.shape[1])
    best = np.full(len(flat), -1.0)
    for values in readings(messages):
        best = np.maximum(best, best_cosines(values, flat))
    table = best.reshape(twins + 1, len(vectors))
    return Likeness(float(table[0].max()), float(table[1:].max()), _rank_score(table))


def readings(messages: Sequence[Sequence[bytes]]) -> Iterator[Vectors]:
    """All ways to read the messages as numbers."""
    for by_round in messages:
        for dtype in _DTYPES:
            for offset in range(np.dtype(dtype).itemsize):
                yield from _with_combinations([_read(message, dtype, offset) for message in by_round])


def _with_combinations(rounds: list[Vectors]) -> Iterator[Vectors]:
    yield from rounds
    same = [values for values in rounds if values.shape == rounds[0].shape]
    for first, second in pairwise(same):
        yield first - second
    if len(same) > 1:
        yield np.mean(same, axis=0)


def _read(message: bytes, dtype: str, offset: int) -> Vectors:
    size = np.dtype(dtype).itemsize
    count = max(0, (len(message) - offset) // size)
    values = np.frombuffer(message, dtype=dtype, count=count, offset=offset if count else 0)
    with np.errstate(invalid="ignore", over="ignore"):
        finite = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    return np.clip(finite, -_LARGEST, _LARGEST)


def best_cosines(values: Vectors, units: Vectors) -> Vectors:
    """The best |cosine| of each unit vector, (V, d), with any window of d consecutive ``values``."""
    dim = units.shape[1]
    best = np.zeros(len(units))
    if len(values) < dim:
        return best
    windows = np.lib.stride_tricks.sliding_window_view(values, dim)
    for chunk in _chunks(windows):
        # Scaled first, so that neither the smallest nor the largest float64 is lost in its square.
        scaled = chunk / np.maximum(np.abs(chunk).max(axis=1, keepdims=True), np.finfo(np.float64).tiny)
        scaled /= np.maximum(np.linalg.norm(scaled, axis=1, keepdims=True), np.finfo(np.float64).tiny)
        cosines = np.abs(scaled.astype(np.float32) @ units.T.astype(np.float32))
        best = np.maximum(best, cosines.max(axis=0))
    return best


def _chunks(windows: Vectors) -> Iterable[Vectors]:
    return (windows[start : start + _CHUNK] for start in range(0, len(windows), _CHUNK))


def _rank_score(table: Vectors) -> float:
    """Mean mid-rank of row 0 among all rows, column by column, as a standard score."""
    rows, columns = table.shape
    below = (table[1:] < table[0]).sum(axis=0) + 0.5 * (table[1:] == table[0]).sum(axis=0)
    mean, variance = (rows - 1) / 2, (rows * rows - 1) / 12
    return float((below.mean() - mean) / np.sqrt(variance / columns))
