"""Search for any site's prototypes in the bytes that a coordinator received.

Every message is read as float32, float64, int32 and int64 at every alignment, and one site's messages of several rounds
also as means and differences. Each window of d consecutive values is compared by cosine with each prototype, and with
*twins* of it: the same numbers in a random order.

**False alarms.** Where the bytes have nothing to do with the prototypes, the best cosine of a twin is drawn like
that of a prototype. Windows of unrelated numbers point anywhere, so the chance that one comes closer than a cosine
of c to a given vector falls at least like (1 − c²)^((d − 1)/4); independent windows in all directions would fall
like (1 − c²)^((d − 1)/2), and half the exponent leaves room for lopsided ones. Prototypes therefore leak if their
1 − c² is below the twins' by the factor that makes this chance :data:`FALSE_ALARM`.

**Limits.** The search finds values that the bytes contain, not values that could be computed from them; compressed
bytes are not decompressed. The search checks that a protection was applied at all, and to every message.
:attr:`Likeness.threshold` is the cosine above which a copy is found: with few features, or few non-zero features, the
threshold is near 1. The order of features must be arbitrary, as in a trained embedding: a smooth curve resembles any
other smooth curve.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float64]

FALSE_ALARM = 1e-6
"""Largest probability that unrelated bytes count as a leak."""

_DTYPES = ("<f4", "<f8", "<i4", "<i8")
_TWINS = 2
_THREADS = min(8, os.cpu_count() or 1)  # each holds a few copies of a message
_LARGEST = 1e150  # the largest value whose window sums fit float64
_SMALLEST = 1e-6  # of 1 − c²: below it float32 sees no difference
_CHUNK = 1 << 11  # windows at a time, whose products fit a processor's cache
_NOTHING = 1e-12
"""Component of a unit vector that counts as 0: below float32's rounding, and denormal products are slow."""


@dataclass(frozen=True)
class Likeness:
    """Best cosines with the view, of prototypes and of their twins, and the threshold of a leak, each 0 to 1."""

    prototypes: float
    twins: float
    threshold: float

    @property
    def leaks(self) -> bool:
        """True if prototypes are closer to the view than their twins by more than chance explains."""
        return self.prototypes > self.threshold


def likeness(
    messages: Iterable[bytes], series: Iterable[Sequence[bytes]], vectors: Vectors, *, seed: int = 0
) -> Likeness:
    """Compare ``messages``, and means and differences within each of ``series``, with ``vectors`` of shape (V, d).

    A series has the same part of one site's messages in successive rounds; only combinations within a series are read,
    so pass each of its parts among the messages too. ``seed`` makes the twins. Raises ``ValueError`` for a vector that
    is constant (it equals its twins), or not finite.
    """
    if vectors.ndim != 2 or len(vectors) == 0 or not np.isfinite(vectors).all():
        raise ValueError("vectors must be a matrix of finite numbers with at least one row")
    if np.any(np.ptp(vectors, axis=1) == 0):
        raise ValueError("a constant vector equals its twins; leave constant vectors out")
    generator = np.random.default_rng(seed)
    # Twins have the same numbers, so that only the order of features can tell prototypes from them.
    candidates = np.concatenate([vectors, *(generator.permuted(vectors, axis=1) for _ in range(_TWINS))])
    units = candidates / np.linalg.norm(candidates, axis=1, keepdims=True)
    spread = float(_spread(np.abs(vectors).sum(axis=1), np.abs(vectors).max(axis=1)).min())
    # NumPy releases the interpreter's lock in the arithmetic, so threads use all cores.
    with ThreadPoolExecutor(_THREADS) as pool:
        by_source = pool.map(
            partial(_compare_source, units=units, least_spread=spread / 2), _sources(messages, series)
        )
        best = np.maximum.reduce([np.zeros(len(units)), *by_source])
    twins = float(best[len(vectors) :].max())
    return Likeness(float(best[: len(vectors)].max()), twins, leak_threshold(twins, vectors.shape[1]))


def leak_threshold(twins: float, dim: int) -> float:
    """Return the cosine above which a window is a leak when the twins' best is ``twins`` (0 to 1), in d = ``dim``."""
    factor = FALSE_ALARM ** (4.0 / (dim - 1))
    return float(np.sqrt(1.0 - max(factor * (1.0 - twins**2), _SMALLEST)))


def best_cosines(values: Vectors, units: Vectors, least_spread: float) -> Vectors:
    r"""Return the best \|cosine\| of each unit vector, (V, d), with any window of d consecutive ``values``; (V,).

    Windows whose sum of absolute values is below ``least_spread`` times their maximum are skipped: a few large values
    resemble a few large values anywhere, and most unrelated bytes, read as floats, are of that kind.
    """
    dim = units.shape[1]
    best = np.zeros(len(units), dtype=np.float32)
    if len(values) < dim:
        return best.astype(np.float64)
    sizes = np.abs(values)
    largest = _sliding(np.maximum, sizes, dim)
    spread_out = np.flatnonzero(_spread(_sliding(np.add, sizes, dim), largest) >= least_spread)
    windows = np.lib.stride_tricks.sliding_window_view(values, dim)
    targets = np.where(np.abs(units) < _NOTHING, 0.0, units).astype(np.float32)
    for start in range(0, len(spread_out), _CHUNK):
        chunk = spread_out[start : start + _CHUNK]
        scaled = np.empty((len(chunk), dim), dtype=np.float32)
        np.divide(windows[chunk], largest[chunk, None], out=scaled, casting="same_kind")
        scaled /= np.sqrt(np.einsum("ij,ij->i", scaled, scaled))[:, None]
        scaled[np.abs(scaled) < _NOTHING] = 0.0
        products = targets @ scaled.T
        best = np.maximum(best, np.maximum(products.max(axis=1), -products.min(axis=1)))
    return best.astype(np.float64)


def _spread(total: Vectors, largest: Vectors) -> Vectors:
    """Return the spread of a window, its sum over its maximum, 1 to d; 0 for a window of zeros."""
    return np.divide(total, largest, out=np.zeros_like(total), where=largest > 0)


def _sliding(combine: np.ufunc, values: Vectors, dim: int) -> Vectors:
    """Apply ``combine`` to each window of ``dim`` values, by doubling: log₂(dim) passes over the values."""
    result, covered = None, 0
    power, width = values, 1
    while covered < dim:
        if dim & width:
            count = len(values) - covered - width + 1
            part = power[covered : covered + count]
            result = part if result is None else combine(result[:count], part)
            covered += width
        if covered < dim:
            power, width = combine(power[:-width], power[width:]), width * 2
    return np.asarray(values if result is None else result)


def _compare_source(readings: Iterable[Vectors], units: Vectors, least_spread: float) -> Vectors:
    best = np.zeros(len(units))
    for values in readings:
        best = np.maximum(best, best_cosines(values, units, least_spread))
    return best


def _sources(messages: Iterable[bytes], series: Iterable[Sequence[bytes]]) -> Iterator[Iterator[Vectors]]:
    """Yield the readings of each message and each series; a reading is made when it is compared."""
    yield from map(_read, messages)
    yield from map(_read_combined, series)


def _read_combined(parts: Sequence[bytes]) -> Iterator[Vectors]:
    length = min(map(len, parts), default=0)  # compressed parts differ a little in length
    for rounds in zip(*(_read(part[:length]) for part in parts), strict=True):
        # A constant offset or mask cancels in a difference of two rounds, and fresh noise is averaged out in a mean.
        for first, second in pairwise(rounds):
            yield first - second
        if len(rounds) > 1:
            yield np.mean(rounds, axis=0)


def _read(message: bytes) -> Iterator[Vectors]:
    for dtype in _DTYPES:
        size = np.dtype(dtype).itemsize
        for offset in range(min(size, len(message))):
            count = (len(message) - offset) // size
            yield _finite(np.frombuffer(message, dtype=dtype, count=count, offset=offset))


def _finite(values: NDArray[np.generic]) -> Vectors:
    # Most bytes are no numbers of this type: NaN and infinities would spoil every window that they are in.
    with np.errstate(invalid="ignore", over="ignore"):
        converted = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    return np.clip(converted, -_LARGEST, _LARGEST)
