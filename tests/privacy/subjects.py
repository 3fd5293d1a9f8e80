"""Subjects of every size and mixture, and what the query says of them, in Python's own integers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from privacy.mechanisms import joint_clipping
from privacy.mechanisms.prototype_query import PrototypeQuery, Sums
from tests.privacy.neighbours import CLASSES, TooSensitiveError, records


@dataclass(frozen=True)
class Owned:
    """Features (N, d), labels (N,) and whose they are (N,), ascending."""

    features: NDArray[np.float64]
    labels: NDArray[np.int64]
    owners: NDArray[np.int64]

    def of(self, kept: NDArray[np.bool_]) -> Owned:
        return Owned(self.features[kept], self.labels[kept], self.owners[kept])

    def asked(self, query: PrototypeQuery) -> Sums:
        """Ask in three batches, which divides a subject wherever possible."""
        third = -(-len(self.labels) // 3) or 1
        cuts = [slice(first, first + third) for first in range(0, len(self.labels), third)]
        sums = query.start(CLASSES, self.features.shape[1])
        return joint_clipping.joint_sums(
            sums, ((self.features[cut], self.labels[cut]) for cut in cuts), self.owners
        )


@st.composite
def owned(draw: st.DrawFn, clip: float) -> Owned:
    """Draw records of every size, some of them many times, of one to four subjects."""
    drawn = draw(records(clip))
    times = draw(st.lists(st.sampled_from([1, 2, 7]), min_size=1, max_size=len(drawn.labels)))
    repeated = np.repeat(np.arange(len(times)), times)
    owners = draw(st.lists(st.integers(0, 3), min_size=len(repeated), max_size=len(repeated)))
    return Owned(drawn.features[repeated], drawn.labels[repeated], np.array(sorted(owners), dtype=np.int64))


def change(query: PrototypeQuery, given: Owned, owner: int) -> int:
    """Return the squared norm by which the query moves without one subject's records, over all classes."""
    whole, rest = given.asked(query), given.of(given.owners != owner).asked(query)
    pairs = ((whole.vectors, rest.vectors), (whole.weights, rest.weights))
    moved = [a - b for x, y in pairs for a, b in zip(x.ravel().tolist(), y.ravel().tolist(), strict=True)]
    return sum(value * value for value in moved)


def check_subjects(query: PrototypeQuery, given: Owned) -> None:
    """Check that without all records of any one subject the query changes no more than by one record."""
    for owner in np.unique(given.owners).tolist():
        moved = change(query, given, owner)
        if moved > query.grid.sensitivity_squared:
            raise TooSensitiveError(f"subject {owner} moves the query by √{moved}, more than {query.grid}")
