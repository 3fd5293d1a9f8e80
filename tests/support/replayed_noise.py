"""The same noise for a site's release of a round in every run: no noise at all, as far as privacy goes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from secure_client.privacy.releases import Releases

Batches = Iterable[tuple[NDArray[np.float64], NDArray[np.int64]]]


@contextmanager
def replayed_noise(
    change: Callable[[NDArray[np.int64]], NDArray[np.int64]] = lambda noise: noise,
) -> Iterator[None]:
    """Inside, noise follows from the data set's name, the round and how many numbers get any; ``change`` alters it."""
    released = Releases.release
    at: list[str] = []

    def release(self: Releases, round_number: int, *given: Any, **named: Any) -> Any:
        at[:] = [self._budget.dataset, str(round_number)]
        return released(self, round_number, *given, **named)

    def drawn(count: int, sigma_log2: int) -> NDArray[np.int64]:
        digest = hashlib.sha256("\0".join([*at, str(count)]).encode()).digest()
        noise = np.random.default_rng(int.from_bytes(digest[:8], "big")).normal(0.0, 2.0**sigma_log2, count)
        return change(np.rint(noise).astype(np.int64))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Releases, "release", release)
        patch.setattr("secure_client.privacy.query.discrete_gaussian", drawn)
        yield
