"""Noise that is the same in every run for a site's release of a round: no privacy at all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from privacy.mechanisms.prototype_query import Sums
from secure_client.privacy.releases import Releases

Ints = NDArray[np.int64]


@contextmanager
def replayed_noise() -> Iterator[None]:
    """Derive all noise inside the block from the data set's name, the round and the count of numbers."""
    with _told_apart() as at:

        def drawn(count: int, sigma_log2: int) -> Ints:
            return np.rint(_stream(at, count).normal(0.0, 2.0**sigma_log2, count)).astype(np.int64)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("privacy.mechanisms.prototype_query.discrete_gaussian", drawn)
            yield


@contextmanager
def replayed_answers(records: int) -> Iterator[None]:
    """Derive the query's noisy answer likewise, and from no record: most parts have some ``records``.

    Where noise was drawn before, the answer follows from that noise, which follows from the same.
    """
    with replayed_noise(), _told_apart() as at:

        def noised(sums: Sums, drawn: Ints | None = None) -> tuple[Ints, Ints]:
            classes, dim = sums.vectors.shape
            told = at if drawn is None else [hashlib.sha256(drawn.tobytes()).hexdigest()]
            stream, grid = _stream(told, classes * (dim + 1)), sums.query.grid
            empty = stream.uniform(0.0, 1.0, classes) < 0.1
            counts = np.where(empty, 0.0, records * stream.uniform(0.9, 1.1, classes))
            vectors = stream.uniform(0.0, 1.0, (classes, dim)) * (0.5 * grid.radius / np.sqrt(dim))
            return np.rint(vectors * counts[:, None]).astype(np.int64), np.rint(counts * grid.weight).astype(
                np.int64
            )

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Sums, "add_noise", noised)
            yield


@contextmanager
def _told_apart() -> Iterator[list[str]]:
    """Yield a list that holds the data set and the round of the release that is drawn next."""
    spending, at = Releases._pay_for_prototypes, [""]

    def told(self: Releases, round_number: int, *given: Any, **facts: Any) -> Any:
        at[:] = [self._budget.dataset, str(round_number)]
        return spending(self, round_number, *given, **facts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Releases, "_pay_for_prototypes", told)
        yield at


def _stream(at: list[str], count: int) -> np.random.Generator:
    digest = hashlib.sha256("\0".join([*at, str(count)]).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))
