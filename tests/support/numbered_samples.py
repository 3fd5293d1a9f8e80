"""Samples that carry a number of their own, so that a test can tell where each of them went."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protoseal.splits import SiteArrays
from secure_client.data.samples import Samples, TrainTest

OFFICIAL = 100_000
"""The number of the first test sample."""


def numbered(per_cell: int, domains: int, classes: int, first: int = 0) -> Samples:
    """``per_cell`` samples of each domain and class, each with a number of its own as its only feature."""
    cells = [(d, k) for d in range(domains) for k in range(classes) for _ in range(per_cell)]
    numbers = np.arange(first, first + len(cells), dtype=np.float32)[:, np.newaxis]
    return Samples(numbers, np.array([k for _, k in cells]), np.array([d for d, _ in cells]))


def data(per_cell: int, domains: int = 2, classes: int = 4, *, test: int = 0) -> TrainTest:
    """Such samples of every domain and class; ``test`` of each also in a test part, 0 for none."""
    return TrainTest(
        numbered(per_cell, domains, classes),
        numbered(test, domains, classes, first=OFFICIAL) if test else None,
        tuple("abcdefghij"[:classes]),
        tuple(f"domain {d}" for d in range(domains)),
    )


def ids(samples: Samples) -> list[int]:
    """Return the samples' numbers."""
    return [int(row[0]) for row in samples.inputs]


def per_class(samples: Samples, classes: int) -> NDArray[np.int64]:
    """Samples of each class, (classes,)."""
    return np.bincount(samples.labels, minlength=classes)


def all_ids(sites: Sequence[SiteArrays], *, with_test: bool) -> list[int]:
    """Return the numbers of all that the sites have, training parts alone or test parts too."""
    return [i for site in sites for part in (site.train, site.test)[: 1 + with_test] for i in ids(part)]
